//! An Anthropic provider's stream for a client that speaks OpenAI's chat completions.
//!
//! | Anthropic | OpenAI |
//! |---|---|
//! | `message_start` | a chunk with the role |
//! | text | `content` |
//! | thinking | `reasoning_content`; signatures have no place there |
//! | `tool_use` | `tool_calls`: index, id and name, then the pieces of the arguments |
//! | `stop_reason` | `finish_reason`; what it says of a refusal: `refusal` |
//! | usage | a chunk of its own, if asked for; `prompt_tokens` includes cache reads and writes |
//! | `error` | a chunk with `error` |
//! | `message_stop` | `[DONE]` |
//!
//! Blocks of the provider's own tools, redacted thinking and citations have no counterpart; a client of this dialect cannot ask for them.

use super::openai_anthropic::finish_reason;
use super::openai_usage;
use crate::object::members;
use crate::speaks::Speaks;
use crate::sse::{self, Event};
use crate::stream::usage::AnthropicUsage;
use crate::stream::{AnthropicDelta, Frame, broken, error, text};
use crate::value::json;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Takes the provider's events, appends the client's bytes.
#[derive(Debug)]
pub struct Translator {
    model: String,
    id: String,
    created_s: u64,
    include_usage: bool,
    usage: AnthropicUsage,
    /// Tool blocks that are open: seldom more than one.
    tools: Vec<Tool>,
    tool_count: u64,
    begun: bool,
    finished: bool,
    /// `[DONE]` or an error went out; nothing follows.
    over: bool,
}

#[derive(Debug)]
struct Tool {
    /// The provider's index of the block.
    block: u64,
    /// Ours, of the call.
    slot: u64,
    /// What the block started with; some providers give the input there and send no pieces.
    input: String,
    has_pieces: bool,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

impl Translator {
    /// At the start of a stream. `shown_model` is the name the client sees, `id` a whole one (`chatcmpl-…`).
    #[must_use]
    pub fn new(shown_model: &str, id: &str, created_s: u64, include_usage: bool) -> Self {
        Self {
            model: shown_model.into(),
            id: id.into(),
            created_s,
            include_usage,
            usage: AnthropicUsage::default(),
            tools: Vec::new(),
            tool_count: 0,
            begun: false,
            finished: false,
            over: false,
        }
    }

    /// Takes an event. What makes no sense is passed over: the meter tells of it.
    pub fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        if self.over {
            return;
        }
        if let Some(frame) = Frame::read(&event.data) {
            self.frame(&frame, event, out);
        } else if event.name == "error" {
            self.fail(None, out);
        }
    }

    /// The provider sends no more. Without its terminator the client gets an error, and no `[DONE]`.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.over {
            self.over = true;
            out.extend_from_slice(&broken(Speaks::Openai));
        }
    }

    fn frame(&mut self, frame: &Frame<'_>, event: &Event, out: &mut Vec<u8>) {
        let kind = frame.kind(event);
        if kind == "error" || event.name == "error" || frame.is_error() {
            return self.fail(frame.error, out);
        }
        match kind.as_str() {
            "message_start" => {
                if let Some([Some(usage)]) = frame.message.and_then(|raw| members(raw.get(), ["usage"])) {
                    self.usage.update(usage.get());
                }
                self.begin(out);
            }
            "content_block_start" => {
                if let Some(block) = frame.content_block {
                    self.block(frame.index().unwrap_or_default(), block, out);
                }
            }
            "content_block_delta" => {
                if let Some(delta) = frame.delta.and_then(|raw| AnthropicDelta::read(raw.get())) {
                    self.delta(frame.index().unwrap_or_default(), &delta, out);
                }
            }
            "content_block_stop" => {
                let block = frame.index().unwrap_or_default();
                if let Some(at) = self.tools.iter().position(|tool| tool.block == block) {
                    let tool = self.tools.remove(at);
                    self.close(&tool, out);
                }
            }
            "message_delta" => {
                if let Some(usage) = frame.usage {
                    self.usage.update(usage.get());
                }
                let delta = frame.delta.and_then(|raw| members(raw.get(), ["stop_reason", "stop_details"]));
                let Some([reason, details]) = delta else { return };
                let Some(reason) = text(reason) else { return };
                if reason == "refusal" {
                    // Says why the model refused.
                    let details = details.and_then(|raw| members(raw.get(), ["explanation"]));
                    self.grow("refusal", details.and_then(|[explanation]| text(explanation)), out);
                }
                self.end(finish_reason(&reason), out);
            }
            "message_stop" => self.stop(out),
            _ => {}
        }
    }

    fn block(&mut self, index: u64, block: &RawValue, out: &mut Vec<u8>) {
        let names = ["type", "text", "thinking", "id", "name", "input"];
        let Some([kind, content, thinking, id, name, input]) = members(block.get(), names) else { return };
        match text(kind).unwrap_or_default().as_str() {
            "text" => self.grow("content", text(content), out),
            "thinking" => self.grow("reasoning_content", text(thinking), out),
            "tool_use" => {
                let (id, name) = (text(id).unwrap_or_default(), text(name).unwrap_or_default());
                let input = input.map(|raw| raw.get().to_owned()).unwrap_or_default();
                let slot = self.tool_count;
                self.tool_count += 1;
                self.tools.retain(|tool| tool.block != index);
                self.tools.push(Tool { block: index, slot, input, has_pieces: false });
                let call = json!({"index": slot, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
                self.chunk(&json!({"tool_calls": [call]}), out);
            }
            _ => {}
        }
    }

    fn delta(&mut self, index: u64, delta: &AnthropicDelta<'_>, out: &mut Vec<u8>) {
        self.grow("content", text(delta.text), out);
        self.grow("reasoning_content", text(delta.thinking), out);
        let piece = text(delta.partial_json).filter(|piece| !piece.is_empty());
        if let (Some(tool), Some(piece)) = (self.tools.iter_mut().find(|tool| tool.block == index), piece) {
            tool.has_pieces = true;
            let slot = tool.slot;
            self.arguments(slot, &piece, out);
        }
    }

    /// A tool without input has the arguments `{}`: clients parse them.
    fn close(&mut self, tool: &Tool, out: &mut Vec<u8>) {
        if !tool.has_pieces {
            let input = if tool.input.starts_with('{') { tool.input.as_str() } else { "{}" };
            self.arguments(tool.slot, input, out);
        }
    }

    fn arguments(&mut self, slot: u64, piece: &str, out: &mut Vec<u8>) {
        self.chunk(&json!({"tool_calls": [{"index": slot, "function": {"arguments": piece}}]}), out);
    }

    fn grow(&mut self, member: &str, text: Option<String>, out: &mut Vec<u8>) {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.chunk(&json!({member: text}), out);
        }
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.begun, true) {
            self.write(vec![json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null})], None, out);
        }
    }

    fn chunk(&mut self, delta: &Value, out: &mut Vec<u8>) {
        self.begin(out);
        self.write(vec![json!({"index": 0, "delta": delta, "finish_reason": null})], None, out);
    }

    fn end(&mut self, reason: &str, out: &mut Vec<u8>) {
        self.begin(out);
        for tool in std::mem::take(&mut self.tools) {
            self.close(&tool, out);
        }
        if !std::mem::replace(&mut self.finished, true) {
            self.write(vec![json!({"index": 0, "delta": {}, "finish_reason": reason})], None, out);
        }
    }

    fn stop(&mut self, out: &mut Vec<u8>) {
        self.end("stop", out);
        if self.include_usage {
            self.write(Vec::new(), self.usage.usage().as_ref().map(openai_usage), out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
        self.over = true;
    }

    fn fail(&mut self, raw: Option<&RawValue>, out: &mut Vec<u8>) {
        let told: Value = raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        let word = |name: &str| told.get(name).and_then(Value::as_str);
        let kind = word("type").unwrap_or("api_error");
        let message = word("message").unwrap_or("The provider's stream ended with an error.");
        // The type says more than OpenAI's few types can: it is the code, too.
        out.extend_from_slice(&error(Speaks::Openai, kind, message, &json!(kind)));
        self.over = true;
    }

    fn write(&self, choices: Vec<Value>, usage: Option<Value>, out: &mut Vec<u8>) {
        if choices.is_empty() && usage.is_none() {
            return;
        }
        // With usage asked for, every other chunk has a null.
        let usage = usage.or(self.include_usage.then_some(Value::Null));
        let chunk = Chunk { id: &self.id, object: "chat.completion.chunk", created: self.created_s, model: &self.model, choices, usage };
        sse::write(out, None, &chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::Reader;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const START: &str = r#"{"type":"message_start","message":{"usage":{"input_tokens":3,"cache_read_input_tokens":5,"cache_creation_input_tokens":7,"output_tokens":1}}}"#;
    const STOP: &str = r#"{"type":"message_stop"}"#;

    fn end(reason: &str) -> String {
        format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"{reason}"}},"usage":{{"output_tokens":4}}}}"#)
    }

    /// The data of each event; the last is a string if it is `[DONE]`.
    fn translate(include_usage: bool, data: &[&str]) -> Vec<Value> {
        let mut translator = Translator::new("shown", "chatcmpl-1", 9, include_usage);
        let (mut reader, mut out) = (Reader::new(), Vec::new());
        for data in data {
            reader.push(format!("data: {data}\n\n").as_bytes()).iter().for_each(|event| translator.event(event, &mut out));
        }
        translator.finish(&mut out);
        let read = |event: Event| serde_json::from_str(&event.data).unwrap_or(Value::String(event.data));
        Reader::new().push(&out).into_iter().map(read).collect()
    }

    fn deltas(chunks: &[Value]) -> Vec<Value> {
        chunks.iter().filter_map(|chunk| chunk["choices"].get(0).map(|choice| choice["delta"].clone())).collect()
    }

    #[test]
    fn usage_includes_the_cache_and_comes_only_when_asked_for() {
        let with = translate(true, &[START, &end("end_turn"), STOP]);
        let usage = &with[with.len() - 2];
        assert_eq!(
            (&usage["choices"], &usage["usage"]["prompt_tokens"], &usage["usage"]["total_tokens"]),
            (&json!([]), &json!(15), &json!(19))
        );
        assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 5);
        assert!(with[0].as_object().unwrap()["usage"].is_null());
        let without = translate(false, &[START, &end("end_turn"), STOP]);
        assert!(without.iter().all(|chunk| chunk.get("usage").is_none()));
        assert_eq!(without.last(), Some(&json!("[DONE]")));
        assert_eq!((&without[0]["id"], &without[0]["model"], &without[0]["created"]), (&json!("chatcmpl-1"), &json!("shown"), &json!(9)));
    }

    #[test]
    fn tool_use_becomes_tool_calls_with_an_index() {
        let chunks = translate(
            false,
            &[
                START,
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hé"}}"#,
                r#"{"type":"content_block_stop","index":0}"#,
                r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"f","input":{}}}"#,
                r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":""}}"#,
                r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\":"}}"#,
                r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"1}"}}"#,
                r#"{"type":"content_block_stop","index":1}"#,
                r#"{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_2","name":"g","input":{}}}"#,
                r#"{"type":"content_block_stop","index":2}"#,
                &end("tool_use"),
                STOP,
            ],
        );
        assert_eq!(
            deltas(&chunks),
            [
                json!({"role": "assistant", "content": ""}),
                json!({"content": "Hé"}),
                json!({"tool_calls": [{"index": 0, "id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": ""}}]}),
                json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"a\":"}}]}),
                json!({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
                json!({"tool_calls": [{"index": 1, "id": "toolu_2", "type": "function", "function": {"name": "g", "arguments": ""}}]}),
                json!({"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]}),
                json!({}),
            ]
        );
        assert_eq!(chunks[chunks.len() - 2]["choices"][0]["finish_reason"], "tool_calls");
    }

    #[test]
    fn thinking_becomes_reasoning_content_without_its_signature() {
        let chunks = translate(
            false,
            &[
                START,
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"Eq=="}}"#,
                r#"{"type":"content_block_stop","index":0}"#,
                r#"{"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"zz"}}"#,
                r#"{"type":"ping"}"#,
                &end("end_turn"),
                STOP,
            ],
        );
        assert_eq!(deltas(&chunks), [json!({"role": "assistant", "content": ""}), json!({"reasoning_content": "hm"}), json!({})]);
    }

    #[test]
    fn each_stop_reason_has_its_word() {
        for (stop, finish) in [
            ("end_turn", "stop"),
            ("stop_sequence", "stop"),
            ("max_tokens", "length"),
            ("model_context_window_exceeded", "length"),
            ("tool_use", "tool_calls"),
            ("refusal", "content_filter"),
            ("pause_turn", "length"),
        ] {
            let chunks = translate(false, &[START, &end(stop), STOP]);
            assert_eq!(chunks[1]["choices"][0]["finish_reason"], finish, "{stop}");
        }
    }

    #[test]
    fn what_is_said_of_a_refusal_is_kept() {
        let refusal = r#"{"type":"message_delta","delta":{"stop_reason":"refusal","stop_details":{"type":"refusal","explanation":"No."}}}"#;
        let chunks = translate(false, &[START, refusal, STOP]);
        assert_eq!(deltas(&chunks), [json!({"role": "assistant", "content": ""}), json!({"refusal": "No."}), json!({})]);
    }

    #[test]
    fn an_error_is_an_error_chunk_and_nothing_follows() {
        let chunks = translate(
            true,
            &[START, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, &end("end_turn"), STOP],
        );
        assert_eq!(chunks.len(), 2);
        assert_eq!(
            chunks[1],
            json!({"error": {"message": "Overloaded", "type": "overloaded_error", "param": null, "code": "overloaded_error"}})
        );
    }

    #[test]
    fn without_the_terminator_there_is_an_error_and_no_done() {
        let chunks = translate(true, &[START, &end("end_turn")]);
        assert_eq!(chunks.last().unwrap()["error"]["code"], "stream_broken");
        assert!(!chunks.contains(&json!("[DONE]")));
    }
}
