//! Every way proxium itself says no, with its status, its code and what the caller can do about it.

use crate::json::{Fault, MAX_DEPTH};
use crate::message::{Headers, Response};
use crate::value::{json, written};
use proxium_wire::{Dialect, Limit, RateLimit, Refused, Window};

/// A refusal or failure that proxium answers itself. Messages tell the reader what to do; none holds a key, a prompt or a credential.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// 400: the body or a header is not usable; `param` names the member or header.
    InvalidRequest {
        /// What is wrong and what would be right.
        message: String,
        /// The member or header, when one is at fault.
        param: Option<String>,
    },
    /// 401: no key.
    MissingKey,
    /// 401: not a key, or no longer.
    InvalidKey,
    /// 403: the key may use no model of the chain.
    ModelNotAllowed(String),
    /// 404: no rule, chain or model of this name.
    ModelNotFound(String),
    /// 404: no response of this id that the project can go on from.
    ResponseNotFound(String),
    /// 404: not a path of proxium (with `other_paths: not_found`).
    PathNotFound,
    /// 413: the body is larger than this many bytes.
    RequestTooLarge(u64),
    /// 429: a cap or ceiling.
    Capped(Box<Refused>),
    /// 502: the deadline ran out before anything was sent to the client.
    DeadlineExceeded,
    /// 429, 503 or 502: every entry failed.
    ProvidersFailed(Box<ProvidersFailed>),
    /// 503: control plane or Redis cannot answer.
    ControlPlaneUnavailable,
    /// 503: too many bodies and answers at once in this VM, or too many settlements waiting.
    Overloaded,
}

/// Why every entry failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvidersFailed {
    /// 429, 502 or 503.
    pub status: u16,
    /// Each attempt's model and outcome.
    pub attempts: Vec<(String, String)>,
    /// The smallest wait a provider, rest or breaker named.
    pub retry_after_ms: Option<u64>,
}

impl Refusal {
    /// A 400 about a member of the body or a header.
    #[must_use]
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::InvalidRequest { message: message.into(), param: Some(param.into()) }
    }

    fn status(&self) -> u16 {
        match self {
            Self::InvalidRequest { .. } => 400,
            Self::MissingKey | Self::InvalidKey => 401,
            Self::ModelNotAllowed(_) => 403,
            Self::ModelNotFound(_) | Self::ResponseNotFound(_) | Self::PathNotFound => 404,
            Self::RequestTooLarge(_) => 413,
            Self::Capped(_) => 429,
            Self::DeadlineExceeded => 502,
            Self::ProvidersFailed(failed) => failed.status,
            Self::ControlPlaneUnavailable | Self::Overloaded => 503,
        }
    }

    /// The machine-readable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidRequest { .. } => "invalid_request",
            Self::MissingKey => "missing_key",
            Self::InvalidKey => "invalid_key",
            Self::ModelNotAllowed(_) => "model_not_allowed",
            Self::ModelNotFound(_) => "model_not_found",
            Self::ResponseNotFound(_) => "response_not_found",
            Self::PathNotFound => "not_found",
            Self::RequestTooLarge(_) => "request_too_large",
            Self::Capped(refused) if refused.of_sender => "source_capped",
            Self::Capped(_) => "tenant_capped",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::ProvidersFailed(_) => "providers_failed",
            Self::ControlPlaneUnavailable => "control_plane_unavailable",
            Self::Overloaded => "overloaded",
        }
    }

    fn message(&self) -> String {
        match self {
            Self::InvalidRequest { message, .. } => message.clone(),
            Self::MissingKey => "No key was sent. Send your proxium key as `Authorization: Bearer px_...` or as `x-api-key`.".into(),
            Self::InvalidKey => "This key is unknown, revoked or expired. Check it, or ask for a new one.".into(),
            Self::ModelNotAllowed(model) => format!(
                "This key may not use `{model}`, nor any model that `{model}` stands for. Ask for a key that may, or name another model."
            ),
            Self::ModelNotFound(model) => format!("There is no model, tier or rule named `{model}` for this endpoint. Check the name."),
            Self::ResponseNotFound(id) => format!(
                "There is no response `{id}` that this project can go on from: its provider keeps none, or it is too old. Send the conversation in `input`."
            ),
            Self::PathNotFound => "There is nothing at this path and method.".into(),
            Self::RequestTooLarge(limit) => format!("The request body is larger than {limit} bytes. Send a smaller one."),
            Self::Capped(refused) => capped_message(refused),
            Self::DeadlineExceeded => {
                "No model answered before the deadline. Give more time in `x-proxium-timeout-ms`, or try again.".into()
            }
            Self::ProvidersFailed(failed) => {
                let attempts: Vec<String> = failed.attempts.iter().map(|(model, outcome)| format!("{model}: {outcome}")).collect();
                format!("No model could answer ({}). Try again later.", attempts.join("; "))
            }
            Self::ControlPlaneUnavailable => "Keys and budgets cannot be checked right now. Try again in a moment.".into(),
            Self::Overloaded => "This gateway holds too many large calls right now. Try again in a moment.".into(),
        }
    }

    fn param(&self) -> Option<String> {
        match self {
            Self::InvalidRequest { param, .. } => param.clone(),
            Self::ModelNotAllowed(_) | Self::ModelNotFound(_) => Some("model".into()),
            Self::ResponseNotFound(_) => Some("previous_response_id".into()),
            Self::Capped(refused) => Some(refused.limit().name().into()),
            _ => None,
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Capped(refused) => refused.retry_after_ms,
            Self::ProvidersFailed(failed) => failed.retry_after_ms,
            Self::ControlPlaneUnavailable | Self::Overloaded => Some(1_000),
            _ => None,
        }
    }

    /// The answer in the caller's dialect.
    #[must_use]
    pub fn response(&self, dialect: Dialect, request_id: &str) -> Response {
        let status = self.status();
        let kind = kind(status, dialect);
        let body = match dialect {
            Dialect::Openai => json!({"error": {"message": self.message(), "type": kind, "param": self.param(), "code": self.code()}}),
            Dialect::Anthropic => {
                json!({"type": "error", "error": {"type": kind, "message": self.message(), "code": self.code(), "param": self.param()}, "request_id": request_id})
            }
        };
        let mut headers = Headers::new();
        headers.add("content-type", "application/json");
        headers.add("x-proxium-request-id", request_id);
        if status == 401 {
            headers.add("www-authenticate", "Bearer");
        }
        if let Some(wait_ms) = self.retry_after_ms() {
            headers.add("retry-after", wait_ms.div_ceil(1_000).max(1).to_string());
        }
        if let Self::Capped(refused) = self {
            add_rate_limit(&mut headers, &refused.rate_limit);
        }
        Response { status, headers, body: written(&body).into_bytes(), code: Some(self.code()) }
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        let message = match fault {
            Fault::NotUtf8(at) => format!("The body is not UTF-8 (byte {at})."),
            Fault::NotJson(error) => format!("The body is not JSON: {error}."),
            Fault::NotAnObject => "The body must be a JSON object.".into(),
            Fault::TooDeep => format!("The body is nested deeper than {MAX_DEPTH} levels."),
            Fault::DuplicateMember(name) => format!("The body names `{name}` twice in one object."),
            Fault::NumberTooLarge(number) => format!("The number {number} is too large."),
        };
        Self::InvalidRequest { message, param: None }
    }
}

fn capped_message(refused: &Refused) -> String {
    let whose = if refused.of_sender { "this sender" } else { "this key" };
    match refused.limit() {
        Limit::MonthlyCap => "The project's monthly cap is reached, or this call could exceed it. Raise the cap, ask for fewer tokens, or wait for the next month.".into(),
        Limit::CallsPerHour => format!("The calls per hour of {whose} are used up. Wait, or raise the ceiling."),
        Limit::RequestsPerMinute => format!("The requests per minute of {whose} are used up. Wait, or raise the ceiling."),
        Limit::TokensPerMinute => format!("The tokens per minute of {whose} do not allow a call this large now. Wait, ask for fewer tokens, or raise the ceiling."),
        Limit::MaxParallelCalls => format!("{whose} has as many calls at once as it may. Wait for one to end."),
    }
}

/// The error type that the dialect's own API uses with this status.
#[must_use]
pub(crate) fn kind(status: u16, dialect: Dialect) -> &'static str {
    match (status, dialect) {
        (401, _) => "authentication_error",
        (403, _) => "permission_error",
        (404, Dialect::Anthropic) => "not_found_error",
        (413, Dialect::Anthropic) => "request_too_large",
        (429, _) => "rate_limit_error",
        (503 | 529, Dialect::Anthropic) => "overloaded_error",
        (500.., _) => "api_error",
        _ => "invalid_request_error",
    }
}

/// Adds the `x-ratelimit-*` headers of the ceilings that exist.
pub fn add_rate_limit(headers: &mut Headers, rate_limit: &RateLimit) {
    let mut add = |kind: &str, window: &Window| {
        headers.add(format!("x-ratelimit-limit-{kind}"), window.limit.to_string());
        headers.add(format!("x-ratelimit-remaining-{kind}"), window.remaining.to_string());
        headers.add(format!("x-ratelimit-reset-{kind}"), format!("{}s", window.reset_ms.div_ceil(1_000)));
    };
    if let Some(window) = &rate_limit.requests {
        add("requests", window);
    }
    if let Some(window) = &rate_limit.tokens {
        add("tokens", window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn body(refusal: &Refusal, dialect: Dialect) -> serde_json::Value {
        serde_json::from_slice(&refusal.response(dialect, "req_1").body).unwrap()
    }

    #[test]
    fn each_dialect_has_its_own_shape() {
        let refusal = Refusal::ModelNotFound("gpt-9".into());
        let openai = body(&refusal, Dialect::Openai);
        assert_eq!(
            (&openai["error"]["code"], &openai["error"]["type"], &openai["error"]["param"]),
            (&json!("model_not_found"), &json!("invalid_request_error"), &json!("model"))
        );
        let anthropic = body(&refusal, Dialect::Anthropic);
        assert_eq!(
            (refusal.response(Dialect::Openai, "req_1").code, &anthropic["error"]["code"]),
            (Some("model_not_found"), &json!("model_not_found"))
        );
        assert_eq!(
            (&anthropic["type"], &anthropic["error"]["type"], &anthropic["request_id"]),
            (&json!("error"), &json!("not_found_error"), &json!("req_1"))
        );
    }

    #[test]
    fn a_401_names_the_scheme() {
        for refusal in [Refusal::MissingKey, Refusal::InvalidKey] {
            let response = refusal.response(Dialect::Openai, "req_1");
            assert_eq!((response.status, response.headers.get("www-authenticate")), (401, Some("Bearer")));
        }
    }

    #[test]
    fn a_cap_names_its_limit_and_when_to_come_back() {
        let window = Window { limit: 10, remaining: 0, reset_ms: 11_001 };
        let refused = Refused {
            limit: Limit::RequestsPerMinute.into(),
            of_sender: true,
            retry_after_ms: Some(1_001),
            rate_limit: RateLimit { requests: Some(window), tokens: None },
        };
        let refusal = Refusal::Capped(Box::new(refused));
        let response = refusal.response(Dialect::Openai, "req_1");
        assert_eq!(response.headers.get("retry-after"), Some("2"));
        assert_eq!(response.headers.get("x-ratelimit-reset-requests"), Some("12s"));
        assert_eq!(response.headers.get("x-ratelimit-limit-tokens"), None);
        let error = &body(&refusal, Dialect::Openai)["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!("source_capped"), &json!("requests_per_minute")));
    }
}
