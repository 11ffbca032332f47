//! Usage in either dialect.
//!
//! OpenAI's `prompt_tokens` includes what the provider's cache served and took in; Anthropic's `input_tokens` excludes both.

use crate::value::json;
use proxium_wire::Usage;
use serde_json::Value;

/// An OpenAI `usage` object.
#[must_use]
pub fn openai_usage(usage: &Usage) -> Value {
    let written = usage.cache_write_5m.saturating_add(usage.cache_write_1h);
    let prompt = usage.input.saturating_add(usage.cached_input).saturating_add(written);
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt.saturating_add(usage.output),
        "prompt_tokens_details": {"cached_tokens": usage.cached_input, "cache_write_tokens": written},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    })
}

/// An Anthropic `usage` object of a message that begins: nothing is generated yet.
#[must_use]
pub(super) fn anthropic_usage_so_far(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write_5m.saturating_add(usage.cache_write_1h),
        "cache_read_input_tokens": usage.cached_input,
        "output_tokens": 0,
    })
}

/// An Anthropic `usage` object.
#[must_use]
pub fn anthropic_usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write_5m.saturating_add(usage.cache_write_1h),
        "cache_read_input_tokens": usage.cached_input,
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    })
}
