//! `/v1/responses` over a provider that only speaks OpenAI's chat completions.
//!
//! What a provider would have to keep (earlier responses, conversations, files) and tools that it would have to run cannot be carried.

mod answer;
mod input;
mod request;

pub use answer::answer;
pub use request::{as_chat, request};
