//! The client speaks Anthropic messages, the provider OpenAI chat.
//!
//! | Anthropic | OpenAI |
//! |---|---|
//! | `system`; messages of role `system` | `system` messages at their places |
//! | a user turn with `tool_result` blocks | a `tool` message for each, then one user message with the rest |
//! | images and PDFs in a `tool_result` | parts of that user message, each after a text that names its call |
//! | `is_error: true` | the result's text begins with `Error: ` |
//! | `image` with `url` or `base64`, PDF and plain text `document` | `image_url`, `file`, `text` |
//! | `tool_use`, its `input` an object | `tool_calls`, its `arguments` a string of the same JSON |
//! | `thinking`, `redacted_thinking` | left out, named `messages.thinking`: their signatures mean nothing elsewhere |
//! | `max_tokens` | `max_completion_tokens`, at most the model's own maximum |
//! | `thinking`, `output_config.effort` | `reasoning_effort` for models known to reason (see `effort.rs`), else named |
//! | `temperature`, `top_p` | the same; named for models that reason, which refuse them |
//! | `top_k`, `cache_control`, `service_tier`, `context_management`, … | left out, named |
//! | `output_config.format` (and the older `output_format`) | `response_format: json_schema`, strict |
//! | `tool_choice: auto, none, any, tool` | `auto, none, required`, the function; `disable_parallel_tool_use` is `parallel_tool_calls: false` |
//! | `metadata.user_id` up to 64 characters, OpenAI's limit | `user`; a longer one is named |
//! | server tools, `mcp_servers`, `container`, `inference_geo`, files by id, search results | 400 |
//!
//! The limit is always sent as `max_completion_tokens`: reasoning models refuse `max_tokens`, both at once are refused by all, and
//! servers that copy the dialect know the newer name since 2024. A stream always asks for its usage.

mod answer;
mod messages;
mod request;
mod tools;

pub use answer::{answer, error, stop_reason};
pub use request::request;
