//! Anthropic's stream events. Shapes: platform.claude.com/docs/en/build-with-claude/streaming and the types of anthropic-sdk-python, as of 2026.

use super::alike::{Texts, string};
use super::usage::AnthropicUsage;
use super::{Kind, is_error, string_bytes, text};
use crate::object::members;
use crate::sse::Event;
use serde_json::value::RawValue;

/// An event's data. Members are kept unread, so that one of a strange type costs nothing but itself.
pub(crate) struct Frame<'a> {
    kind: Option<&'a RawValue>,
    pub index: Option<&'a RawValue>,
    pub message: Option<&'a RawValue>,
    pub content_block: Option<&'a RawValue>,
    pub delta: Option<&'a RawValue>,
    pub usage: Option<&'a RawValue>,
    pub error: Option<&'a RawValue>,
}

impl<'a> Frame<'a> {
    /// `None`: no object.
    pub(crate) fn read(json: &'a str) -> Option<Self> {
        let [kind, index, message, content_block, delta, usage, error] =
            members(json, ["type", "index", "message", "content_block", "delta", "usage", "error"])?;
        Some(Self { kind, index, message, content_block, delta, usage, error })
    }

    /// The type, as the data or else the event's name says it.
    pub(crate) fn kind(&self, event: &Event) -> String {
        text(self.kind).unwrap_or_else(|| event.name.clone())
    }

    /// The block's index.
    pub(crate) fn index(&self) -> Option<u64> {
        serde_json::from_str(self.index?.get()).ok()
    }

    pub(crate) fn is_error(&self) -> bool {
        is_error(self.error)
    }
}

/// What grows in a `content_block_delta`, of which each is one.
pub(crate) struct Delta<'a> {
    pub text: Option<&'a RawValue>,
    pub thinking: Option<&'a RawValue>,
    pub partial_json: Option<&'a RawValue>,
}

impl<'a> Delta<'a> {
    /// `None`: no object.
    pub(crate) fn read(json: &'a str) -> Option<Self> {
        let [text, thinking, partial_json] = members(json, ["text", "thinking", "partial_json"])?;
        Some(Self { text, thinking, partial_json })
    }
}

/// What is known of the stream.
#[derive(Debug, Default)]
pub(super) struct State {
    pub usage: AnthropicUsage,
    pub ended: bool,
    /// The model ended by itself.
    pub natural: bool,
    pub generated_bytes: u64,
}

impl State {
    /// Takes an event; `texts`: what it added, if it did nothing else.
    pub(super) fn event<'a>(&mut self, event: &'a Event, texts: &mut Texts<'a>) -> Kind {
        if event.name == "error" {
            return Kind::Error;
        }
        Frame::read(&event.data).map_or(Kind::Odd, |frame| self.frame(&frame, event, texts))
    }

    fn frame<'a>(&mut self, frame: &Frame<'a>, event: &Event, texts: &mut Texts<'a>) -> Kind {
        let kind = frame.kind(event);
        if kind == "error" || frame.is_error() {
            return Kind::Error;
        }
        match kind.as_str() {
            "message_start" => {
                if let Some([Some(usage)]) = frame.message.and_then(|raw| members(raw.get(), ["usage"])) {
                    self.usage.update(usage.get());
                }
            }
            "content_block_start" => {
                if let Some(texts) = frame.content_block.and_then(|raw| members(raw.get(), ["text", "thinking", "name"])) {
                    self.generated_bytes += texts.into_iter().map(string_bytes).sum::<u64>();
                }
            }
            "content_block_delta" => {
                if let Some(delta) = frame.delta.and_then(|raw| Delta::read(raw.get())) {
                    texts.extend([delta.text, delta.thinking, delta.partial_json].into_iter().filter_map(string).map(|text| (text, true)));
                    self.generated_bytes += texts.iter().map(|(text, _)| string_bytes(Some(text))).sum::<u64>();
                }
            }
            "message_delta" => {
                if let Some(usage) = frame.usage {
                    self.usage.update(usage.get());
                }
                if let Some([reason]) = frame.delta.and_then(|raw| members(raw.get(), ["stop_reason"]))
                    && let Some(reason) = text(reason)
                {
                    self.natural = matches!(reason.as_str(), "end_turn" | "tool_use" | "stop_sequence");
                }
            }
            "content_block_stop" => {}
            "message_stop" => {
                self.ended = true;
                return Kind::End;
            }
            // `ping`, and what is added to the dialect later.
            _ => return Kind::Nothing,
        }
        Kind::Part
    }
}

#[cfg(test)]
mod tests {
    use super::super::{First, Meter};
    use crate::sse::Reader;
    use proxium_wire::{Dialect, Usage};
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn meter(events: &[(&str, &str)]) -> Meter {
        let mut meter = Meter::new(Dialect::Anthropic);
        let mut reader = Reader::new();
        for (name, data) in events {
            reader.push(format!("event: {name}\ndata: {data}\n\n").as_bytes()).iter().for_each(|event| meter.event(event));
        }
        meter
    }

    const START: (&str, &str) = (
        "message_start",
        r#"{"type":"message_start","message":{"usage":{"input_tokens":9,"cache_read_input_tokens":2455,"cache_creation_input_tokens":7,"cache_creation":{"ephemeral_5m_input_tokens":3,"ephemeral_1h_input_tokens":4},"output_tokens":1}}}"#,
    );
    const TEXT: (&str, &str) =
        ("content_block_delta", r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}"#);
    const DELTA: (&str, &str) =
        ("message_delta", r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}"#);
    const STOP: (&str, &str) = ("message_stop", r#"{"type":"message_stop"}"#);

    #[test]
    fn usage_of_start_and_delta_is_merged_field_by_field() {
        let read = meter(&[START, TEXT, DELTA, STOP]);
        let usage = Usage { input: 9, cached_input: 2_455, cache_write_5m: 3, cache_write_1h: 4, output: 3, ..Usage::default() };
        assert_eq!(read.usage(), Some(usage));
        assert!(read.complete() && read.ended());
        assert_eq!(read.generated_bytes(), 5);
        let input = ("message_delta", r#"{"type":"message_delta","delta":{},"usage":{"input_tokens":20,"output_tokens":5}}"#);
        assert_eq!(meter(&[START, DELTA, input]).usage(), Some(Usage { input: 20, output: 5, ..usage }));
    }

    #[test]
    fn a_ping_decides_nothing() {
        let ping = ("ping", r#"{"type":"ping"}"#);
        assert_eq!(meter(&[ping, ping]).first(), First::Pending);
        assert_eq!(meter(&[ping, START]).first(), First::Good);
        let error = ("error", r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#);
        assert_eq!(meter(&[ping, error]).first(), First::Error("error_first_event"));
        assert_eq!(meter(&[("", error.1)]).first(), First::Error("error_first_event"));
        assert_eq!(meter(&[("message_start", "oops")]).first(), First::Error("not_json"));
        assert_eq!(meter(&[STOP]).first(), First::Error("empty_stream"));
        let late = meter(&[START, error, STOP]);
        assert!(late.first() == First::Good && late.failed() && !late.complete());
    }

    #[test]
    fn only_a_natural_end_with_its_terminator_is_complete() {
        let max = ("message_delta", r#"{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":3}}"#);
        assert!(!meter(&[START, DELTA]).complete());
        assert!(!meter(&[START, STOP]).complete());
        assert!(!meter(&[START, max, STOP]).complete());
    }
}
