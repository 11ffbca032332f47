//! The exact key of an answer.

use crate::request::Head;
use sha2::{Digest, Sha256};

/// Rises when the meaning of a stored answer changes.
const FORMAT: u8 = 1;

/// Everything of the key but the model: SHA-256 over project, endpoint, dialect, query, version and beta headers, and the canonical
/// request. A model is added last, so that an answer can be stored under the model that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheScope([u8; 32]);

impl CacheScope {
    /// The scope of a request; `canonical` without the members that do not change an answer.
    #[must_use]
    pub fn new(project: &str, head: &Head, canonical: &[u8]) -> Self {
        let mut hash = Sha256::new();
        hash.update([FORMAT]);
        for part in parts(project, head) {
            // The length keeps two parts from trading bytes.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update(canonical);
        Self(hash.finalize().into())
    }

    /// The key of this request answered by `model`.
    #[must_use]
    pub fn key(&self, model: &str) -> [u8; 32] {
        Sha256::new().chain_update(self.0).chain_update(model).finalize().into()
    }
}

/// What could change an answer beside the model and the body.
fn parts<'a>(project: &'a str, head: &'a Head) -> [&'a str; 7] {
    let header = |name| head.headers.get(name).unwrap_or_default();
    [
        project,
        head.route.endpoint.name(),
        head.route.dialect.name(),
        head.query.as_deref().unwrap_or_default(),
        header("anthropic-version"),
        header("anthropic-beta"),
        header("openai-beta"),
    ]
}

/// The same as a key, not hashed: to be compared whole.
#[must_use]
pub fn material(project: &str, head: &Head, model: &str, canonical: &[u8]) -> Vec<u8> {
    let parts = parts(project, head);
    let length = parts.iter().chain([&model]).map(|part| part.len() + size_of::<u64>()).sum::<usize>() + canonical.len();
    let mut material = Vec::with_capacity(length);
    for part in parts.into_iter().chain([model]) {
        material.extend_from_slice(&(part.len() as u64).to_le_bytes());
        material.extend_from_slice(part.as_bytes());
    }
    material.extend_from_slice(canonical);
    material
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::route;
    use crate::message::Headers;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn head(query: Option<&str>, headers: &[(&'static str, &'static str)]) -> Head {
        Head {
            route: route("POST", "/v1/chat/completions").unwrap(),
            path: "/v1/chat/completions".into(),
            query: query.map(Into::into),
            headers: headers.iter().copied().collect::<Headers>(),
            arrived_ms: 0,
            request_id: String::new(),
        }
    }

    #[test]
    fn everything_that_could_change_an_answer_changes_the_key() {
        let keys = |project, head: &Head, model, canonical: &[u8]| {
            (CacheScope::new(project, head, canonical).key(model), material(project, head, model, canonical))
        };
        let base = keys("p", &head(None, &[]), "m", b"{}");
        let others = [
            keys("q", &head(None, &[]), "m", b"{}"),
            keys("p", &head(Some("beta=true"), &[]), "m", b"{}"),
            keys("p", &head(None, &[("openai-beta", "x")]), "m", b"{}"),
            keys("p", &head(None, &[("anthropic-beta", "x")]), "m", b"{}"),
            keys("p", &head(None, &[]), "m", b"{\"n\":2}"),
            keys("p", &head(None, &[]), "m2", b"{}"),
            keys("p", &head(None, &[]), "m{", b"}"),
        ];
        for (at, other) in others.iter().enumerate() {
            assert_ne!(other.0, base.0, "{at}");
            assert_ne!(other.1, base.1, "{at}");
            assert!(!others[..at].iter().any(|before| before.0 == other.0 || before.1 == other.1), "{at}");
        }
        assert_eq!(keys("p", &head(None, &[("user-agent", "x")]), "m", b"{}"), base);
    }
}
