//! The Anthropic dialect. Shapes: platform.claude.com/docs/en/api/messages and the types of the Python SDK 2.14, as of October 2026.

use super::{Answer, Request, messages, model, typed, typed_in};
use crate::json::Document;
use crate::object::{body_members, optional};
use crate::refusal::Refusal;
use crate::stream::usage::AnthropicUsage;
use proxium_wire::Usage;

/// The most messages of one call; the API's own limit.
pub const MAX_MESSAGES: usize = 100_000;

/// Reads what proxium acts on in a `/v1/messages` request.
///
/// # Errors
/// A 400 that names the member.
pub fn request(body: &Document) -> Result<Request, Refusal> {
    let stream: Option<bool> = typed(body, "stream", "a boolean")?;
    let request = Request { stream: stream.unwrap_or_default(), ..count_request(body)? };
    match request.max_output_tokens {
        None => Err(Refusal::invalid("max_tokens", "`max_tokens` is required.")),
        // The API takes 0 to warm its cache without an answer; such a call has nothing to return, store or fail over.
        Some(0) => Err(Refusal::invalid("max_tokens", "`max_tokens` must be at least 1.")),
        Some(_) => Ok(request),
    }
}

/// Reads a `/v1/messages/count_tokens` request: the same, but that `max_tokens` may be left out and a count is never streamed.
///
/// # Errors
/// A 400 that names the member.
pub fn count_request(body: &Document) -> Result<Request, Refusal> {
    let model = model(body)?;
    messages(body, MAX_MESSAGES)?;
    if body.member("system").is_some_and(|system| !system.starts_with(['"', '['])) {
        return Err(Refusal::invalid("system", "`system` must be a string or an array of text blocks."));
    }
    let max_output_tokens = typed(body, "max_tokens", "a whole number")?;
    let user: Option<String> = typed_in(body, "metadata", "user_id", "an object whose `user_id` is a string")?;
    let user = user.unwrap_or_default();
    Ok(Request { model, choices: 1, max_output_tokens, user, include_usage: true, ..Request::default() })
}

/// Reads the body of a 2xx that is not empty.
///
/// # Errors
/// `not_json`, `error_in_200`, or `no_message` for JSON without an array of content. Empty content is an answer: a model may end its
/// turn without a word.
pub fn answer(body: &[u8]) -> Result<Answer, &'static str> {
    let [kind, error, content, stop_reason, usage] =
        body_members(body, ["type", "error", "content", "stop_reason", "usage"]).ok_or("not_json")?;
    let kind: Option<String> = optional(kind).ok_or("not_json")?;
    let stop_reason: Option<String> = optional(stop_reason).ok_or("not_json")?;
    if error.is_some() || kind.as_deref() == Some("error") {
        return Err("error_in_200");
    }
    let content = content.filter(|content| content.get().starts_with('[')).ok_or("no_message")?;
    Ok(Answer {
        usage: AnthropicUsage::of(usage),
        complete: stop_reason.as_deref().is_some_and(is_natural_end),
        message_bytes: content.get().len() as u64,
        ..Answer::default()
    })
}

/// Reads the count of a 2xx. It costs nothing.
///
/// # Errors
/// `empty_body`, `not_json`, or `no_count`.
pub fn count_answer(body: &[u8]) -> Result<Answer, &'static str> {
    if body.trim_ascii().is_empty() {
        return Err("empty_body");
    }
    let [count] = body_members(body, ["input_tokens"]).ok_or("not_json")?;
    optional::<u64>(count).ok_or("not_json")?.ok_or("no_count")?;
    Ok(Answer { usage: Some(Usage::default()), complete: true, ..Answer::default() })
}

/// The model ended by itself: such an answer may be cached.
#[must_use]
pub fn is_natural_end(stop_reason: &str) -> bool {
    matches!(stop_reason, "end_turn" | "tool_use" | "stop_sequence")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::NOT_IN_CACHE_KEY;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn document(text: &str) -> Document {
        Document::read(text.as_bytes().to_vec(), NOT_IN_CACHE_KEY).unwrap()
    }

    #[test]
    fn a_wrong_type_is_refused_by_name() {
        let ok = r#""messages":[{}],"model":"m""#;
        for (text, name) in [
            (r#"{"messages":[{}],"max_tokens":1}"#.to_owned(), "model"),
            (r#"{"model":"m","max_tokens":1}"#.to_owned(), "messages"),
            (r#"{"model":"m","messages":[1],"max_tokens":1}"#.to_owned(), "messages"),
            (format!("{{{ok}}}"), "max_tokens"),
            (format!(r#"{{{ok},"max_tokens":0}}"#), "max_tokens"),
            (format!(r#"{{{ok},"max_tokens":1.5}}"#), "max_tokens"),
            (format!(r#"{{{ok},"max_tokens":1,"stream":"yes"}}"#), "stream"),
            (format!(r#"{{{ok},"max_tokens":1,"system":{{}}}}"#), "system"),
            (format!(r#"{{{ok},"max_tokens":1,"metadata":{{"user_id":5}}}}"#), "metadata"),
        ] {
            match request(&document(&text)) {
                Err(Refusal::InvalidRequest { param, .. }) => assert_eq!(param.as_deref(), Some(name), "{text}"),
                other => panic!("{text} gave {other:?}"),
            }
        }
    }

    #[test]
    fn what_is_acted_on_is_read() {
        let text = r#"{"model":"m","messages":[{}],"max_tokens":64,"stream":true,"system":[],"metadata":{"user_id":"u","x":1}}"#;
        let read = request(&document(text)).unwrap();
        let (model, user) = ("m".into(), "u".into());
        let expected =
            Request { model, choices: 1, max_output_tokens: Some(64), user, stream: true, include_usage: true, ..Request::default() };
        assert_eq!(read, expected);
    }

    #[test]
    fn counting_needs_no_limit() {
        assert_eq!(count_request(&document(r#"{"model":"m","messages":[{}]}"#)).unwrap().max_output_tokens, None);
    }

    #[test]
    fn what_is_no_answer_has_a_word() {
        for (text, word) in [
            ("<html></html>", "not_json"),
            (r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#, "error_in_200"),
            (r#"{"error":{"message":"x"}}"#, "error_in_200"),
            ("{}", "no_message"),
            (r#"{"content":null}"#, "no_message"),
        ] {
            assert_eq!(answer(text.as_bytes()), Err(word));
        }
        assert!(answer(br#"{"content":[],"stop_reason":"end_turn"}"#).unwrap().complete);
    }

    #[test]
    fn cache_reads_and_writes_stand_beside_the_input_and_count_once() {
        let usage = |text: &str| answer(format!(r#"{{"content":[],"usage":{text}}}"#).as_bytes()).unwrap().usage;
        assert_eq!(
            usage(r#"{"input_tokens":3,"cache_creation_input_tokens":12304,"cache_read_input_tokens":0,"output_tokens":550}"#),
            Some(Usage { input: 3, cache_write_5m: 12_304, output: 550, ..Usage::default() })
        );
        assert_eq!(
            usage(r#"{"input_tokens":4,"cache_read_input_tokens":2455,"output_tokens":23}"#),
            Some(Usage { input: 4, cached_input: 2_455, output: 23, ..Usage::default() })
        );
        let split = r#"{"input_tokens":1,"cache_creation_input_tokens":30,"cache_creation":{"ephemeral_5m_input_tokens":10,"ephemeral_1h_input_tokens":20},"output_tokens":9,"output_tokens_details":{"thinking_tokens":4}}"#;
        assert_eq!(
            usage(split),
            Some(Usage { input: 1, cache_write_5m: 10, cache_write_1h: 20, output: 9, reasoning: 4, ..Usage::default() })
        );
        assert_eq!(
            usage(r#"{"cache_creation_input_tokens":30,"cache_creation":{"ephemeral_1h_input_tokens":20}}"#),
            Some(Usage { cache_write_5m: 10, cache_write_1h: 20, ..Usage::default() })
        );
        assert_eq!(usage(r#"{"input_tokens":0,"output_tokens":0,"cache_creation":null}"#), Some(Usage::default()));
        assert_eq!(usage("{}"), None);
        assert_eq!(usage(r#"{"input_tokens":"many"}"#), None);
    }

    #[test]
    fn only_a_natural_end_is_complete() {
        for (reason, complete) in [
            ("end_turn", true),
            ("tool_use", true),
            ("stop_sequence", true),
            ("max_tokens", false),
            ("refusal", false),
            ("pause_turn", false),
            ("model_context_window_exceeded", false),
        ] {
            assert_eq!(answer(format!(r#"{{"content":[],"stop_reason":"{reason}"}}"#).as_bytes()).unwrap().complete, complete, "{reason}");
        }
    }
}
