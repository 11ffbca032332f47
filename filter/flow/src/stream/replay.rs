//! A unary answer becomes a stream of the same dialect: a stored answer for a client that streams.

use super::{replay_anthropic, replay_openai, replay_responses};
use crate::speaks::Speaks;
use crate::value::quoted;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// An object to write: its members are JSON already, kept as they came wherever they did.
#[derive(Clone, Default)]
pub(super) struct Object(BTreeMap<String, String>);

impl Object {
    /// With these members, as they came.
    pub(super) fn of<'a>(members: impl IntoIterator<Item = (&'a String, &'a &'a RawValue)>) -> Self {
        members.into_iter().fold(Self::default(), |object, (name, raw)| object.with(name, raw.get()))
    }

    /// With this member, in the place of one of that name.
    pub(super) fn with(mut self, name: &str, json: impl Into<String>) -> Self {
        self.0.insert(name.to_owned(), json.into());
        self
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Its JSON.
    pub(super) fn text(&self) -> String {
        let members: Vec<String> = self.0.iter().map(|(name, json)| format!("{}:{json}", quoted(name))).collect();
        format!("{{{}}}", members.join(","))
    }
}

/// The whole body of the stream, terminator included. OpenAI's usage chunk only if `include_usage`. `None`: not a unary answer.
#[must_use]
pub fn replay(client: Speaks, unary: &[u8], include_usage: bool) -> Option<Vec<u8>> {
    let unary = std::str::from_utf8(unary).ok()?;
    match client {
        Speaks::Openai => replay_openai::replay(unary, include_usage),
        Speaks::Anthropic => replay_anthropic::replay(unary),
        Speaks::Responses => replay_responses::replay(unary),
    }
}

/// A text comes in so many pieces at most.
const MAX_PIECES: usize = 128;

/// Writes an event for each piece of a text, which is a JSON string. The event is given as written `""` and as written `"x"`: all else in it
/// is the same for every piece, and need not be written anew for each.
pub(super) fn write_pieces(out: &mut Vec<u8>, text: &RawValue, [empty, filled]: [Vec<u8>; 2]) {
    let at = empty.iter().zip(&filled).take_while(|(one, other)| one == other).count();
    let (before, after) = empty.split_at(at);
    for piece in pieces(text.get()) {
        for part in [before, piece.as_bytes(), after] {
            out.extend_from_slice(part);
        }
    }
}

/// The words of a JSON string, one a piece while they are few, as a model would send them. A space is part of no escape.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or_default();
    let words = rest.split_inclusive(' ').count().div_ceil(MAX_PIECES);
    std::iter::from_fn(move || {
        let end = rest.match_indices(' ').nth(words.checked_sub(1)?).map_or(rest.len(), |(at, _)| at + 1);
        let (piece, left) = rest.split_at(end);
        rest = left;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::Reader;
    use crate::stream::{First, Fold, Meter};
    use serde_json::Value;
    use serde_json::json;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn round(client: Speaks, unary: &Value) -> (String, Value) {
        // Pretty: a body may span lines, an event's data must not.
        let stream = replay(client, serde_json::to_string_pretty(unary).unwrap().as_bytes(), true).unwrap();
        let (mut reader, mut fold, mut meter) = (Reader::new(), Fold::new(client.dialect(), 1 << 20), Meter::new(client.dialect()));
        for event in reader.push(&stream) {
            fold.event(&event);
            meter.event(&event);
        }
        assert!(meter.ended() && meter.first() == First::Good && reader.finish().is_none());
        (String::from_utf8(stream).unwrap(), serde_json::from_slice(&fold.finish().unwrap()).unwrap())
    }

    fn openai(choices: &Value) -> Value {
        json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "system_fingerprint": "fp", "service_tier": "default",
            "choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}}
        })
    }

    #[test]
    fn a_completion_survives_replay_and_fold() {
        for choices in [
            json!([{"index": 0, "message": {"role": "assistant", "content": "Hé\n😀", "refusal": null, "annotations": []}, "logprobs": null, "finish_reason": "stop"}]),
            json!([{"index": 0, "message": {"role": "assistant", "content": null, "refusal": "no"}, "finish_reason": "stop"}]),
            json!([{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}]),
            json!([{"index": 0, "message": {"role": "assistant", "content": null, "reasoning_content": "why", "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
                {"id": "b", "type": "function", "function": {"name": "g", "arguments": ""}},
                {"id": "c", "type": "custom", "custom": {"name": "h", "input": "text"}}
            ]}, "finish_reason": "tool_calls"}]),
            json!([
                {"index": 0, "message": {"role": "assistant", "content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": -0.25}], "refusal": null}, "finish_reason": "stop"},
                {"index": 1, "message": {"role": "assistant", "content": "b", "audio": {"id": "x", "data": "AA", "expires_at": 1}}, "finish_reason": "length"}
            ]),
        ] {
            let unary = openai(&choices);
            assert_eq!(round(Speaks::Openai, &unary).1, unary);
        }
    }

    #[test]
    fn the_usage_chunk_is_there_only_when_asked_for() {
        let unary = openai(&json!([{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}]));
        let (with, _) = round(Speaks::Openai, &unary);
        let events: Vec<&str> = with.split("\n\n").collect();
        assert!(events[events.len() - 3].contains(r#""choices":[]"#), "{with}");
        assert!(with.ends_with("data: [DONE]\n\n"));
        let without = replay(Speaks::Openai, unary.to_string().as_bytes(), false).unwrap();
        let without = String::from_utf8(without).unwrap();
        assert!(!without.contains("usage") && without.ends_with("data: [DONE]\n\n"), "{without}");
    }

    #[test]
    fn a_message_survives_replay_and_fold() {
        let unary = json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use", "stop_sequence": null,
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "Eq/+=="},
                {"type": "redacted_thinking", "data": "zz"},
                {"type": "text", "text": "Hé\n😀", "citations": [{"cited_text": "a"}, {"cited_text": "b"}]},
                {"type": "text", "text": "plain", "citations": null},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": [1, {"y": "z"}]}},
                {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
                {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
                {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"url": "u"}]}
            ],
            "usage": {"input_tokens": 3, "cache_read_input_tokens": 1, "cache_creation": {"ephemeral_5m_input_tokens": 0}, "output_tokens": 9}
        });
        let (stream, folded) = round(Speaks::Anthropic, &unary);
        assert_eq!(folded, unary);
        let names: Vec<&str> = stream.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
        assert_eq!(names[..4], ["message_start", "content_block_start", "content_block_delta", "content_block_delta"]);
        assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
        assert_eq!(names.iter().filter(|name| **name == "content_block_start").count(), 8);
        assert_eq!(names.iter().filter(|name| **name == "content_block_stop").count(), 8);
        let start = stream.lines().nth(1).unwrap();
        assert!(start.contains(r#""output_tokens":0"#) && start.contains(r#""stop_reason":null"#) && start.contains(r#""content":[]"#));
    }

    #[test]
    fn a_text_comes_word_by_word_and_a_long_one_in_bounded_pieces() {
        let words = |text: &str| pieces(text).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(r#""a  b\n c\\ \" \ud83d\ude00 d""#), ["a ", " ", r"b\n ", r"c\\ ", r#"\" "#, r"\ud83d\ude00 ", "d"]);
        assert!(words("\"\"").is_empty());
        for (count, expected) in [(128, 128), (129, 65), (100_000, 128)] {
            let text = serde_json::to_string(&"wörd ".repeat(count)).unwrap();
            assert_eq!((words(&text).len(), format!("\"{}\"", words(&text).concat())), (expected, text));
        }
        let text = "Hé \n \"😀\" and so on";
        let unary =
            openai(&json!([{"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": null, "finish_reason": "stop"}]));
        let (stream, folded) = round(Speaks::Openai, &unary);
        assert_eq!((stream.matches("data: ").count(), folded), (1 + 6 + 3, unary));
        let unary = json!({"id": "m", "type": "message", "role": "assistant", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"});
        let (stream, folded) = round(Speaks::Anthropic, &unary);
        assert_eq!(stream.matches("text_delta").count(), 6);
        assert_eq!(folded["content"], unary["content"]);
    }

    #[test]
    fn what_is_no_answer_is_not_replayed() {
        for body in ["", "[]", "{}", r#"{"error":{}}"#, r#"{"choices":[]}"#, r#"{"choices":5}"#, r#"{"content":5}"#] {
            assert_eq!(replay(Speaks::Openai, body.as_bytes(), true), None, "{body}");
            assert_eq!(replay(Speaks::Anthropic, body.as_bytes(), true), None, "{body}");
        }
        assert_eq!(replay(Speaks::Openai, b"\xff", true), None);
    }
}
