//! A provider's stream, in the provider's dialect: what it costs, whether it is whole, and its unary twin.
//!
//! | part | does |
//! |---|---|
//! | [`Meter`] | usage, the decision on the first event, whether the stream ended and ended by itself |
//! | [`Hider`] | takes the usage chunk out for a client that did not ask for it |
//! | [`Fold`] | stream to unary answer, for the cache |
//! | [`replay`] | unary answer to stream |

mod alike;
mod anthropic;
mod fold;
mod fold_anthropic;
mod fold_openai;
mod hide;
mod node;
mod openai;
mod replay;
mod replay_anthropic;
mod replay_openai;
mod replay_responses;
pub mod responses;
mod tools;
pub mod usage;

pub use fold::Fold;
pub use hide::Hider;
pub use replay::replay;

pub(crate) use anthropic::{Delta as AnthropicDelta, Frame};
pub(crate) use openai::{Choice, Chunk, choices};
pub(crate) use tools::Slots;

use crate::speaks::Speaks;
use crate::sse::{self, Event};
use crate::value::json;
use alike::{Alike, Texts};
use proxium_wire::{Dialect, Usage};
use serde_json::Value;
use serde_json::value::RawValue;

/// What the first event says: it decides whether the next entry is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// Nothing yet but comments, pings and chunks without a choice.
    Pending,
    /// An answer has begun.
    Good,
    /// No answer: `error_first_event`, `not_json`, `empty_stream`.
    Error(&'static str),
}

/// Reads a provider's events for their cost and their end.
#[derive(Debug)]
pub struct Meter {
    first: First,
    failed: bool,
    /// An event made no sense.
    odd: bool,
    state: State,
    alike: Alike,
}

#[derive(Debug)]
enum State {
    Openai(openai::State),
    Anthropic(anthropic::State),
}

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It decides nothing.
    Nothing,
    /// Part of an answer.
    Part,
    /// The terminator.
    End,
    /// The provider gave up.
    Error,
    /// Not of this dialect.
    Odd,
}

impl Meter {
    /// At the start of a stream.
    #[must_use]
    pub fn new(dialect: Dialect) -> Self {
        let state = match dialect {
            Dialect::Openai => State::Openai(openai::State::default()),
            Dialect::Anthropic => State::Anthropic(anthropic::State::default()),
        };
        Self { first: First::Pending, failed: false, odd: false, state, alike: Alike::default() }
    }

    /// Steps over events at the start of these bytes that only bring more text, as the event before them, and counts it; gives what is to
    /// be read. Between events only.
    pub fn skip<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [u8] {
        while let Some((generated, rest)) = self.alike.skip(bytes) {
            match &mut self.state {
                State::Openai(state) => state.generated_bytes += generated,
                State::Anthropic(state) => state.generated_bytes += generated,
            }
            bytes = rest;
        }
        bytes
    }

    /// Takes an event. What comes after the terminator counts no more.
    pub fn event(&mut self, event: &Event) {
        if self.ended() {
            return;
        }
        let mut texts = Texts::new();
        let kind = match &mut self.state {
            State::Openai(state) => state.event(event, &mut texts),
            State::Anthropic(state) => state.event(event, &mut texts),
        };
        self.alike.learn(event, texts);
        self.failed |= kind == Kind::Error;
        self.odd |= kind == Kind::Odd;
        if self.first == First::Pending {
            self.first = match kind {
                Kind::Nothing => First::Pending,
                Kind::Part => First::Good,
                Kind::End => First::Error("empty_stream"),
                Kind::Error => First::Error("error_first_event"),
                Kind::Odd => First::Error("not_json"),
            };
        }
    }

    /// The provider sends no more: a stream that said nothing is no answer.
    pub fn finish(&mut self) {
        if self.first == First::Pending {
            self.first = First::Error("empty_stream");
        }
    }

    /// The decision on the first event. At the end of the stream ask after [`Meter::finish`].
    #[must_use]
    pub const fn first(&self) -> First {
        self.first
    }

    /// The tokens told so far.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        match &self.state {
            State::Openai(state) => state.usage.usage(),
            State::Anthropic(state) => state.usage.usage(),
        }
    }

    /// Natural end, terminator seen, no error on the way: the answer may be cached.
    #[must_use]
    pub fn complete(&self) -> bool {
        let natural = match &self.state {
            State::Openai(state) => state.natural(),
            State::Anthropic(state) => state.natural,
        };
        natural && self.ended() && !self.failed && !self.odd && self.first == First::Good
    }

    /// The dialect's terminator was seen: `[DONE]` (or the last event of `/v1/responses`), `message_stop`.
    #[must_use]
    pub fn ended(&self) -> bool {
        match &self.state {
            State::Openai(state) => state.ended,
            State::Anthropic(state) => state.ended,
        }
    }

    /// The provider sent an error: the client has it, so that none of ours is added.
    #[must_use]
    pub const fn failed(&self) -> bool {
        self.failed
    }

    /// The id of the response, on `/v1/responses`; empty: none.
    #[must_use]
    pub fn response_id(&self) -> &str {
        match &self.state {
            State::Openai(state) => &state.response_id,
            State::Anthropic(_) => "",
        }
    }

    /// Bytes of generated text, reasoning and tool calls so far, for an estimate.
    #[must_use]
    pub const fn generated_bytes(&self) -> u64 {
        match &self.state {
            State::Openai(state) => state.generated_bytes,
            State::Anthropic(state) => state.generated_bytes,
        }
    }
}

/// The error event for a stream that ended without its terminator. Write a blank line first if the provider stopped in the middle of an
/// event ([`sse::Reader::mid_event`]). Never followed by `[DONE]` or `message_stop`.
#[must_use]
pub fn broken(client: Speaks) -> Vec<u8> {
    error(client, "api_error", "The provider's stream ended before its answer was complete. Try again.", &json!("stream_broken"))
}

/// An error event; `code` may be null.
pub(crate) fn error(client: Speaks, kind: &str, message: &str, code: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    match client {
        // The members of its own error event, and beside them what the SDKs raise.
        Speaks::Responses => {
            let error = json!({"message": message, "type": kind, "param": null, "code": code});
            let event = json!({"type": "error", "message": message, "param": null, "code": code, "error": error});
            sse::write(&mut out, Some("error"), &event);
        }
        Speaks::Openai => sse::write(&mut out, None, &json!({"error": {"message": message, "type": kind, "param": null, "code": code}})),
        Speaks::Anthropic => {
            let mut error = json!({"type": kind, "message": message});
            if let (Some(error), false) = (error.as_object_mut(), code.is_null()) {
                error.insert("code".into(), code.clone());
            }
            sse::write(&mut out, Some("error"), &json!({"type": "error", "error": error}));
        }
    }
    out
}

/// The text of a JSON string.
pub(crate) fn text(raw: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(raw?.get()).ok()
}

/// The length of a JSON string, escapes as written; of anything else none.
fn string_bytes(raw: Option<&RawValue>) -> u64 {
    raw.filter(|raw| raw.get().starts_with('"')).map_or(0, |raw| (raw.get().len() as u64).saturating_sub(2))
}

/// An `error` member that means one.
pub(crate) fn is_error(raw: Option<&RawValue>) -> bool {
    raw.is_some_and(|raw| !matches!(raw.get(), "null" | "false" | "\"\""))
}
