//! In which words a request and its answer are. An OpenAI provider has two sets of them for the same purpose.

use crate::endpoint::Route;
use proxium_wire::{Dialect, Provider};
use serde::{Deserialize, Serialize};

/// A set of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speaks {
    /// OpenAI's API but for `/responses`, and those who add to it.
    Openai,
    /// Anthropic's API.
    Anthropic,
    /// OpenAI's `/responses`.
    Responses,
}

impl Speaks {
    /// Whose errors and headers go with them.
    #[must_use]
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::Openai | Self::Responses => Dialect::Openai,
            Self::Anthropic => Dialect::Anthropic,
        }
    }

    /// What a provider is sent for a call of this route.
    #[must_use]
    pub fn of(provider: &Provider, route: &Route) -> Self {
        match (provider.dialect(), route.speaks) {
            (Dialect::Anthropic, _) => Self::Anthropic,
            (Dialect::Openai, Self::Responses) if !provider.chat_only => Self::Responses,
            (Dialect::Openai, _) => Self::Openai,
        }
    }
}
