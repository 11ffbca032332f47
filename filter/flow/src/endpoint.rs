//! What clients call, and which stages each endpoint passes in which order.

use crate::dialect::{self, Answer, Request};
use crate::json::Document;
use crate::refusal::Refusal;
use proxium_wire::{Dialect, Endpoint};

/// A stage of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageName {
    /// Whose key is it, and may it still call?
    Authenticate,
    /// What is remembered of this project and end user?
    Recall,
    /// Which tier is `auto`?
    Classify,
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
const FULL: &[StageName] = &[
    StageName::Authenticate,
    StageName::Recall,
    StageName::Classify,
    StageName::Resolve,
    StageName::Lookup,
    StageName::Reserve,
    StageName::Attempt,
    StageName::Record,
];

/// Counting tokens: nothing is generated, so nothing is cached, reserved or recorded.
const COUNT: &[StageName] = &[StageName::Authenticate, StageName::Resolve, StageName::Attempt];

/// An endpoint in a dialect.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// How the client speaks.
    pub dialect: Dialect,
    /// The stages in their order.
    pub stages: &'static [StageName],
    /// Reads a request's body.
    pub request: fn(&Document) -> Result<Request, Refusal>,
    /// The path at a provider of a dialect; `None`: it has no such endpoint, and the request's estimate is the answer.
    pub path: fn(Dialect) -> Option<&'static str>,
    /// Reads a provider's answer.
    pub answer: fn(Dialect, &[u8]) -> Result<Answer, &'static str>,
}

impl Route {
    /// The call holds something that must be settled or given back.
    #[must_use]
    pub fn reserves(&self) -> bool {
        self.stages.contains(&StageName::Reserve)
    }
}

const CHAT: Route = Route {
    endpoint: Endpoint::Chat,
    dialect: Dialect::Openai,
    stages: FULL,
    request: dialect::openai::request,
    path: generation,
    answer: dialect::answer,
};
const MESSAGES: Route = Route { endpoint: Endpoint::Messages, dialect: Dialect::Anthropic, request: dialect::anthropic::request, ..CHAT };
const COUNT_TOKENS: Route = Route {
    stages: COUNT,
    request: dialect::anthropic::count_request,
    path: counting,
    answer: |_, body| dialect::anthropic::count_answer(body),
    ..MESSAGES
};

/// A chat or messages call can go to a provider of either dialect.
const fn generation(provider: Dialect) -> Option<&'static str> {
    match provider {
        Dialect::Openai => Some("/chat/completions"),
        Dialect::Anthropic => Some("/messages"),
    }
}

/// Only Anthropic's API counts tokens.
const fn counting(provider: Dialect) -> Option<&'static str> {
    match provider {
        Dialect::Openai => None,
        Dialect::Anthropic => Some("/messages/count_tokens"),
    }
}

const ROUTES: &[(&str, Route)] = &[("/v1/chat/completions", CHAT), ("/v1/messages", MESSAGES), ("/v1/messages/count_tokens", COUNT_TOKENS)];

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
        assert!(at(StageName::Authenticate) < at(StageName::Recall));
        assert!(at(StageName::Recall) < at(StageName::Classify));
        assert!(at(StageName::Classify) < at(StageName::Resolve));
        assert!(at(StageName::Resolve) < at(StageName::Lookup));
        assert!(at(StageName::Lookup) < at(StageName::Reserve));
        assert!(at(StageName::Reserve) < at(StageName::Attempt));
        assert!(at(StageName::Attempt) < at(StageName::Record));
    }

    #[test]
    fn only_known_paths_and_methods_are_ours() {
        assert_eq!(route("POST", "/v1/chat/completions").unwrap().endpoint, Endpoint::Chat);
        for (method, path) in [("GET", "/v1/chat/completions"), ("POST", "/v1/chat/completions/"), ("POST", "/v1/files"), ("POST", "/")] {
            assert!(route(method, path).is_none());
        }
    }
}
