//! The text by which a request may be near another, and all else of it, in which the two must be the same.

use crate::dialect::NOT_IN_CACHE_KEY;
use crate::json::Document;
use crate::value::written;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Models that embed cut long texts: two that begin alike would look the same.
pub const MAX_BYTES: usize = 2_000;

/// What a request asks last, apart from the rest.
#[derive(Debug, PartialEq, Eq)]
pub struct Question {
    /// The text of the final user message.
    pub text: String,
    /// The canonical request without it.
    pub rest: Vec<u8>,
}

impl Question {
    /// Reads it. `None` where an answer to another question can never do: the last message is not the user's, or is more than text (a tool's
    /// result, a file), or there are images anywhere, or the text is empty or too long.
    #[must_use]
    pub fn of(body: &Document) -> Option<Self> {
        if body.images > 0 {
            return None;
        }
        let messages: Vec<&RawValue> = serde_json::from_str(body.member("messages")?).ok()?;
        let (last, before) = messages.split_last()?;
        let mut last: Map<String, Value> = serde_json::from_str(last.get()).ok()?;
        if last.get("role")?.as_str()? != "user" {
            return None;
        }
        let text = taken(last.get_mut("content")?)?;
        if text.trim().is_empty() || text.len() > MAX_BYTES {
            return None;
        }
        let last = written(&Value::Object(last));
        let messages: Vec<&str> = before.iter().map(|message| message.get()).chain([last.as_str()]).collect();
        let rest = body.edited(&[("messages", Some(&format!("[{}]", messages.join(","))))]);
        Some(Self { text, rest: Document::read(rest, NOT_IN_CACHE_KEY).ok()?.canonical })
    }
}

/// The last text of a user, cut where it is long: what a classifier is shown.
#[must_use]
pub fn last_user_text(body: &Document) -> String {
    let messages: Vec<&RawValue> = body.member("messages").and_then(|messages| serde_json::from_str(messages).ok()).unwrap_or_default();
    let text = |message: &&RawValue| {
        let message: Value = serde_json::from_str(message.get()).ok()?;
        let of_part = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
        let text = match message.get("content").filter(|_| message.get("role").is_some_and(|role| role == "user"))? {
            Value::String(text) => text.clone(),
            Value::Array(parts) => parts.iter().filter_map(of_part).collect::<Vec<_>>().join("\n"),
            _ => String::new(),
        };
        Some(text).filter(|text| !text.trim().is_empty())
    };
    let text = messages.iter().rev().find_map(text).unwrap_or_default();
    let end = (0..=text.len().min(MAX_BYTES)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    text.get(..end).unwrap_or_default().to_owned()
}

/// Takes the text out of a message's content; nothing if there is more than text.
fn taken(content: &mut Value) -> Option<String> {
    match content {
        Value::String(text) => Some(std::mem::take(text)),
        Value::Array(parts) => {
            let mut texts = Vec::new();
            for part in parts {
                let part = part.as_object_mut().filter(|part| part.get("type").is_some_and(|kind| kind == "text"))?;
                match part.get_mut("text") {
                    Some(Value::String(text)) => texts.push(std::mem::take(text)),
                    _ => return None,
                }
            }
            Some(texts.join("\n"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn question(messages: &str) -> Option<Question> {
        let body = format!(r#"{{"model":"m","temperature":0,"messages":[{messages}]}}"#);
        Question::of(&Document::read(body.into_bytes(), NOT_IN_CACHE_KEY).unwrap())
    }

    #[test]
    fn only_the_final_users_text_is_set_apart() {
        let one = question(r#"{"role":"system","content":"be brief"},{"role":"user","content":"one"}"#).unwrap();
        let two = question(r#"{"role":"system","content":"be brief"},{"content":"two","role":"user"}"#).unwrap();
        assert_eq!((one.text.as_str(), two.text.as_str()), ("one", "two"));
        assert_eq!(one.rest, two.rest);
        for other in [
            r#"{"role":"system","content":"be long"},{"role":"user","content":"one"}"#,
            r#"{"role":"user","content":"one"}"#,
            r#"{"role":"system","content":"be brief"},{"role":"user","name":"ann","content":"one"}"#,
            r#"{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text","text":"one"}]}"#,
        ] {
            assert_ne!(question(other).unwrap().rest, one.rest, "{other}");
        }
        assert_eq!(question(r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#).unwrap().text, "a\nb");
    }

    #[test]
    fn where_another_answer_cannot_do_there_is_no_question() {
        let long = format!(r#"{{"role":"user","content":"{}"}}"#, "x".repeat(MAX_BYTES + 1));
        for none in [
            r#"{"role":"assistant","content":"x"}"#,
            r#"{"role":"user","content":"x"},{"role":"tool","tool_call_id":"1","content":"42"}"#,
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"42"},{"type":"text","text":"x"}]}"#,
            r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}},{"type":"text","text":"x"}]}"#,
            r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]},{"role":"user","content":"x"}"#,
            r#"{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}"#,
            r#"{"role":"user","content":"  "}"#,
            r#"{"role":"user","content":null}"#,
            r#"{"content":"x"}"#,
            &long,
        ] {
            assert_eq!(question(none), None, "{none}");
        }
    }
}
