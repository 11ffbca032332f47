//! An OpenAI provider's chat stream for a client that speaks Anthropic's messages.
//!
//! | OpenAI | Anthropic |
//! |---|---|
//! | first chunk with a choice | `message_start` |
//! | `content` | a text block |
//! | `reasoning_content`, `reasoning` | left out: a thinking block without a signature would be refused in the next turn |
//! | `refusal` | a text block, and the stop reason `refusal` |
//! | `tool_calls` | `tool_use` blocks, one after the other (`blocks.rs`) |
//! | `finish_reason` | the blocks end; `stop_reason` of `message_delta` |
//! | usage | `usage` of `message_delta`, and of `message_start` if it is known by then |
//! | `error` | `error` |
//! | `[DONE]` | `message_delta`, `message_stop` |
//!
//! The usage chunk comes after the finish reason, so that `message_delta` waits for `[DONE]`. Of several choices the first counts: a
//! messages call cannot ask for more.

use super::anthropic_openai::stop_reason;
use super::blocks::{Blocks, TooLarge};
use super::completion::content;
use super::usage::{anthropic_usage, anthropic_usage_so_far};
use crate::speaks::Speaks;
use crate::sse::{self, Event};
use crate::stream::usage::OpenaiUsage;
use crate::stream::{Choice, Chunk, Slots, broken, choices, error, is_error, text};
use crate::value::json;
use proxium_wire::Usage;
use serde_json::Value;
use serde_json::value::RawValue;

/// Takes the provider's events, appends the client's bytes.
#[derive(Debug)]
pub struct Translator {
    model: String,
    id: String,
    usage: OpenaiUsage,
    slots: Slots,
    /// Tool calls begun.
    calls: usize,
    blocks: Blocks,
    refused: bool,
    begun: bool,
    finish_reason: Option<String>,
    /// `message_stop` or an error went out; nothing follows.
    over: bool,
}

impl Translator {
    /// At the start of a stream. `shown_model` is the name the client sees, `id` a whole one (`msg_…`). The other two have no place in
    /// this dialect, whose streams know no instant and always tell usage.
    #[must_use]
    pub fn new(shown_model: &str, id: &str, _created_s: u64, _include_usage: bool) -> Self {
        Self {
            model: shown_model.into(),
            id: id.into(),
            usage: OpenaiUsage::default(),
            slots: Slots::default(),
            calls: 0,
            blocks: Blocks::new(id),
            refused: false,
            begun: false,
            finish_reason: None,
            over: false,
        }
    }

    /// Takes an event. What makes no sense is passed over: the meter tells of it.
    pub fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        if self.over {
            return;
        }
        if event.data.starts_with("[DONE]") {
            return self.stop(out);
        }
        let taken = if let Some(chunk) = Chunk::read(&event.data) {
            self.chunk(&chunk, event, out)
        } else {
            if event.name == "error" {
                self.fail(None, out);
            }
            Ok(())
        };
        if taken.is_err() {
            out.extend_from_slice(&error(Speaks::Anthropic, "api_error", "The answer is too large to be translated.", &Value::Null));
            self.over = true;
        }
    }

    /// The provider sends no more. If it told how the answer finished the message ends naturally, `[DONE]` or not; else the client gets an
    /// error, and no `message_stop`.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.over {
            return;
        }
        if self.finish_reason.is_some() {
            return self.stop(out);
        }
        out.extend_from_slice(&broken(Speaks::Anthropic));
        self.over = true;
    }

    fn chunk(&mut self, chunk: &Chunk<'_>, event: &Event, out: &mut Vec<u8>) -> Result<(), TooLarge> {
        if let Some(usage) = chunk.usage {
            self.usage.update(usage.get());
        }
        if event.name == "error" || is_error(chunk.error) {
            self.fail(chunk.error, out);
            return Ok(());
        }
        for choice in choices(chunk.choices).iter().flatten().filter(|choice| choice.index == 0) {
            self.begin(out);
            self.choice(choice, out)?;
        }
        Ok(())
    }

    fn choice(&mut self, choice: &Choice<'_>, out: &mut Vec<u8>) -> Result<(), TooLarge> {
        if let Some(delta) = &choice.delta {
            self.blocks.text(&content(delta.content), out)?;
            if let Some(refusal) = text(delta.refusal).filter(|refusal| !refusal.is_empty()) {
                self.refused = true;
                self.blocks.text(&refusal, out)?;
            }
            for call in &delta.tool_calls {
                let id = text(call.id).unwrap_or_default();
                let slot = self.slots.slot(call.index, &id);
                let begins = slot >= self.calls;
                self.calls = self.calls.max(slot + 1);
                let function = call.function.as_ref();
                let name = function.and_then(|function| text(function.name)).unwrap_or_default();
                let piece = function.and_then(|function| arguments(function.arguments)).unwrap_or_default();
                self.blocks.tool(slot, begins, &id, &name, &piece, out)?;
            }
        }
        if let Some(reason) = text(choice.finish_reason).filter(|reason| !reason.is_empty()) {
            self.finish_reason = Some(reason);
            self.blocks.finish(out);
        }
        Ok(())
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let message = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": anthropic_usage_so_far(&self.told())
        });
        sse::write(out, Some("message_start"), &json!({"type": "message_start", "message": message}));
    }

    fn stop(&mut self, out: &mut Vec<u8>) {
        self.begin(out);
        self.blocks.finish(out);
        let reason = stop_reason(self.finish_reason.as_deref().unwrap_or_default(), self.blocks.any_tool, self.refused);
        let delta = json!({
            "type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": null}, "usage": anthropic_usage(&self.told())
        });
        sse::write(out, Some("message_delta"), &delta);
        sse::write(out, Some("message_stop"), &json!({"type": "message_stop"}));
        self.over = true;
    }

    fn fail(&mut self, raw: Option<&RawValue>, out: &mut Vec<u8>) {
        let told: Value = raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        let word = |name: &str| told.get(name).and_then(Value::as_str);
        let message = word("message").or(told.as_str()).unwrap_or("The provider's stream ended with an error.");
        out.extend_from_slice(&error(Speaks::Anthropic, error_type(word("type"), word("code")), message, &Value::Null));
        self.over = true;
    }

    fn told(&self) -> Usage {
        self.usage.usage().unwrap_or_default()
    }
}

/// Arguments are text; some providers send the object itself.
fn arguments(raw: Option<&RawValue>) -> Option<String> {
    text(raw).or_else(|| raw.filter(|raw| raw.get().starts_with('{')).map(|raw| raw.get().to_owned()))
}

/// Anthropic's type of an OpenAI error.
fn error_type(kind: Option<&str>, code: Option<&str>) -> &'static str {
    let any = |words: &[&str]| [kind, code].into_iter().flatten().any(|told| words.contains(&told));
    if any(&["rate_limit_error", "rate_limit_exceeded", "insufficient_quota", "requests", "tokens", "429"]) {
        "rate_limit_error"
    } else if any(&["overloaded_error", "overloaded", "service_unavailable", "503"]) {
        "overloaded_error"
    } else if any(&["invalid_request_error"]) {
        "invalid_request_error"
    } else {
        "api_error"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::Reader;
    use crate::stream::Fold;
    use proxium_wire::Dialect;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}}"#;

    fn delta(delta: &str) -> String {
        format!(r#"{{"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#)
    }

    fn end(reason: &str) -> String {
        format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}]}}"#)
    }

    fn translate(data: &[&str]) -> Vec<Event> {
        let mut translator = Translator::new("shown", "msg_1", 0, false);
        let (mut reader, mut out) = (Reader::new(), Vec::new());
        for data in data {
            reader.push(format!("data: {data}\n\n").as_bytes()).iter().for_each(|event| translator.event(event, &mut out));
        }
        translator.finish(&mut out);
        let events = Reader::new().push(&out);
        well_nested(&events);
        events
    }

    /// Every delta and stop is of the one open block, and indexes count up.
    fn well_nested(events: &[Event]) {
        let (mut open, mut next) = (None, 0);
        for event in events {
            let data: Value = serde_json::from_str(&event.data).unwrap();
            assert_eq!(data["type"], event.name.as_str());
            match event.name.as_str() {
                "content_block_start" => {
                    assert_eq!((open, data["index"].as_u64()), (None, Some(next)));
                    open = Some(next);
                    next += 1;
                }
                "content_block_delta" => assert_eq!(data["index"].as_u64(), open),
                "content_block_stop" => assert_eq!(data["index"].as_u64(), open.take()),
                "message_delta" | "message_stop" => assert_eq!(open, None),
                _ => {}
            }
        }
    }

    fn message(data: &[&str]) -> Value {
        let mut fold = Fold::new(Dialect::Anthropic, 1 << 20);
        translate(data).iter().for_each(|event| fold.event(event));
        serde_json::from_slice(&fold.finish().unwrap()).unwrap()
    }

    #[test]
    fn the_last_usage_tells_input_and_output() {
        let message =
            message(&[&delta(r#"{"role":"assistant","content":""}"#), &delta(r#"{"content":"Hé"}"#), &end("stop"), USAGE, "[DONE]"]);
        assert_eq!(
            message,
            json!({
                "id": "msg_1", "type": "message", "role": "assistant", "model": "shown", "stop_reason": "end_turn", "stop_sequence": null,
                "content": [{"type": "text", "text": "Hé"}],
                "usage": {"input_tokens": 10, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 0, "output_tokens": 4, "output_tokens_details": {"thinking_tokens": 0}}
            })
        );
    }

    #[test]
    fn repeated_cumulative_usage_counts_once_and_zero_stays_zero() {
        let usage = |output: u32| {
            format!(r#"{{"choices":[{{"delta":{{"content":"a"}}}}],"usage":{{"prompt_tokens":7,"completion_tokens":{output}}}}}"#)
        };
        let of = |data: &[&str]| message(data)["usage"].clone();
        let read = of(&[&usage(1), &usage(2), &usage(3), &end("stop"), "[DONE]"]);
        assert_eq!((&read["input_tokens"], &read["output_tokens"]), (&json!(7), &json!(3)));
        let zero = of(&[&delta("{}"), &end("stop"), r#"{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}"#, "[DONE]"]);
        assert_eq!((&zero["input_tokens"], &zero["output_tokens"]), (&json!(0), &json!(0)));
    }

    #[test]
    fn interleaved_parallel_tool_pieces_each_get_their_own_block() {
        let message = message(&[
            &delta(r#"{"content":"Let me see"}"#),
            &delta(r#"{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}"#),
            &delta(r#"{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"g","arguments":""}}]}"#),
            &delta(r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\":"}}]}"#),
            &delta(r#"{"tool_calls":[{"index":1,"function":{"arguments":"{\"y\":"}}]}"#),
            &delta(r#"{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}"#),
            &delta(r#"{"tool_calls":[{"index":1,"function":{"arguments":"2}"}}]}"#),
            &end("tool_calls"),
            "[DONE]",
        ]);
        assert_eq!(
            message["content"],
            json!([
                {"type": "text", "text": "Let me see"},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "b", "name": "g", "input": {"y": 2}}
            ])
        );
        assert_eq!(message["stop_reason"], "tool_use");
    }

    #[test]
    fn calls_one_after_the_other_are_not_delayed() {
        let mut translator = Translator::new("m", "msg_1", 0, false);
        let mut step = |data: &str| {
            let mut out = Vec::new();
            translator.event(&Event { name: String::new(), data: delta(data) }, &mut out);
            String::from_utf8(out).unwrap()
        };
        step(r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}"#);
        assert!(step(r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\":1}"}}]}"#).contains("partial_json"));
        let second = step(r#"{"tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":""}}]}"#);
        assert!(second.contains("content_block_stop") && second.contains("content_block_start"), "{second}");
        assert!(step(r#"{"tool_calls":[{"index":1,"function":{"arguments":"{"}}]}"#).contains("partial_json"));
    }

    #[test]
    fn calls_of_strange_providers_are_whole() {
        let message = message(&[
            &delta(r#"{"content":null,"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}"#),
            &delta(r#"{"tool_calls":[{"index":0,"id":"b","function":{"name":"g","arguments":{"o":1}}}]}"#),
            &delta(r#"{"tool_calls":[{"index":2,"function":{"name":"h"}}],"content":"after"}"#),
            &end("stop"),
            "[DONE]",
        ]);
        assert_eq!(
            message["content"],
            json!([
                {"type": "tool_use", "id": "a", "name": "f", "input": {}},
                {"type": "tool_use", "id": "b", "name": "g", "input": {"o": 1}},
                {"type": "text", "text": "after"},
                {"type": "tool_use", "id": "toolu_msg_1_2", "name": "h", "input": {}}
            ])
        );
        assert_eq!(message["stop_reason"], "tool_use");
    }

    #[test]
    fn reasoning_is_left_out_and_a_refusal_is_told() {
        let thought = message(&[
            &delta(r#"{"reasoning":"h","reasoning_content":"h"}"#),
            &delta(r#"{"reasoning":"m"}"#),
            &delta(r#"{"content":"x"}"#),
            "[DONE]",
        ]);
        assert_eq!(thought["content"], json!([{"type": "text", "text": "x"}]));
        let refused = message(&[&delta(r#"{"refusal":"No."}"#), &end("stop"), "[DONE]"]);
        assert_eq!((&refused["content"][0]["text"], &refused["stop_reason"]), (&json!("No."), &json!("refusal")));
    }

    #[test]
    fn each_finish_reason_has_its_word() {
        for (finish, stop) in
            [("stop", "end_turn"), ("length", "max_tokens"), ("tool_calls", "end_turn"), ("content_filter", "refusal"), ("eos", "end_turn")]
        {
            assert_eq!(message(&[&delta(r#"{"content":"x"}"#), &end(finish), "[DONE]"])["stop_reason"], stop, "{finish}");
        }
    }

    #[test]
    fn an_error_is_an_error_event_and_nothing_follows() {
        let events = translate(&[
            &delta(r#"{"content":"x"}"#),
            r#"{"error":{"message":"Slow down","type":"requests","code":"rate_limit_exceeded"}}"#,
            &end("stop"),
            "[DONE]",
        ]);
        let last = events.last().unwrap();
        assert_eq!(last.name, "error");
        assert_eq!(last.data, json!({"type": "error", "error": {"type": "rate_limit_error", "message": "Slow down"}}).to_string());
    }

    #[test]
    fn message_stop_needs_done_or_a_finish_reason() {
        let names = |data: &[&str]| translate(data).iter().map(|event| event.name.clone()).collect::<Vec<_>>();
        let text = delta(r#"{"content":"x"}"#);
        assert_eq!(names(&[&text]).last().map(String::as_str), Some("error"));
        assert!(!names(&[&text]).contains(&"message_stop".to_owned()));
        assert_eq!(names(&[&text, &end("stop"), USAGE]).last().map(String::as_str), Some("message_stop"));
        assert_eq!(names(&[&text, "[DONE]"]).last().map(String::as_str), Some("message_stop"));
    }
}
