//! A provider's chat completion, as far as other dialects have words for it.

use crate::dialect::openai::UsageBody;
use proxium_wire::Usage;
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
pub(super) struct Completion<'a> {
    #[serde(borrow)]
    pub(super) choices: Vec<Choice<'a>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(borrow)]
    pub(super) message: Reply<'a>,
    pub(super) finish_reason: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Reply<'a> {
    /// A string; some servers give parts.
    #[serde(borrow)]
    pub(super) content: Option<&'a RawValue>,
    pub(super) refusal: Option<String>,
    #[serde(borrow)]
    pub(super) tool_calls: Option<Vec<ToolCall<'a>>>,
}

#[derive(Deserialize)]
pub(super) struct ToolCall<'a> {
    pub(super) id: Option<String>,
    #[serde(borrow)]
    pub(super) function: Function<'a>,
}

#[derive(Deserialize)]
pub(super) struct Function<'a> {
    pub(super) name: String,
    /// A string of JSON; some servers give the object itself.
    #[serde(borrow)]
    pub(super) arguments: Option<&'a RawValue>,
}

impl Completion<'_> {
    /// What the provider says it cost; nothing if it does not say.
    pub(super) fn usage(&self) -> Usage {
        let told = self.usage.and_then(|usage| serde_json::from_str::<UsageBody>(usage.get()).ok());
        told.and_then(|usage| usage.read()).unwrap_or_default()
    }
}
