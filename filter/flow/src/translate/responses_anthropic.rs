//! `/v1/responses` over an Anthropic provider: by way of OpenAI's chat completions, in both directions.

use super::{Outgoing, openai_anthropic, openai_anthropic_stream, responses_openai, responses_openai_stream};
use crate::refusal::Refusal;
use crate::sse::{Event, Reader};
use crate::stream::responses::Frame;
use std::collections::BTreeSet;

/// Translates a request.
///
/// # Errors
/// A 400 that names the content which cannot be carried.
pub fn request(body: &str, upstream_model: &str, max_output_tokens: u64, stream: bool) -> Result<Outgoing, Refusal> {
    let chat = responses_openai::as_chat(body, upstream_model, max_output_tokens, stream, true)?;
    let text = String::from_utf8_lossy(&chat.body);
    let mut messages = openai_anthropic::request(&text, upstream_model, max_output_tokens, stream)?;
    let mut dropped = BTreeSet::new();
    dropped.extend(std::mem::take(&mut messages.dropped).into_iter().chain(chat.dropped));
    messages.dropped.extend(dropped);
    Ok(messages)
}

/// Translates a whole answer. `None`: it makes no sense.
#[must_use]
pub fn answer(body: &[u8], frame: Frame) -> Option<Vec<u8>> {
    let chat = openai_anthropic::answer(body, "", &frame.id, 0)?;
    responses_openai::answer(&chat, frame)
}

/// Takes the provider's events, appends the client's bytes.
#[derive(Debug)]
pub struct Translator {
    to_chat: openai_anthropic_stream::Translator,
    reader: Reader,
    to_responses: responses_openai_stream::Translator,
}

impl Translator {
    /// At the start of a stream.
    #[must_use]
    pub fn new(frame: Frame) -> Self {
        Self {
            to_chat: openai_anthropic_stream::Translator::new("", &frame.id, 0, true),
            reader: Reader::new(),
            to_responses: responses_openai_stream::Translator::new(frame),
        }
    }

    /// Takes an event.
    pub fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        let mut chat = Vec::new();
        self.to_chat.event(event, &mut chat);
        self.pass_on(&chat, out);
    }

    /// The provider sends no more.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let mut chat = Vec::new();
        self.to_chat.finish(&mut chat);
        self.pass_on(&chat, out);
        self.to_responses.finish(out);
    }

    fn pass_on(&mut self, chat: &[u8], out: &mut Vec<u8>) {
        for event in self.reader.push(chat) {
            self.to_responses.event(&event, out);
        }
    }
}
