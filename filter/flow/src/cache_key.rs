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
        let header = |name: &str| head.headers.get(name).unwrap_or_default().to_owned();
        for part in [
            project,
            head.route.endpoint.name(),
            head.route.dialect.name(),
            head.query.as_deref().unwrap_or_default(),
            &header("anthropic-version"),
            &header("anthropic-beta"),
            &header("openai-beta"),
        ] {
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
        let base = CacheScope::new("p", &head(None, &[]), b"{}").key("m");
        let others = [
            CacheScope::new("q", &head(None, &[]), b"{}").key("m"),
            CacheScope::new("p", &head(Some("beta=true"), &[]), b"{}").key("m"),
            CacheScope::new("p", &head(None, &[("openai-beta", "x")]), b"{}").key("m"),
            CacheScope::new("p", &head(None, &[("anthropic-beta", "x")]), b"{}").key("m"),
            CacheScope::new("p", &head(None, &[]), b"{\"n\":2}").key("m"),
            CacheScope::new("p", &head(None, &[]), b"{}").key("m2"),
        ];
        for (at, other) in others.iter().enumerate() {
            assert_ne!(*other, base, "{at}");
            assert!(!others[..at].contains(other), "{at}");
        }
        assert_eq!(CacheScope::new("p", &head(None, &[("user-agent", "x")]), b"{}").key("m"), base);
    }
}
