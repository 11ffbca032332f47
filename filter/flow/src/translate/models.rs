//! What a provider's model takes, told by its name: the same parameter is a hint to one model and a 400 to the next.
//!
//! Names are all there is to go by, since the catalog says nothing of this. A name that tells nothing is taken for a model that takes
//! everything of its dialect's first days; were it not so, its provider says which parameter it refuses.

/// A Claude model. Facts: platform.claude.com/docs/en/build-with-claude/{effort,extended-thinking}, whats-new-claude-4-7, October 2026.
#[derive(Clone, Copy)]
pub(super) struct Claude(Option<(u32, u32)>);

impl Claude {
    /// Reads the version from `claude-opus-4-7`, `us.anthropic.claude-sonnet-4-20250514-v1:0`, `claude-3-7-sonnet-latest` and the like.
    pub(super) fn of(name: &str) -> Self {
        let Some((_, rest)) = name.split_once("claude") else { return Self(None) };
        // A number of more than two digits is a date.
        let mut numbers = rest.split(['-', '.', '@', ':', '_']).map(|word| (word.len() <= 2).then(|| word.parse::<u32>().ok()).flatten());
        let major = numbers.by_ref().flatten().next();
        let minor = numbers.next().flatten().unwrap_or_default();
        Self(major.map(|major| (major, minor)))
    }

    fn at_least(self, version: (u32, u32)) -> bool {
        self.0.is_some_and(|own| own >= version)
    }

    /// Thinks by `thinking: adaptive` and `output_config.effort`; earlier ones take a budget of tokens, and from 4.7 on it is refused.
    pub(super) fn is_adaptive(self) -> bool {
        self.at_least((4, 6))
    }

    /// Takes the efforts `xhigh` and `max`.
    pub(super) fn takes_every_effort(self) -> bool {
        self.at_least((4, 7))
    }

    /// Thinks without being asked.
    pub(super) fn thinks_by_default(self) -> bool {
        self.at_least((5, 0))
    }

    /// Takes `temperature` and `top_p`.
    pub(super) fn samples(self) -> bool {
        !self.at_least((4, 7))
    }

    /// Takes `temperature` or `top_p`, not both.
    pub(super) fn samples_by_one(self) -> bool {
        self.at_least((4, 1))
    }
}

/// A model behind an OpenAI dialect. Facts: developers.openai.com/api/docs, guides *reasoning* and *latest model*, October 2026.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Gpt {
    /// `o1`, `o3-mini`, `gpt-5-mini`, …: takes `reasoning_effort`; refuses `temperature` and `top_p` while it reasons.
    Reasons,
    /// `gpt-oss`: takes both.
    ReasonsAndSamples,
    /// Refuses `reasoning_effort`, or is not known to take it.
    Plain,
}

impl Gpt {
    pub(super) fn of(name: &str) -> Self {
        let name = name.rsplit('/').next().unwrap_or(name);
        let is_number = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
        if name.starts_with("gpt-oss") {
            return Self::ReasonsAndSamples;
        }
        if let Some(rest) = name.strip_prefix("gpt-") {
            let major: String = rest.chars().take_while(char::is_ascii_digit).collect();
            let reasons = major.parse::<u32>().is_ok_and(|major| major >= 5) && !rest.contains("chat");
            return if reasons { Self::Reasons } else { Self::Plain };
        }
        if name.strip_prefix('o').is_some_and(is_number) { Self::Reasons } else { Self::Plain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_claude_version_is_read_wherever_it_stands() {
        for (name, version) in [
            ("claude-opus-4-7", Some((4, 7))),
            ("claude-haiku-4-5-20251001", Some((4, 5))),
            ("claude-sonnet-4-20250514", Some((4, 0))),
            ("claude-3-7-sonnet-20250219", Some((3, 7))),
            ("us.anthropic.claude-opus-5-5-v1:0", Some((5, 5))),
            ("anthropic/claude-sonnet-4.6", Some((4, 6))),
            ("claude-sonnet-5", Some((5, 0))),
            ("claude-opus-4@20250514", Some((4, 0))),
            ("claude-mythos-preview", None),
            ("kimi-k2", None),
        ] {
            assert_eq!(Claude::of(name).0, version, "{name}");
        }
    }

    #[test]
    fn reasoning_models_are_known_by_name() {
        for name in ["o1", "o3-mini", "gpt-5-mini", "gpt-5.1", "gpt-6.1-terra", "openai/gpt-5", "gpt-10"] {
            assert!(Gpt::of(name) == Gpt::Reasons, "{name}");
        }
        for name in ["gpt-4o", "gpt-4.1-mini", "gpt-5-chat-latest", "gpt-3.5-turbo", "llama3.2", "olmo-2", "mock"] {
            assert!(Gpt::of(name) == Gpt::Plain, "{name}");
        }
        assert!(Gpt::of("openai/gpt-oss-120b") == Gpt::ReasonsAndSamples);
    }
}
