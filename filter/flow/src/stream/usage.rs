//! The tokens a provider tells of, gathered over a stream: a later figure replaces an earlier one, field by field, and none is summed.
//! An explicit zero is a figure; a null is none.

use crate::json;
use crate::object::members;
use proxium_wire::Usage;
use serde_json::value::RawValue;

/// A whole number, also when written as a float.
pub(crate) fn number(raw: Option<&RawValue>) -> Option<u64> {
    let text = raw?.get();
    // A count beyond a float's whole range makes no sense; the cast ends in range.
    let float = || json::number(text).filter(|number| *number >= 0.0 && *number < 1e15).map(|number| number as u64);
    serde_json::from_str(text).ok().or_else(float)
}

/// A whole number among the members of an object.
pub(crate) fn number_in(raw: Option<&RawValue>, name: &str) -> Option<u64> {
    let [found] = members(raw?.get(), [name])?;
    number(found)
}

fn set(field: &mut Option<u64>, value: Option<u64>) {
    if value.is_some() {
        *field = value;
    }
}

/// OpenAI's `usage`, of chat completions and of responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenaiUsage {
    input: Option<u64>,
    cached: Option<u64>,
    written: Option<u64>,
    output: Option<u64>,
    reasoning: Option<u64>,
}

impl OpenaiUsage {
    /// The tokens that one `usage` tells of. What makes no sense must not cost the client its answer.
    #[must_use]
    pub fn of(raw: Option<&RawValue>) -> Option<Usage> {
        let mut told = Self::default();
        told.update(raw?.get());
        told.usage()
    }

    /// Takes a `usage` object; what makes no sense is passed over.
    pub fn update(&mut self, json: &str) {
        let Some([prompt, completion, of_prompt, of_completion, input, output, of_input, of_output]) = members(
            json,
            [
                "prompt_tokens",
                "completion_tokens",
                "prompt_tokens_details",
                "completion_tokens_details",
                // Of responses.
                "input_tokens",
                "output_tokens",
                "input_tokens_details",
                "output_tokens_details",
            ],
        ) else {
            return;
        };
        let detail = |chat, responses, name: &str| number_in(chat, name).or_else(|| number_in(responses, name));
        set(&mut self.input, number(prompt).or_else(|| number(input)));
        set(&mut self.output, number(completion).or_else(|| number(output)));
        set(&mut self.cached, detail(of_prompt, of_input, "cached_tokens"));
        set(&mut self.written, detail(of_prompt, of_input, "cache_write_tokens"));
        set(&mut self.reasoning, detail(of_completion, of_output, "reasoning_tokens"));
    }

    /// The tokens, if any were told. `prompt_tokens` includes what a cache served and took in; the latter has one price there.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        if self.input.is_none() && self.output.is_none() {
            return None;
        }
        let input = self.input.unwrap_or_default();
        let cached_input = self.cached.unwrap_or_default().min(input);
        let written = self.written.unwrap_or_default().min(input - cached_input);
        let (output, reasoning) = (self.output.unwrap_or_default(), self.reasoning.unwrap_or_default());
        Some(Usage { input: input - cached_input - written, cached_input, cache_write_5m: written, output, reasoning, ..Usage::default() })
    }
}

/// Anthropic's `usage`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnthropicUsage {
    input: Option<u64>,
    cache_read: Option<u64>,
    cache_write: Option<u64>,
    cache_write_1h: Option<u64>,
    output: Option<u64>,
    reasoning: Option<u64>,
}

impl AnthropicUsage {
    /// The tokens that one `usage` tells of. What makes no sense must not cost the client its answer.
    #[must_use]
    pub fn of(raw: Option<&RawValue>) -> Option<Usage> {
        let mut told = Self::default();
        told.update(raw?.get());
        told.usage()
    }

    /// Takes a `usage` object; what makes no sense is passed over.
    pub fn update(&mut self, json: &str) {
        let Some([input, output, read, written, parts, details]) = members(
            json,
            [
                "input_tokens",
                "output_tokens",
                "cache_read_input_tokens",
                "cache_creation_input_tokens",
                "cache_creation",
                "output_tokens_details",
            ],
        ) else {
            return;
        };
        set(&mut self.input, number(input));
        set(&mut self.output, number(output));
        set(&mut self.cache_read, number(read));
        let (short, long) = (number_in(parts, "ephemeral_5m_input_tokens"), number_in(parts, "ephemeral_1h_input_tokens"));
        let sum = (short.is_some() || long.is_some()).then(|| short.unwrap_or_default().saturating_add(long.unwrap_or_default()));
        // The parts are never more than the whole; a whole without parts keeps the parts known so far.
        set(&mut self.cache_write, number(written).max(sum));
        set(&mut self.cache_write_1h, long);
        set(&mut self.reasoning, number_in(details, "thinking_tokens"));
    }

    /// The tokens, if any were told. `input_tokens` excludes cache reads and writes.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        if self.input.is_none() && self.output.is_none() && self.cache_read.is_none() && self.cache_write.is_none() {
            return None;
        }
        let cache_write = self.cache_write.unwrap_or_default();
        let output = self.output.unwrap_or_default();
        let cache_write_1h = self.cache_write_1h.unwrap_or_default().min(cache_write);
        Some(Usage {
            input: self.input.unwrap_or_default(),
            cached_input: self.cache_read.unwrap_or_default(),
            cache_write_5m: cache_write - cache_write_1h,
            cache_write_1h,
            output,
            reasoning: self.reasoning.unwrap_or_default().min(output),
            ..Usage::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn anthropic(objects: &[&str]) -> Option<Usage> {
        let mut usage = AnthropicUsage::default();
        objects.iter().for_each(|json| usage.update(json));
        usage.usage()
    }

    fn openai(objects: &[&str]) -> Option<Usage> {
        let mut usage = OpenaiUsage::default();
        objects.iter().for_each(|json| usage.update(json));
        usage.usage()
    }

    #[test]
    fn a_later_figure_replaces_and_an_absent_one_does_not() {
        assert_eq!(
            anthropic(&[
                r#"{"input_tokens":3,"cache_creation_input_tokens":12304,"cache_read_input_tokens":0,"cache_creation":{"ephemeral_5m_input_tokens":304,"ephemeral_1h_input_tokens":12000},"output_tokens":1}"#,
                r#"{"output_tokens":550,"cache_read_input_tokens":null}"#
            ]),
            Some(Usage { input: 3, cache_write_5m: 304, cache_write_1h: 12_000, output: 550, ..Usage::default() })
        );
        assert_eq!(
            openai(&[
                r#"{"prompt_tokens":10,"completion_tokens":1}"#,
                r#"{"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}"#
            ]),
            Some(Usage { input: 6, cached_input: 4, output: 5, ..Usage::default() })
        );
    }

    #[test]
    fn cache_writes_without_parts_are_of_five_minutes() {
        assert_eq!(
            anthropic(&[r#"{"input_tokens":1,"cache_creation_input_tokens":9}"#]).map(|usage| (usage.cache_write_5m, usage.cache_write_1h)),
            Some((9, 0))
        );
        let parts = r#"{"cache_creation":{"ephemeral_5m_input_tokens":2,"ephemeral_1h_input_tokens":7}}"#;
        let split = |objects: &[&str]| anthropic(objects).map(|usage| (usage.cache_write_5m, usage.cache_write_1h));
        assert_eq!(split(&[r#"{"cache_creation_input_tokens":0}"#, parts]), Some((2, 7)));
        assert_eq!(split(&[parts, r#"{"cache_creation_input_tokens":5}"#]), Some((0, 5)));
    }

    #[test]
    fn a_prompt_includes_what_the_cache_took_in() {
        assert_eq!(
            openai(&[
                r#"{"prompt_tokens":100,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":60,"cache_write_tokens":30}}"#
            ]),
            Some(Usage { input: 10, cached_input: 60, cache_write_5m: 30, output: 1, ..Usage::default() })
        );
    }

    #[test]
    fn zero_is_zero_and_nothing_is_nothing() {
        assert_eq!(openai(&[r#"{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}"#]), Some(Usage::default()));
        assert_eq!(anthropic(&[r#"{"input_tokens":0,"output_tokens":0}"#]), Some(Usage::default()));
        for nothing in ["null", "{}", "5", r#"{"prompt_tokens":"many","input_tokens":"many"}"#] {
            assert_eq!((openai(&[nothing]), anthropic(&[nothing])), (None, None));
        }
        assert_eq!(openai(&[r#"{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":9}}"#]).map(|usage| usage.input), Some(0));
    }
}
