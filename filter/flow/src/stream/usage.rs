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

/// Figures read one by one.
#[derive(Default)]
struct Figures {
    /// One of them was none.
    odd: bool,
}

impl Figures {
    fn one(&mut self, raw: Option<&RawValue>) -> Option<u64> {
        let figure = number(raw);
        self.odd |= raw.is_some() && figure.is_none();
        figure
    }

    fn within(&mut self, object: Option<&RawValue>, name: &str) -> Option<u64> {
        let found = members(object?.get(), [name]);
        self.odd |= found.is_none();
        let [figure] = found?;
        self.one(figure)
    }
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
    /// The tokens that one `usage` tells of. Where a figure makes no sense it tells of none: an estimate is nearer than a part.
    #[must_use]
    pub fn of(raw: Option<&RawValue>) -> Option<Usage> {
        let mut told = Self::default();
        if told.take(raw?.get()) { told.usage() } else { None }
    }

    /// Takes a `usage` object; what makes no sense is passed over.
    pub fn update(&mut self, json: &str) {
        self.take(json);
    }

    /// Whether all of it made sense.
    fn take(&mut self, json: &str) -> bool {
        let mut figures = Figures::default();
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
            return false;
        };
        set(&mut self.input, figures.one(prompt).or_else(|| figures.one(input)));
        set(&mut self.output, figures.one(completion).or_else(|| figures.one(output)));
        set(&mut self.cached, figures.within(of_prompt, "cached_tokens").or_else(|| figures.within(of_input, "cached_tokens")));
        set(&mut self.written, figures.within(of_prompt, "cache_write_tokens").or_else(|| figures.within(of_input, "cache_write_tokens")));
        set(
            &mut self.reasoning,
            figures.within(of_completion, "reasoning_tokens").or_else(|| figures.within(of_output, "reasoning_tokens")),
        );
        !figures.odd
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
    /// The tokens that one `usage` tells of. Where a figure makes no sense it tells of none: an estimate is nearer than a part.
    #[must_use]
    pub fn of(raw: Option<&RawValue>) -> Option<Usage> {
        let mut told = Self::default();
        if told.take(raw?.get()) { told.usage() } else { None }
    }

    /// Takes a `usage` object; what makes no sense is passed over.
    pub fn update(&mut self, json: &str) {
        self.take(json);
    }

    /// Whether all of it made sense.
    fn take(&mut self, json: &str) -> bool {
        let mut figures = Figures::default();
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
            return false;
        };
        set(&mut self.input, figures.one(input));
        set(&mut self.output, figures.one(output));
        set(&mut self.cache_read, figures.one(read));
        let (short, long) = (figures.within(parts, "ephemeral_5m_input_tokens"), figures.within(parts, "ephemeral_1h_input_tokens"));
        let sum = (short.is_some() || long.is_some()).then(|| short.unwrap_or_default().saturating_add(long.unwrap_or_default()));
        // The parts are never more than the whole; a whole without parts keeps the parts known so far.
        set(&mut self.cache_write, figures.one(written).max(sum));
        set(&mut self.cache_write_1h, long);
        set(&mut self.reasoning, figures.within(details, "thinking_tokens"));
        !figures.odd
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
    fn a_figure_that_is_none_spoils_a_whole_answers_usage_but_not_a_streams() {
        let of = |json: &str| {
            let raw: &RawValue = serde_json::from_str(json).unwrap();
            [OpenaiUsage::of(Some(raw)), AnthropicUsage::of(Some(raw))]
        };
        let output = Some(Usage { output: 2, ..Usage::default() });
        for (odd, dialect) in [
            (r#"{"prompt_tokens":-1,"completion_tokens":2}"#, 0),
            (r#"{"completion_tokens":2,"completion_tokens_details":{"reasoning_tokens":"many"}}"#, 0),
            (r#"{"completion_tokens":2,"prompt_tokens_details":5}"#, 0),
            (r#"{"input_tokens":[],"output_tokens":2}"#, 1),
            (r#"{"output_tokens":2,"cache_creation":{"ephemeral_1h_input_tokens":-1}}"#, 1),
        ] {
            assert_eq!(of(odd)[dialect], None, "{odd}");
            assert_eq!([openai(&[odd]), anthropic(&[odd])][dialect], output, "{odd}");
        }
        assert_eq!(of(r#"{"completion_tokens":2,"prompt_tokens":null,"prompt_tokens_details":null,"other":-1}"#)[0], output);
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
