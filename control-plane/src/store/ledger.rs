//! Ledger records: one of each end of a call and of each change by hand, in the project's stream, all values text.
//!
//! | field | what |
//! |---|---|
//! | `id` | the reservation, which is the request id for a call of its own |
//! | `kind` | `call`, `hit` (from the cache), `expired` (never settled: its estimate), `correction` (signed: of an `expired` or by hand), `reset` |
//! | `key_id`, `source`, `end_user`, `endpoint` | who and where |
//! | `requested_model`, `resolved_model`, `model`, `provider` | named by the client; first of the chain; answered |
//! | `month`, `at_ms` | the period it was charged to, like `202611`; the instant of its admission by the project's clock |
//! | `cost_nano_usd` | their sum over a month, less what resets forgave, is what counts towards the month's cap |
//! | `calls`, `tokens` | what the key's windows counted; their sums agree |
//! | `input_tokens`, `cached_input_tokens`, `cache_write_5m_tokens`, `cache_write_1h_tokens`, `output_tokens`, `reasoning_tokens`, `searches` | usage |
//! | `estimated`, `abandoned`, `cached`, `charged` | `1` or `0`; `charged`: a hit that was not free |
//! | `hits` | how many a `hit` of a filter's own memory stands for; `id` names its batch then |
//! | `attempts` | `model outcome ms`, in order, comma between |
//! | `latency_ms`, `started_at_ms` | times, the second by the filter's clock |
//! | `window`, `forgiven_nano_usd`, `note` | of a `reset` or a correction by hand |
//!
//! A field that is not there is empty or 0.

use proxium_wire::{Attempt, Call, Endpoint, Settle, Usage};

/// A record's fields in order.
pub(super) type Fields = Vec<(&'static str, String)>;

/// Text that a client chose is cut to this many bytes: a ledger is no place to fill Redis from.
const MAX_TEXT: usize = 256;

/// The text of a number field that clients have no say in is short; this is for all else.
pub(super) fn text(of: &str) -> String {
    let end = (0..=of.len().min(MAX_TEXT)).rev().find(|&at| of.is_char_boundary(at)).unwrap_or(0);
    of.get(..end).unwrap_or_default().to_owned()
}

/// The catalog's name of an endpoint; empty for one that this version does not know.
pub(super) fn endpoint(call: &Call) -> &'static str {
    Endpoint::try_from(call.endpoint).map_or("", Endpoint::name)
}

fn flag(on: bool) -> String {
    String::from(if on { "1" } else { "0" })
}

fn attempts(of: &[Attempt]) -> String {
    let each: Vec<String> = of.iter().map(|attempt| format!("{} {} {}", attempt.model, attempt.outcome, attempt.ms)).collect();
    each.join(", ")
}

fn of_call(call: &Call) -> Fields {
    vec![
        ("end_user", text(&call.end_user)),
        ("endpoint", endpoint(call).to_owned()),
        ("requested_model", text(&call.requested_model)),
        ("resolved_model", text(&call.resolved_model)),
        ("started_at_ms", call.started_at_ms.to_string()),
    ]
}

/// What a settlement adds to the fields that the script writes itself (id, kind, key, month, cost, counts, input and output tokens).
pub(super) fn of_settle(settle: &Settle) -> Fields {
    let Usage { input: _, cached_input, cache_write_5m, cache_write_1h, output: _, reasoning, searches } = settle.usage;
    let mut fields = of_call(&settle.call);
    fields.extend([
        ("model", text(&settle.model)),
        ("provider", text(&settle.provider)),
        ("cached_input_tokens", cached_input.to_string()),
        ("cache_write_5m_tokens", cache_write_5m.to_string()),
        ("cache_write_1h_tokens", cache_write_1h.to_string()),
        ("reasoning_tokens", reasoning.to_string()),
        ("searches", searches.to_string()),
        ("estimated", flag(settle.estimated)),
        ("abandoned", flag(settle.abandoned)),
        ("cached", flag(false)),
        ("attempts", attempts(&settle.attempts)),
        ("latency_ms", settle.latency_ms.to_string()),
    ]);
    fields
}

/// What a free hit adds to the fields that the script writes itself.
pub(super) fn of_hit(call: &Call, model: &str) -> Fields {
    let mut fields = of_call(call);
    fields.extend([("model", text(model)), ("cached", flag(true)), ("charged", flag(false))]);
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(text("short"), "short");
        let long = "ß".repeat(200);
        assert_eq!(text(&format!("a{long}")).len(), 255);
    }
}
