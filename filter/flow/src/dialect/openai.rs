//! The OpenAI dialect. Shapes: platform.openai.com/docs/api-reference/chat, as of 2026.

use crate::json::Document;
use crate::refusal::Refusal;
use proxium_wire::Usage;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Top-level members that do not change an answer's content, left out of the cache key.
pub const NOT_IN_CACHE_KEY: &[&str] = &["model", "stream", "stream_options", "user", "metadata"];

/// The most messages of one call: more is a mistake of the caller (OpenAI itself takes 2,048).
pub const MAX_MESSAGES: usize = 4_096;
const MAX_CHOICES: u64 = 128;

/// A chat request.
#[derive(Debug)]
pub struct ChatRequest {
    /// The model, tier or rule the client names.
    pub model: String,
    /// Answers wanted.
    pub choices: u64,
    /// The client's own limit of output tokens per answer.
    pub max_output_tokens: Option<u64>,
    /// The client's tag for its end user; empty: none.
    pub user: String,
}

impl ChatRequest {
    /// Reads what proxium acts on.
    ///
    /// # Errors
    /// A 400 that names the member.
    pub fn read(body: &Document) -> Result<Self, Refusal> {
        let model: String = typed(body, "model", "a string")?.ok_or_else(|| Refusal::invalid("model", "`model` is required."))?;
        if model.is_empty() || model.len() > 256 {
            return Err(Refusal::invalid("model", "`model` must be 1 to 256 bytes long."));
        }
        let messages: Vec<&RawValue> =
            typed(body, "messages", "an array")?.ok_or_else(|| Refusal::invalid("messages", "`messages` is required."))?;
        if messages.is_empty() || messages.len() > MAX_MESSAGES {
            return Err(Refusal::invalid(
                "messages",
                format!("`messages` must have 1 to {MAX_MESSAGES} elements; it has {}.", messages.len()),
            ));
        }
        if messages.iter().any(|message| !message.get().starts_with('{')) {
            return Err(Refusal::invalid("messages", "Every element of `messages` must be an object."));
        }
        let stream: Option<bool> = typed(body, "stream", "a boolean")?;
        if stream == Some(true) {
            return Err(Refusal::invalid("stream", "Streams are not served yet. Send `\"stream\": false`."));
        }
        let choices = typed(body, "n", "a whole number")?.unwrap_or(1);
        if !(1..=MAX_CHOICES).contains(&choices) {
            return Err(Refusal::invalid("n", format!("`n` must be 1 to {MAX_CHOICES}.")));
        }
        let completion: Option<u64> = typed(body, "max_completion_tokens", "a whole number")?;
        let max_output_tokens = completion.or(typed(body, "max_tokens", "a whole number")?);
        let user: Option<String> = typed(body, "user", "a string")?;
        Ok(Self { model, choices, max_output_tokens, user: user.unwrap_or_default() })
    }
}

fn typed<'a, T: Deserialize<'a>>(body: &'a Document, name: &str, what: &str) -> Result<Option<T>, Refusal> {
    match body.member(name) {
        None => Ok(None),
        Some(text) => serde_json::from_str(text).map(Some).map_err(|_| Refusal::invalid(name, format!("`{name}` must be {what}."))),
    }
}

/// A whole answer that can be returned.
#[derive(Debug, PartialEq, Eq)]
pub struct ChatAnswer {
    /// The tokens, if the provider told them.
    pub usage: Option<Usage>,
    /// Every choice ended by itself: the answer may be cached.
    pub complete: bool,
    /// Bytes of the generated messages, for an estimate.
    pub message_bytes: u64,
}

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

#[derive(Deserialize)]
struct UsageBody {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<InputDetails>,
    completion_tokens_details: Option<OutputDetails>,
}

#[derive(Deserialize)]
struct InputDetails {
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct OutputDetails {
    reasoning_tokens: Option<u64>,
}

impl ChatAnswer {
    /// Reads the body of a 2xx.
    ///
    /// # Errors
    /// The word for what makes it no answer: `empty_body`, `not_json`, `error_in_200`, `no_choices`.
    pub fn read(body: &[u8]) -> Result<Self, &'static str> {
        if body.trim_ascii().is_empty() {
            return Err("empty_body");
        }
        let body: Body<'_> = serde_json::from_slice(body).map_err(|_| "not_json")?;
        if body.error.is_some() {
            return Err("error_in_200");
        }
        if body.choices.is_empty() {
            return Err("no_choices");
        }
        let complete =
            body.choices.iter().all(|choice| matches!(choice.finish_reason.as_deref(), Some("stop" | "tool_calls" | "function_call")));
        let message_bytes = body.choices.iter().filter_map(|choice| choice.message).map(|message| message.get().len() as u64).sum();
        let usage = body.usage.and_then(|usage| serde_json::from_str::<UsageBody>(usage.get()).ok()).and_then(|usage| usage.read());
        Ok(Self { usage, complete, message_bytes })
    }
}

impl UsageBody {
    /// `prompt_tokens` includes the cached ones; an explicit zero is a zero.
    fn read(&self) -> Option<Usage> {
        let (input, output) = (self.prompt_tokens, self.completion_tokens);
        if input.is_none() && output.is_none() {
            return None;
        }
        let input = input.unwrap_or_default();
        let cached_input = self.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens).unwrap_or_default().min(input);
        let reasoning = self.completion_tokens_details.as_ref().and_then(|details| details.reasoning_tokens).unwrap_or_default();
        Some(Usage { input: input - cached_input, cached_input, output: output.unwrap_or_default(), reasoning, ..Usage::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn request(text: &str) -> Result<ChatRequest, Refusal> {
        ChatRequest::read(&Document::read(text.as_bytes().to_vec(), NOT_IN_CACHE_KEY).unwrap())
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

    fn answer(text: &str) -> Result<ChatAnswer, &'static str> {
        ChatAnswer::read(text.as_bytes())
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
