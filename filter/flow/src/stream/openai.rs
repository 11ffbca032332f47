//! OpenAI's stream events: chat chunks, and of `/v1/responses` what is metered.
//! Shapes: the types of openai-python (`chat_completion_chunk.py`, `response_*_event.py`), as of 2026.

use super::alike::{Texts, string};
use super::usage::OpenaiUsage;
use super::{Kind, is_error, string_bytes, text};
use crate::object::{members, objects, optional};
use crate::sse::Event;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// A chunk. Members are kept unread, so that one of a strange type costs nothing but itself.
pub(crate) struct Chunk<'a> {
    pub error: Option<&'a RawValue>,
    pub choices: Option<&'a RawValue>,
    pub usage: Option<&'a RawValue>,
    /// Of `/v1/responses` only.
    pub kind: Option<&'a RawValue>,
    pub response: Option<&'a RawValue>,
    /// Text of a `/v1/responses` delta.
    pub delta: Option<&'a RawValue>,
    /// Noise of any length (OpenAI).
    obfuscation: Option<&'a RawValue>,
}

impl<'a> Chunk<'a> {
    /// `None`: no object.
    pub(crate) fn read(json: &'a str) -> Option<Self> {
        let [error, choices, usage, kind, response, delta, obfuscation] =
            members(json, ["error", "choices", "usage", "type", "response", "delta", "obfuscation"])?;
        Some(Self { error, choices, usage, kind, response, delta, obfuscation })
    }
}

pub(crate) struct Choice<'a> {
    pub index: u64,
    pub delta: Option<Delta<'a>>,
    pub finish_reason: Option<&'a RawValue>,
}

pub(crate) struct Delta<'a> {
    pub content: Option<&'a RawValue>,
    pub refusal: Option<&'a RawValue>,
    /// DeepSeek, vLLM and others.
    pub reasoning_content: Option<&'a RawValue>,
    /// OpenRouter, Ollama and others.
    pub reasoning: Option<&'a RawValue>,
    pub tool_calls: Vec<ToolCall<'a>>,
    pub function_call: Option<Function<'a>>,
}

pub(crate) struct ToolCall<'a> {
    pub index: Option<u64>,
    pub id: Option<&'a RawValue>,
    pub function: Option<Function<'a>>,
    pub custom: Option<Function<'a>>,
}

/// A function or a custom tool.
pub(crate) struct Function<'a> {
    pub name: Option<&'a RawValue>,
    pub arguments: Option<&'a RawValue>,
}

/// The choices of a chunk; none if they are no choices.
pub(crate) fn choices(raw: Option<&RawValue>) -> Option<Vec<Choice<'_>>> {
    let choice = |[index, delta, finish_reason]: [Option<_>; 3]| {
        Some(Choice { index: optional(index)?.unwrap_or_default(), delta: self::delta(delta)?, finish_reason })
    };
    objects(raw, ["index", "delta", "finish_reason"])?.into_iter().map(choice).collect()
}

fn delta(raw: Option<&RawValue>) -> Option<Option<Delta<'_>>> {
    let Some(raw) = raw else { return Some(None) };
    let [content, refusal, reasoning_content, reasoning, tool_calls, function_call] =
        members(raw.get(), ["content", "refusal", "reasoning_content", "reasoning", "tool_calls", "function_call"])?;
    let tool_call = |[index, id, named, custom]: [Option<_>; 4]| {
        Some(ToolCall { index: optional(index)?, id, function: function(named)?, custom: function(custom)? })
    };
    let tool_calls = objects(tool_calls, ["index", "id", "function", "custom"])?.into_iter().map(tool_call).collect::<Option<_>>()?;
    Some(Some(Delta { content, refusal, reasoning_content, reasoning, tool_calls, function_call: function(function_call)? }))
}

fn function(raw: Option<&RawValue>) -> Option<Option<Function<'_>>> {
    let Some(raw) = raw else { return Some(None) };
    let [name, arguments, input] = members(raw.get(), ["name", "arguments", "input"])?;
    Some(Some(Function { name, arguments: arguments.or(input) }))
}

/// What is known of the stream.
#[derive(Debug, Default)]
pub(super) struct State {
    pub usage: OpenaiUsage,
    pub ended: bool,
    pub generated_bytes: u64,
    /// Choices seen, and whether each ended by itself.
    choices: BTreeMap<u64, bool>,
    /// A response of `/v1/responses` completed.
    completed: bool,
    /// Its id.
    pub response_id: String,
}

impl State {
    pub(super) fn natural(&self) -> bool {
        self.completed || (!self.choices.is_empty() && self.choices.values().all(|natural| *natural))
    }

    /// Takes an event; `texts`: what it added, if it did nothing else.
    pub(super) fn event<'a>(&mut self, event: &'a Event, texts: &mut Texts<'a>) -> Kind {
        if event.name == "error" {
            return Kind::Error;
        }
        if event.data.starts_with("[DONE]") {
            self.ended = true;
            return Kind::End;
        }
        Chunk::read(&event.data).map_or(Kind::Odd, |chunk| self.chunk(&chunk, texts))
    }

    fn chunk<'a>(&mut self, chunk: &Chunk<'a>, texts: &mut Texts<'a>) -> Kind {
        if let Some(usage) = chunk.usage {
            self.usage.update(usage.get());
        }
        if is_error(chunk.error) {
            return Kind::Error;
        }
        if let Some(kind) = text(chunk.kind) {
            return self.response(&kind, chunk);
        }
        let Some(choices) = choices(chunk.choices) else { return Kind::Odd };
        let mut only_text = chunk.usage.is_none();
        for choice in &choices {
            let natural = self.choices.entry(choice.index).or_default();
            // A text that is told twice and counts once is not worth a rule.
            let told_once = |delta: &Delta<'_>| delta.reasoning.is_none() || delta.reasoning_content.is_none();
            only_text &= choice.finish_reason.is_none() && choice.delta.as_ref().is_none_or(told_once);
            if let Some(reason) = text(choice.finish_reason) {
                *natural = matches!(reason.as_str(), "stop" | "tool_calls" | "function_call");
            }
            self.generated_bytes += choice.delta.as_ref().map_or(0, Delta::bytes);
        }
        if only_text {
            texts.extend(choices.iter().filter_map(|choice| choice.delta.as_ref()).flat_map(Delta::texts).map(|text| (text, true)));
            if !texts.is_empty() {
                texts.extend(string(chunk.obfuscation).map(|noise| (noise, false)));
            }
        }
        if choices.is_empty() { Kind::Nothing } else { Kind::Part }
    }

    /// An event of `/v1/responses`: named, and the last one is the terminator.
    fn response(&mut self, kind: &str, chunk: &Chunk<'_>) -> Kind {
        if let Some([id, usage]) = chunk.response.and_then(|raw| members(raw.get(), ["id", "usage"])) {
            self.usage.update(usage.map_or("null", RawValue::get));
            self.response_id = text(id).unwrap_or_else(|| std::mem::take(&mut self.response_id));
        }
        match kind {
            "error" | "response.failed" => return Kind::Error,
            "response.completed" | "response.incomplete" => {
                self.ended = true;
                self.completed = kind == "response.completed";
            }
            _ if kind.ends_with(".delta") => self.generated_bytes += string_bytes(chunk.delta),
            _ => {}
        }
        Kind::Part
    }
}

impl<'a> Delta<'a> {
    fn bytes(&self) -> u64 {
        let all: u64 = self.texts().iter().map(|text| string_bytes(Some(text))).sum();
        // Some providers send reasoning under both names: it is one text.
        all - string_bytes(self.reasoning_content).min(string_bytes(self.reasoning))
    }

    fn texts(&self) -> Vec<&'a RawValue> {
        let mut texts = vec![self.content, self.refusal, self.reasoning_content, self.reasoning];
        let mut add =
            |function: &Option<Function<'a>>| texts.extend(function.iter().flat_map(|function| [function.name, function.arguments]));
        for call in &self.tool_calls {
            add(&call.function);
            add(&call.custom);
        }
        add(&self.function_call);
        texts.into_iter().filter_map(string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{First, Meter};
    use crate::sse::Reader;
    use proxium_wire::{Dialect, Usage};
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn meter(data: &[&str]) -> Meter {
        let mut meter = Meter::new(Dialect::Openai);
        let mut reader = Reader::new();
        for data in data {
            reader.push(format!("data: {data}\n\n").as_bytes()).iter().for_each(|event| meter.event(event));
        }
        meter
    }

    const HI: &str = r#"{"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}],"usage":null}"#;
    const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

    #[test]
    fn the_usage_chunk_is_metered() {
        let read = meter(&[HI, STOP, r#"{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":4}}"#, "[DONE]"]);
        assert_eq!(read.usage(), Some(Usage { input: 12, output: 4, ..Usage::default() }));
        assert!(read.complete() && read.ended() && !read.failed());
        assert_eq!(read.generated_bytes(), 2);
    }

    #[test]
    fn cumulative_usage_on_several_chunks_counts_once() {
        let chunk = |output: u32| {
            format!(r#"{{"choices":[{{"delta":{{"content":"a"}}}}],"usage":{{"prompt_tokens":10,"completion_tokens":{output}}}}}"#)
        };
        let read = meter(&[&chunk(1), &chunk(2), &chunk(3)]);
        assert_eq!(read.usage(), Some(Usage { input: 10, output: 3, ..Usage::default() }));
    }

    #[test]
    fn explicit_zero_is_zero_and_missing_is_missing() {
        assert_eq!(meter(&[r#"{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}"#]).usage(), Some(Usage::default()));
        assert_eq!(meter(&[HI, STOP, "[DONE]"]).usage(), None);
    }

    #[test]
    fn the_first_event_decides_and_a_comment_does_not() {
        for (data, first) in [
            (r#"{"error":{"message":"x"}}"#, First::Error("error_first_event")),
            (r#"{"type":"response.failed","response":{}}"#, First::Error("error_first_event")),
            (r#"{"type":"error","message":"x"}"#, First::Error("error_first_event")),
            ("<html>", First::Error("not_json")),
            ("[1]", First::Error("not_json")),
            (r#"{"choices":5}"#, First::Error("not_json")),
            ("[DONE]", First::Error("empty_stream")),
            (r#"{"choices":[],"prompt_filter_results":[]}"#, First::Pending),
            (r#"{"error":null,"choices":[{"delta":{}}]}"#, First::Good),
            (r#"{"choices":[{"delta":{"role":"assistant"}}],"model":"a","model":"b"}"#, First::Good),
            (r#"{"type":"response.created","response":{}}"#, First::Good),
        ] {
            assert_eq!(meter(&[data]).first(), first, "{data}");
        }
        let mut read = Meter::new(Dialect::Openai);
        let mut reader = Reader::new();
        reader.push(b": ping\n\n: ping\n\n").iter().for_each(|event| read.event(event));
        assert_eq!(read.first(), First::Pending);
        reader.push(b"event: error\ndata: x\n\n").iter().for_each(|event| read.event(event));
        assert_eq!(read.first(), First::Error("error_first_event"));
        let mut empty = Meter::new(Dialect::Openai);
        empty.finish();
        assert_eq!(empty.first(), First::Error("empty_stream"));
    }

    #[test]
    fn only_a_natural_end_with_its_terminator_is_complete() {
        let length = r#"{"choices":[{"index":1,"delta":{},"finish_reason":"length"}]}"#;
        assert!(!meter(&[HI, STOP]).complete());
        assert!(!meter(&[HI, "[DONE]"]).complete());
        assert!(!meter(&[HI, STOP, length, "[DONE]"]).complete());
        assert!(!meter(&[HI, "garbage", STOP, "[DONE]"]).complete());
        let failed = meter(&[HI, r#"{"error":{"message":"x"}}"#, STOP, "[DONE]"]);
        assert!(!failed.complete() && failed.failed() && failed.first() == First::Good);
    }

    #[test]
    fn usage_of_a_response_is_read_from_its_last_event() {
        let read = meter(&[
            r#"{"type":"response.created","response":{"id":"resp_1","usage":null}}"#,
            r#"{"type":"response.output_text.delta","delta":"hello"}"#,
            r#"{"type":"response.completed","response":{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":3}}}"#,
        ]);
        assert_eq!(read.usage(), Some(Usage { input: 5, cached_input: 4, output: 3, ..Usage::default() }));
        assert!(read.complete());
        assert_eq!((read.generated_bytes(), read.response_id()), (5, "resp_1"));
    }

    #[test]
    fn generated_bytes_count_text_reasoning_and_tool_calls() {
        let read = meter(&[
            r#"{"choices":[{"delta":{"role":"assistant","content":null,"reasoning":"ab","reasoning_content":"ab"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"call_1","function":{"name":"f","arguments":"{}"}}]}}]}"#,
            r#"{"choices":[{"index":1,"delta":{"refusal":"no"}}]}"#,
        ]);
        assert_eq!(read.generated_bytes(), 7);
    }
}
