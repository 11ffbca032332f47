//! Names that the filter counts under and that Envoy's configuration takes apart.
//!
//! A metric of the filter is named `<metric>.<label>.<value>.<label>.<value>…`; Envoy's `stats_tags` make labels of it. A value holds no
//! dot and is no label's name. Names and labels are OpenTelemetry's where its semantic conventions for generative AI have one, written as
//! Prometheus writes them: `gen_ai.server.request.duration` in milliseconds is `gen_ai_server_request_duration_milliseconds`.

/// Every label there is.
pub const LABELS: [&str; 14] = [
    "endpoint",
    "status",
    "code",
    "cache",
    "call",
    "outcome",
    "state",
    "breaker",
    "provider",
    "model",
    "gen_ai_operation_name",
    "gen_ai_token_type",
    "gen_ai_provider_name",
    "gen_ai_response_model",
];

/// Tokens of a call, by type (`input`, `output`).
pub const TOKENS: &str = "gen_ai_client_token_usage";
/// From the request's head to the end of the answer.
pub const DURATION: &str = "gen_ai_server_request_duration_milliseconds";
/// From the request's head to a stream's first event.
pub const FIRST_TOKEN: &str = "gen_ai_server_time_to_first_token_milliseconds";
/// One attempt at a provider.
pub const ATTEMPT: &str = "gen_ai_client_operation_duration_milliseconds";
/// Ended calls by endpoint, status and code; `ok` where proxium did not refuse.
pub const CALLS: &str = "proxium_calls_total";
/// Answers by where they came from: `hit`, `miss`, …
pub const CACHE: &str = "proxium_cache_results_total";
/// Entries of plans that were tried or passed over.
pub const ATTEMPTS: &str = "proxium_attempts_total";
/// Breakers that opened, let a probe through, closed.
pub const BREAKER: &str = "proxium_breaker_changes_total";
/// A gauge: 0 closed, 1 half-open, 2 open.
pub const BREAKER_STATE: &str = "proxium_breaker_state";
/// A provider refused a credential.
pub const CREDENTIAL_REFUSED: &str = "proxium_credential_refused";
/// Settlements that are not acknowledged yet, a gauge.
pub const OUTBOX_PENDING: &str = "proxium_outbox_pending";
/// Settlements given up after an hour.
pub const OUTBOX_GIVEN_UP: &str = "proxium_outbox_given_up";
/// Calls of the control plane.
pub const CONTROL_PLANE: &str = "proxium_control_plane_milliseconds";
/// From a settlement to its acknowledgement.
pub const SETTLE_LAG: &str = "proxium_settle_lag_milliseconds";

/// The bounds of a histogram's buckets where Envoy's own (0.5 ms to an hour) do not fit: as OpenTelemetry advises.
pub const BUCKETS: [(&str, &[u32]); 2] = [
    (TOKENS, &[1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304]),
    (FIRST_TOKEN, &[5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1_000, 2_500, 5_000, 7_500, 10_000, 20_000]),
];

/// What the filter tells Envoy's access log, as filter state `wasm.proxium.<field>`.
pub const LOG_FIELDS: [&str; 11] =
    ["project", "key", "endpoint", "code", "model", "provider", "cache", "attempts", "input_tokens", "output_tokens", "cost_usd"];
