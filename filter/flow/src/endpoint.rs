//! What clients call, and which stages each endpoint passes in which order.

use crate::dialect::{self, Answer, Request};
use crate::json::Document;
use crate::message::Headers;
use crate::refusal::Refusal;
use crate::speaks::Speaks;
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
    /// Answer with what the key may use.
    List,
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

/// The others: reserved before they are resolved; no cache, no soft cap.
const SHORT: &[StageName] = &[StageName::Authenticate, StageName::Reserve, StageName::Resolve, StageName::Attempt, StageName::Record];

/// Counting tokens: nothing is generated, so nothing is cached, reserved or recorded. What would be remembered counts.
const COUNT: &[StageName] = &[StageName::Authenticate, StageName::Recall, StageName::Resolve, StageName::Attempt];

/// Telling models: no body, no provider.
const LIST: &[StageName] = &[StageName::Authenticate, StageName::List];

/// Where models are told.
pub const MODELS_PATH: &str = "/v1/models";

/// An endpoint in a dialect.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// How errors are told.
    pub dialect: Dialect,
    /// How the client speaks.
    pub speaks: Speaks,
    /// The stages in their order.
    pub stages: &'static [StageName],
    /// Reads a request's body.
    pub request: fn(&Document) -> Result<Request, Refusal>,
    /// The path at a provider that is spoken to so; `None`: it has no such endpoint. The entry is skipped; where nothing is reserved, the request's
    /// estimate is the answer.
    pub path: fn(Speaks) -> Option<&'static str>,
    /// Reads a provider's answer.
    pub answer: fn(Speaks, &[u8]) -> Result<Answer, &'static str>,
}

impl Route {
    /// The call holds something that must be settled or given back.
    #[must_use]
    pub fn reserves(&self) -> bool {
        self.stages.contains(&StageName::Reserve)
    }

    /// The limits are asked before anything of the request is looked at, so that their refusal beats every other.
    #[must_use]
    pub fn reserves_first(&self) -> bool {
        self.stages.get(1) == Some(&StageName::Reserve)
    }

    /// The route as this client speaks: both dialects tell models at the same path, and only Anthropic's clients name a version.
    #[must_use]
    pub fn spoken(self, headers: &Headers) -> Self {
        match headers.get("anthropic-version") {
            Some(_) if self.endpoint == Endpoint::Models => Self { dialect: Dialect::Anthropic, ..self },
            _ => self,
        }
    }
}

const CHAT: Route = Route {
    endpoint: Endpoint::Chat,
    dialect: Dialect::Openai,
    speaks: Speaks::Openai,
    stages: FULL,
    request: dialect::openai::request,
    path: generation,
    answer: generated,
};
const MESSAGES: Route = Route {
    endpoint: Endpoint::Messages,
    dialect: Dialect::Anthropic,
    speaks: Speaks::Anthropic,
    request: dialect::anthropic::request,
    ..CHAT
};
const RESPONSES: Route =
    Route { endpoint: Endpoint::Responses, speaks: Speaks::Responses, stages: SHORT, request: dialect::responses::request, ..CHAT };
const COUNT_TOKENS: Route = Route {
    stages: COUNT,
    request: dialect::anthropic::count_request,
    path: counting,
    answer: |_, body| dialect::anthropic::count_answer(body),
    ..MESSAGES
};

const EMBEDDINGS: Route = Route {
    endpoint: Endpoint::Embeddings,
    stages: SHORT,
    request: dialect::embeddings::request,
    path: |provider| only_openai(provider, "/embeddings"),
    answer: |_, body| dialect::embeddings::answer(body),
    ..CHAT
};
const MODERATIONS: Route = Route {
    endpoint: Endpoint::Moderations,
    request: dialect::moderations::request,
    path: |provider| only_openai(provider, "/moderations"),
    answer: |_, body| dialect::moderations::answer(body),
    ..EMBEDDINGS
};
const RERANK: Route = Route {
    endpoint: Endpoint::Rerank,
    request: dialect::rerank::request,
    path: |provider| only_openai(provider, "/rerank"),
    answer: |_, body| dialect::rerank::answer(body),
    ..EMBEDDINGS
};
/// In the Anthropic dialect where the request has an `anthropic-version`, see [`Route::spoken`].
const MODELS: Route = Route { endpoint: Endpoint::Models, stages: LIST, path: |_| None, ..CHAT };

/// What generates can go to any provider.
const fn generation(provider: Speaks) -> Option<&'static str> {
    match provider {
        Speaks::Openai => Some("/chat/completions"),
        Speaks::Anthropic => Some("/messages"),
        Speaks::Responses => Some("/responses"),
    }
}

fn generated(provider: Speaks, body: &[u8]) -> Result<Answer, &'static str> {
    match provider {
        Speaks::Responses => dialect::responses::answer(body),
        Speaks::Openai | Speaks::Anthropic => dialect::answer(provider.dialect(), body),
    }
}

/// Only Anthropic's API counts tokens.
fn counting(provider: Speaks) -> Option<&'static str> {
    (provider == Speaks::Anthropic).then_some("/messages/count_tokens")
}

/// Anthropic's API has nothing of the kind.
fn only_openai(provider: Speaks, path: &'static str) -> Option<&'static str> {
    (provider == Speaks::Openai).then_some(path)
}

const ROUTES: &[(&str, Route)] = &[
    ("/v1/chat/completions", CHAT),
    ("/v1/messages", MESSAGES),
    ("/v1/messages/count_tokens", COUNT_TOKENS),
    ("/v1/responses", RESPONSES),
    ("/v1/embeddings", EMBEDDINGS),
    ("/v1/moderations", MODERATIONS),
    ("/v1/rerank", RERANK),
];

/// The route of a request; `path` without its query. `None`: not proxium's.
#[must_use]
pub fn route(method: &str, path: &str) -> Option<Route> {
    match method {
        "POST" => ROUTES.iter().find(|(known, _)| *known == path).map(|(_, route)| *route),
        "GET" => path.strip_prefix(MODELS_PATH).filter(|rest| rest.is_empty() || rest.starts_with('/')).map(|_| MODELS),
        _ => None,
    }
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
    fn the_short_path_reserves_before_it_resolves_and_has_no_lookup() {
        for path in ["/v1/embeddings", "/v1/moderations", "/v1/rerank", "/v1/responses"] {
            let route = route("POST", path).unwrap();
            let at = |name| route.stages.iter().position(|stage| *stage == name);
            assert!(at(StageName::Authenticate) < at(StageName::Reserve) && at(StageName::Reserve) < at(StageName::Resolve));
            assert!(at(StageName::Resolve) < at(StageName::Attempt) && at(StageName::Attempt) < at(StageName::Record));
            assert!(at(StageName::Lookup).is_none() && route.reserves_first());
        }
        assert!(!CHAT.reserves_first() && !MESSAGES.reserves_first());
    }

    #[test]
    fn only_known_paths_and_methods_are_ours() {
        assert_eq!(route("POST", "/v1/chat/completions").unwrap().endpoint, Endpoint::Chat);
        for path in ["/v1/models", "/v1/models/gpt-5", "/v1/models/openai/gpt-5"] {
            assert_eq!(route("GET", path).unwrap().endpoint, Endpoint::Models);
        }
        for (method, path) in [
            ("POST", "/v1/models"),
            ("DELETE", "/v1/models/m"),
            ("GET", "/v1/models2"),
            ("GET", "/v1/chat/completions"),
            ("POST", "/v1/chat/completions/"),
            ("POST", "/v1/files"),
            ("POST", "/"),
        ] {
            assert!(route(method, path).is_none());
        }
    }
}
