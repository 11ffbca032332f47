//! What proxium reads of a request and of an answer, in each dialect. Only what it acts on; all else is kept as it came.

pub mod anthropic;
pub mod embeddings;
pub mod estimate;
pub mod moderations;
pub mod openai;
pub mod rerank;
pub mod responses;

pub use estimate::{count_tokens, input_tokens, text_tokens};

use crate::json::{Document, Elements};
use crate::object::{members, optional};
use crate::refusal::Refusal;
use proxium_wire::{Dialect, Usage};
use serde::Deserialize;

/// Top-level members that do not change an answer's content, left out of the cache key; one list for both dialects.
pub const NOT_IN_CACHE_KEY: &[&str] = &["model", "stream", "stream_options", "user", "metadata"];

/// A request, of any endpoint.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The model, tier or rule the client names.
    pub model: String,
    /// Answers wanted; 1 in the Anthropic dialect.
    pub choices: u64,
    /// The client's own limit of output tokens per answer.
    pub max_output_tokens: Option<u64>,
    /// The client's tag for its end user (`user`, `metadata.user_id`); empty: none.
    pub user: String,
    /// The answer is wanted as server-sent events.
    pub stream: bool,
    /// A stream's usage is wanted. Always in the Anthropic dialect, whose streams always tell it.
    pub include_usage: bool,
    /// Input tokens for certain, whatever the body's bytes say (embeddings of token arrays).
    pub least_input_tokens: u64,
    /// Searches that the call is expected to count as (rerank).
    pub searches: u64,
    /// Where an object is named that the provider keeps for its account: on the platform's, it may be another project's (responses).
    pub stored_reference: Option<String>,
    /// The response that this one goes on from; empty: none (responses).
    pub previous_response_id: String,
}

/// A whole answer that can be returned.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The tokens, if the provider told them.
    pub usage: Option<Usage>,
    /// It ended by itself (every choice of it): it may be cached.
    pub complete: bool,
    /// Bytes of what was generated, for an estimate.
    pub message_bytes: u64,
    /// The searches, if the provider told them (rerank).
    pub searches: Option<u64>,
    /// The id under which the provider keeps it; empty: none (responses).
    pub response_id: String,
}

/// Reads what proxium acts on in a request.
///
/// # Errors
/// A 400 that names the member.
pub fn request(dialect: Dialect, body: &Document) -> Result<Request, Refusal> {
    match dialect {
        Dialect::Openai => openai::request(body),
        Dialect::Anthropic => anthropic::request(body),
    }
}

/// Reads the body of a provider's 2xx.
///
/// # Errors
/// The word for what makes it no answer: `empty_body`, `not_json`, `error_in_200`, `no_choices` (OpenAI), `no_message` (Anthropic).
pub fn answer(dialect: Dialect, body: &[u8]) -> Result<Answer, &'static str> {
    if body.trim_ascii().is_empty() {
        return Err("empty_body");
    }
    match dialect {
        Dialect::Openai => openai::answer(body),
        Dialect::Anthropic => anthropic::answer(body),
    }
}

fn typed<'a, T: Deserialize<'a>>(body: &'a Document, name: &str, what: &str) -> Result<Option<T>, Refusal> {
    match body.member(name) {
        None => Ok(None),
        Some(text) => serde_json::from_str(text).map(Some).map_err(|_| must_be(name, what)),
    }
}

/// A member of a member that is an object.
fn typed_in<'a, T: Deserialize<'a>>(body: &'a Document, name: &str, inner: &str, what: &str) -> Result<Option<T>, Refusal> {
    let Some(text) = body.member(name) else { return Ok(None) };
    members(text, [inner]).and_then(|[found]| optional(found)).ok_or_else(|| must_be(name, what))
}

fn must_be(name: &str, what: &str) -> Refusal {
    Refusal::invalid(name, format!("`{name}` must be {what}."))
}

fn model(body: &Document) -> Result<String, Refusal> {
    let model: String = typed(body, "model", "a string")?.ok_or_else(|| Refusal::invalid("model", "`model` is required."))?;
    if model.is_empty() || model.len() > 256 {
        return Err(Refusal::invalid("model", "`model` must be 1 to 256 bytes long."));
    }
    Ok(model)
}

/// Checks that there are 1 to `most` messages and that each is an object.
fn messages(body: &Document, most: usize) -> Result<(), Refusal> {
    if body.member("messages").is_none() {
        return Err(Refusal::invalid("messages", "`messages` is required."));
    }
    let Some(Elements { count, only_objects }) = body.elements("messages") else {
        return Err(Refusal::invalid("messages", "`messages` must be an array."));
    };
    if count == 0 || count > most {
        return Err(Refusal::invalid("messages", format!("`messages` must have 1 to {most} elements; it has {count}.")));
    }
    if !only_objects {
        return Err(Refusal::invalid("messages", "Every element of `messages` must be an object."));
    }
    Ok(())
}
