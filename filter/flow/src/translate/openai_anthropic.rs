//! The client speaks OpenAI chat, the provider Anthropic messages.
//!
//! | OpenAI | Anthropic |
//! |---|---|
//! | `system` and `developer` messages, wherever they stand | `system`, in their order |
//! | `tool` messages in a row, and a user message after them | one user turn, `tool_result` blocks first |
//! | messages of one role in a row | one turn |
//! | `image_url` with an address or `data:` | `image` with `url` or `base64` |
//! | `file` with PDF data | `document` |
//! | tool arguments (a string of JSON; `""`) | `input` (an object; `{}`); broken JSON is a 400 |
//! | `max_completion_tokens`, `max_tokens`, none | `max_tokens`, at most the model's own maximum, which is also the default |
//! | `temperature` above 1 | 1, named; left out and named where the model takes none |
//! | `stop` | `stop_sequences`; those of white space alone, which Anthropic refuses, are left out and named |
//! | `reasoning_effort` | `thinking`, `output_config.effort` (see `effort.rs`) |
//! | `response_format: json_schema` | `output_config.format`; `json_object` has no match: 400 |
//! | `tool_choice: auto, none, required`, a name | `auto, none, any, tool`; `parallel_tool_calls: false` is `disable_parallel_tool_use` |
//! | `user`, else `safety_identifier` | `metadata.user_id`, unless it looks like a mail address or phone number, which Anthropic refuses |
//! | `n` above 1, audio, `functions`, custom tools, `web_search_options` | 400 |
//!
//! `stream_options` is never sent: the stream's translator gives or withholds the usage chunk itself.

mod answer;
mod messages;
mod request;
mod tools;

pub use answer::{answer, error, finish_reason};
pub use request::request;
