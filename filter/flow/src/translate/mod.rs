//! Requests and answers of one dialect in the words of the other: modules are named `<client dialect>_<provider dialect>`.
//!
//! What decides between a 400 and a dropped parameter: *content* (a message part, a tool, a guarantee about the answer such as its
//! schema or the number of answers) that cannot be carried is refused by name; a *hint* (sampling, effort, caching, accounting) and
//! whatever is unknown is left out and named in [`Outgoing::dropped`]. Texts, schemas and numbers are passed on as they were written.

mod blocks;
mod effort;
mod error;
mod members;
mod models;
mod usage;

pub mod anthropic_openai;
pub mod anthropic_openai_stream;
pub mod openai_anthropic;
pub mod openai_anthropic_stream;

pub use usage::{anthropic_usage, openai_usage};

use crate::snapshot::Entry;
use crate::sse::Event;
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

/// A provider's whole answer in the client's dialect: the same bytes when that is the provider's too. `None`: it makes no sense.
#[must_use]
pub fn answer(client: Dialect, entry: &Entry, body: Vec<u8>, request_id: &str, created_s: u64) -> Option<Vec<u8>> {
    let (model, id) = (entry.model.upstream.as_str(), answer_id(client, request_id));
    match (client, entry.provider.dialect()) {
        (Dialect::Openai, Dialect::Anthropic) => openai_anthropic::answer(&body, model, &id, created_s),
        (Dialect::Anthropic, Dialect::Openai) => anthropic_openai::answer(&body, model, &id, created_s),
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
pub fn answer_id(client: Dialect, request_id: &str) -> String {
    let unique = request_id.strip_prefix("req_").unwrap_or(request_id);
    match client {
        Dialect::Openai => format!("chatcmpl-{unique}"),
        Dialect::Anthropic => format!("msg_{unique}"),
    }
}

/// Translates a provider's stream, event by event.
#[derive(Debug)]
pub enum StreamTranslator {
    /// The client speaks OpenAI, the provider Anthropic.
    OpenaiAnthropic(openai_anthropic_stream::Translator),
    /// The client speaks Anthropic, the provider OpenAI.
    AnthropicOpenai(anthropic_openai_stream::Translator),
}

impl StreamTranslator {
    /// `None` where both speak the same.
    #[must_use]
    pub fn new(client: Dialect, provider: Dialect, shown_model: &str, id: &str, created_s: u64, include_usage: bool) -> Option<Self> {
        match (client, provider) {
            (Dialect::Openai, Dialect::Anthropic) => {
                Some(Self::OpenaiAnthropic(openai_anthropic_stream::Translator::new(shown_model, id, created_s, include_usage)))
            }
            (Dialect::Anthropic, Dialect::Openai) => {
                Some(Self::AnthropicOpenai(anthropic_openai_stream::Translator::new(shown_model, id, created_s, include_usage)))
            }
            _ => None,
        }
    }

    /// Takes an event; adds to `out` what the client gets for it.
    pub fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        match self {
            Self::OpenaiAnthropic(translator) => translator.event(event, out),
            Self::AnthropicOpenai(translator) => translator.event(event, out),
        }
    }

    /// The provider sends no more: an error for the client, unless its stream was whole.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::OpenaiAnthropic(translator) => translator.finish(out),
            Self::AnthropicOpenai(translator) => translator.finish(out),
        }
    }
}
