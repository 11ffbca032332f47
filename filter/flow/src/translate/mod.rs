//! Requests and answers of one dialect in the words of the other: modules are named `<client dialect>_<provider dialect>`.
//!
//! What decides between a 400 and a dropped parameter: *content* (a message part, a tool, a guarantee about the answer such as its
//! schema or the number of answers) that cannot be carried is refused by name; a *hint* (sampling, effort, caching, accounting) and
//! whatever is unknown is left out and named in [`Outgoing::dropped`]. Texts, schemas and numbers are passed on as they were written.

mod blocks;
mod completion;
mod effort;
mod error;
mod members;
mod models;
mod usage;

pub mod anthropic_openai;
pub mod anthropic_openai_stream;
pub mod openai_anthropic;
pub mod openai_anthropic_stream;
pub mod responses_anthropic;
pub mod responses_openai;
pub mod responses_openai_stream;

pub use usage::{anthropic_usage, openai_usage};

use crate::json::Document;
use crate::speaks::Speaks;
use crate::sse::Event;
use crate::stream::responses::Frame;
use proxium_wire::Dialect;

/// The limit sent for a model whose maximum is not known, where the provider needs one.
const UNKNOWN_MAX_OUTPUT_TOKENS: u64 = 8_192;

/// A request in the provider's dialect.
#[derive(Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The body.
    pub body: Vec<u8>,
    /// Parameters that were left out or weakened, for `x-proxium-dropped`; sorted, safe in a header line.
    pub dropped: Vec<String>,
}

/// Who speaks with whom, and of which call.
#[derive(Clone, Copy, Debug)]
pub struct Between<'a> {
    /// How the client speaks.
    pub client: Speaks,
    /// How the provider speaks.
    pub provider: Speaks,
    /// The model that the client is shown.
    pub model: &'a str,
    /// The call.
    pub request_id: &'a str,
}

/// A provider's whole answer in the client's words: the same bytes when those are the provider's too. `None`: it makes no sense.
#[must_use]
pub fn answer(between: &Between<'_>, request: &Document, body: Vec<u8>, created_s: u64) -> Option<Vec<u8>> {
    let Between { client, provider, model, request_id } = *between;
    let id = answer_id(client, request_id);
    match (client, provider) {
        (Speaks::Openai, Speaks::Anthropic) => openai_anthropic::answer(&body, model, &id, created_s),
        (Speaks::Anthropic, Speaks::Openai) => anthropic_openai::answer(&body, model, &id, created_s),
        (Speaks::Responses, Speaks::Openai) => responses_openai::answer(&body, Frame::new(request, model, &id, created_s)),
        (Speaks::Responses, Speaks::Anthropic) => responses_anthropic::answer(&body, Frame::new(request, model, &id, created_s)),
        _ => Some(body),
    }
}

/// A provider's own refusal in the client's dialect.
#[must_use]
pub fn refusal(client: Dialect, provider: Dialect, status: u16, body: Vec<u8>, request_id: &str) -> Vec<u8> {
    match (client, provider) {
        (Dialect::Openai, Dialect::Anthropic) => openai_anthropic::error(status, &body, request_id),
        (Dialect::Anthropic, Dialect::Openai) => anthropic_openai::error(status, &body, request_id),
        _ => body,
    }
}

/// The id of a translated answer, as its dialect's ids look.
#[must_use]
pub fn answer_id(client: Speaks, request_id: &str) -> String {
    let unique = request_id.strip_prefix("req_").unwrap_or(request_id);
    match client {
        Speaks::Openai => format!("chatcmpl-{unique}"),
        Speaks::Anthropic => format!("msg_{unique}"),
        Speaks::Responses => format!("resp_{unique}"),
    }
}

/// Translates a provider's stream, event by event.
#[derive(Debug)]
pub enum StreamTranslator {
    /// The client speaks OpenAI, the provider Anthropic.
    OpenaiAnthropic(openai_anthropic_stream::Translator),
    /// The client speaks Anthropic, the provider OpenAI.
    AnthropicOpenai(anthropic_openai_stream::Translator),
    /// The client speaks OpenAI's responses, the provider its chat completions.
    ResponsesOpenai(responses_openai_stream::Translator),
    /// The client speaks OpenAI's responses, the provider Anthropic.
    ResponsesAnthropic(Box<responses_anthropic::Translator>),
}

impl StreamTranslator {
    /// `None` where both speak the same.
    #[must_use]
    pub fn new(between: &Between<'_>, request: &Document, created_s: u64, include_usage: bool) -> Option<Self> {
        let Between { client, provider, model, request_id } = *between;
        let id = answer_id(client, request_id);
        match (client, provider) {
            (Speaks::Openai, Speaks::Anthropic) => {
                Some(Self::OpenaiAnthropic(openai_anthropic_stream::Translator::new(model, &id, created_s, include_usage)))
            }
            (Speaks::Anthropic, Speaks::Openai) => {
                Some(Self::AnthropicOpenai(anthropic_openai_stream::Translator::new(model, &id, created_s, include_usage)))
            }
            (Speaks::Responses, Speaks::Openai) => {
                let frame = Frame::new(request, model, &id, created_s);
                Some(Self::ResponsesOpenai(responses_openai_stream::Translator::new(frame)))
            }
            (Speaks::Responses, Speaks::Anthropic) => {
                let frame = Frame::new(request, model, &id, created_s);
                Some(Self::ResponsesAnthropic(Box::new(responses_anthropic::Translator::new(frame))))
            }
            _ => None,
        }
    }

    /// Takes an event; adds to `out` what the client gets for it.
    pub fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        match self {
            Self::OpenaiAnthropic(translator) => translator.event(event, out),
            Self::AnthropicOpenai(translator) => translator.event(event, out),
            Self::ResponsesOpenai(translator) => translator.event(event, out),
            Self::ResponsesAnthropic(translator) => translator.event(event, out),
        }
    }

    /// The provider sends no more: an error for the client, unless its stream was whole.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::OpenaiAnthropic(translator) => translator.finish(out),
            Self::AnthropicOpenai(translator) => translator.finish(out),
            Self::ResponsesOpenai(translator) => translator.finish(out),
            Self::ResponsesAnthropic(translator) => translator.finish(out),
        }
    }
}
