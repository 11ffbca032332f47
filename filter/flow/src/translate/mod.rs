//! Requests and answers of one dialect in the words of the other: modules are named `<client dialect>_<provider dialect>`.
//!
//! What decides between a 400 and a dropped parameter: *content* (a message part, a tool, a guarantee about the answer such as its
//! schema or the number of answers) that cannot be carried is refused by name; a *hint* (sampling, effort, caching, accounting) and
//! whatever is unknown is left out and named in [`Outgoing::dropped`]. Texts, schemas and numbers are passed on as they were written.

mod effort;
mod error;
mod members;
mod models;
mod usage;

pub mod anthropic_openai;
pub mod openai_anthropic;

pub use usage::{anthropic_usage, openai_usage};

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
