//! The OpenAI dialect. Shapes: platform.openai.com/docs/api-reference/chat, as of 2026.

use super::{Answer, Request, messages, model, typed, typed_in};
use crate::json::Document;
use crate::refusal::Refusal;
use crate::stream::usage::OpenaiUsage;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The most messages of one call: more is a mistake of the caller (OpenAI itself takes 2,048).
pub const MAX_MESSAGES: usize = 4_096;
const MAX_CHOICES: u64 = 128;

/// Reads what proxium acts on in a chat request.
///
/// # Errors
/// A 400 that names the member.
pub fn request(body: &Document) -> Result<Request, Refusal> {
    let model = model(body)?;
    messages(body, MAX_MESSAGES)?;
    let stream: Option<bool> = typed(body, "stream", "a boolean")?;
    let include_usage: Option<bool> = typed_in(body, "stream_options", "include_usage", "an object whose `include_usage` is a boolean")?;
    let choices = typed(body, "n", "a whole number")?.unwrap_or(1);
    if !(1..=MAX_CHOICES).contains(&choices) {
        return Err(Refusal::invalid("n", format!("`n` must be 1 to {MAX_CHOICES}.")));
    }
    let completion: Option<u64> = typed(body, "max_completion_tokens", "a whole number")?;
    let max_output_tokens = completion.or(typed(body, "max_tokens", "a whole number")?);
    let user: Option<String> = typed(body, "user", "a string")?;
    Ok(Request {
        model,
        choices,
        max_output_tokens,
        user: user.unwrap_or_default(),
        stream: stream.unwrap_or_default(),
        include_usage: include_usage.unwrap_or_default(),
        ..Request::default()
    })
}

/// Derived, as few others: members in members, taken one by one, would be a second walk over the text of nearly every answer.
#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    /// Kept unread: a usage that makes no sense must not cost the client its answer.
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    finish_reason: Option<String>,
}

/// Reads the body of a 2xx that is not empty.
///
/// # Errors
/// The word for what makes it no answer: `not_json`, `error_in_200`, `no_choices`.
pub fn answer(body: &[u8]) -> Result<Answer, &'static str> {
    let body: Body<'_> = crate::json::parse(body).map_err(|_| "not_json")?;
    if body.error.is_some() {
        return Err("error_in_200");
    }
    if body.choices.is_empty() {
        return Err("no_choices");
    }
    let complete = body.choices.iter().all(|choice| choice.finish_reason.as_deref().is_some_and(is_natural_end));
    let message_bytes = body.choices.iter().filter_map(|choice| choice.message).map(|message| message.get().len() as u64).sum();
    Ok(Answer { usage: OpenaiUsage::of(body.usage), complete, message_bytes, ..Answer::default() })
}

/// The model ended by itself: such an answer may be cached.
#[must_use]
pub fn is_natural_end(finish_reason: &str) -> bool {
    matches!(finish_reason, "stop" | "tool_calls" | "function_call")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::NOT_IN_CACHE_KEY;
    use proxium_wire::Usage;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn request(text: &str) -> Result<Request, Refusal> {
        super::request(&Document::read(text.as_bytes().to_vec(), NOT_IN_CACHE_KEY).unwrap())
    }

    #[test]
    fn a_wrong_type_is_refused_by_name() {
        let ok = r#""messages":[{}],"model":"m""#;
        for (text, name) in [
            (r#"{"messages":[{}]}"#.to_owned(), "model"),
            (r#"{"messages":[{}],"model":7}"#.to_owned(), "model"),
            (r#"{"model":"m"}"#.to_owned(), "messages"),
            (r#"{"model":"m","messages":"hi"}"#.to_owned(), "messages"),
            (r#"{"model":"m","messages":[]}"#.to_owned(), "messages"),
            (r#"{"model":"m","messages":["hi"]}"#.to_owned(), "messages"),
            (format!(r#"{{"model":"m","messages":[{}{{}}]}}"#, "{},".repeat(9_999)), "messages"),
            (format!(r#"{{{ok},"n":0}}"#), "n"),
            (format!(r#"{{{ok},"n":1.5}}"#), "n"),
            (format!(r#"{{{ok},"n":1000000000}}"#), "n"),
            (format!(r#"{{{ok},"max_tokens":-1}}"#), "max_tokens"),
            (format!(r#"{{{ok},"max_tokens":99999999999999999999999}}"#), "max_tokens"),
            (format!(r#"{{{ok},"stream":"yes"}}"#), "stream"),
            (format!(r#"{{{ok},"user":5}}"#), "user"),
            (format!(r#"{{{ok},"stream_options":true}}"#), "stream_options"),
        ] {
            match request(&text) {
                Err(Refusal::InvalidRequest { param, .. }) => assert_eq!(param.as_deref(), Some(name), "{text}"),
                other => panic!("{text} gave {other:?}"),
            }
        }
    }

    #[test]
    fn null_is_absent_and_the_newer_limit_wins() {
        let read = request(r#"{"messages":[{}],"model":"m","n":null,"max_tokens":9,"max_completion_tokens":7,"stream":null}"#).unwrap();
        assert_eq!((read.choices, read.max_output_tokens), (1, Some(7)));
    }

    #[test]
    fn a_stream_and_its_wish_for_usage_are_read() {
        let read = |more: &str| {
            let read = request(&format!(r#"{{"messages":[{{}}],"model":"m"{more}}}"#)).unwrap();
            (read.stream, read.include_usage)
        };
        assert_eq!(read(""), (false, false));
        assert_eq!(read(r#","stream":true,"stream_options":null"#), (true, false));
        assert_eq!(read(r#","stream":true,"stream_options":{"include_usage":false}"#), (true, false));
        assert_eq!(read(r#","stream":true,"stream_options":{"include_usage":true,"x":1}"#), (true, true));
    }

    fn answer(text: &str) -> Result<Answer, &'static str> {
        crate::dialect::answer(proxium_wire::Dialect::Openai, text.as_bytes())
    }

    #[test]
    fn what_is_no_answer_has_a_word() {
        for (text, word) in [
            ("", "empty_body"),
            (" \n", "empty_body"),
            ("<html></html>", "not_json"),
            (r#"{"error":{"message":"x"}}"#, "error_in_200"),
            (r#"{"choices":[]}"#, "no_choices"),
            ("{}", "no_choices"),
        ] {
            assert_eq!(answer(text), Err(word));
        }
        assert!(answer(r#"{"error":null,"choices":[{"finish_reason":"stop"}]}"#).is_ok());
    }

    #[test]
    fn cached_tokens_are_part_of_the_prompt_and_zero_is_zero() {
        let usage = |text: &str| answer(&format!(r#"{{"choices":[{{"finish_reason":"stop"}}],"usage":{text}}}"#)).unwrap().usage;
        assert_eq!(
            usage(
                r#"{"prompt_tokens":100,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":64},"completion_tokens_details":{"reasoning_tokens":5}}"#
            ),
            Some(Usage { input: 36, cached_input: 64, output: 9, reasoning: 5, ..Usage::default() })
        );
        assert_eq!(
            usage(r#"{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":9}}"#),
            Some(Usage { cached_input: 3, ..Usage::default() })
        );
        assert_eq!(
            usage(r#"{"prompt_tokens":100,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":60,"cache_write_tokens":30}}"#),
            Some(Usage { input: 10, cached_input: 60, cache_write_5m: 30, output: 1, ..Usage::default() })
        );
        assert_eq!(usage(r#"{"prompt_tokens":0,"completion_tokens":0,"prompt_tokens_details":null}"#), Some(Usage::default()));
        assert_eq!(usage("null"), None);
        assert_eq!(usage("{}"), None);
        assert_eq!(usage(r#"{"prompt_tokens":"many"}"#), None);
    }

    #[test]
    fn only_a_natural_end_is_complete() {
        let complete = |reasons: &[&str]| {
            let choices: Vec<String> = reasons.iter().map(|reason| format!(r#"{{"finish_reason":"{reason}"}}"#)).collect();
            answer(&format!(r#"{{"choices":[{}]}}"#, choices.join(","))).unwrap().complete
        };
        assert!(complete(&["stop", "tool_calls"]));
        assert!(!complete(&["stop", "length"]));
        assert!(!complete(&["content_filter"]));
    }
}
