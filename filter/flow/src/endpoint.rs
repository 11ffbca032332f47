//! What clients call, and which stages each endpoint passes in which order.

use proxium_wire::{Dialect, Endpoint};

/// A stage of the specification. Those of later work have their place in [`Route::stages`]'s tables already:
/// *recall* before *resolve*; *classify* before *resolve* for `auto`; *near match* inside *lookup*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageName {
    /// Whose key is it, and may it still call?
    Authenticate,
    /// Which models, in which order?
    Resolve,
    /// Is the answer known already? Decides the cache key; the look-up itself travels with the reservation.
    Lookup,
    /// Do the limits allow it?
    Reserve,
    /// Call the plan's entries.
    Attempt,
    /// Settle, store, answer.
    Record,
}

/// Chat and messages: the whole flow.
const FULL: &[StageName] =
    &[StageName::Authenticate, StageName::Resolve, StageName::Lookup, StageName::Reserve, StageName::Attempt, StageName::Record];

/// An endpoint in a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// How the client speaks.
    pub dialect: Dialect,
    /// What stands behind a provider's path prefix.
    pub upstream_path: &'static str,
    /// The stages in their order.
    pub stages: &'static [StageName],
}

const ROUTES: &[(&str, Route)] = &[(
    "/v1/chat/completions",
    Route { endpoint: Endpoint::Chat, dialect: Dialect::Openai, upstream_path: "/chat/completions", stages: FULL },
)];

/// The route of a request; `path` without its query. `None`: not proxium's.
#[must_use]
pub fn route(method: &str, path: &str) -> Option<Route> {
    (method == "POST").then(|| ROUTES.iter().find(|(known, _)| *known == path).map(|(_, route)| *route)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn lookup_comes_before_the_reservation_and_the_chain_before_the_lookup() {
        let at = |name| FULL.iter().position(|stage| *stage == name).unwrap();
        assert!(at(StageName::Authenticate) < at(StageName::Resolve));
        assert!(at(StageName::Resolve) < at(StageName::Lookup));
        assert!(at(StageName::Lookup) < at(StageName::Reserve));
        assert!(at(StageName::Reserve) < at(StageName::Attempt));
        assert!(at(StageName::Attempt) < at(StageName::Record));
    }

    #[test]
    fn only_known_paths_and_methods_are_ours() {
        assert_eq!(route("POST", "/v1/chat/completions").unwrap().endpoint, Endpoint::Chat);
        for (method, path) in [("GET", "/v1/chat/completions"), ("POST", "/v1/chat/completions/"), ("POST", "/v1/files"), ("POST", "/")] {
            assert_eq!(route(method, path), None);
        }
    }
}
