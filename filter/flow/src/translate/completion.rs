//! A provider's chat completion, as far as other dialects have words for it.

use crate::object::{body_members, members, objects, optional};
use crate::stream::text;
use crate::stream::usage::OpenaiUsage;
use proxium_wire::Usage;
use serde_json::value::RawValue;

/// Of several choices the first: who speaks another dialect cannot ask for more.
pub(super) struct Completion<'a> {
    pub(super) content: Option<&'a RawValue>,
    pub(super) refusal: Option<String>,
    pub(super) tool_calls: Vec<ToolCall<'a>>,
    pub(super) finish_reason: String,
    /// What the provider says it cost; nothing if it does not say.
    pub(super) usage: Usage,
}

pub(super) struct ToolCall<'a> {
    pub(super) id: Option<String>,
    pub(super) name: String,
    /// A string of JSON; some servers give the object itself.
    pub(super) arguments: Option<&'a RawValue>,
}

impl<'a> Completion<'a> {
    /// `None`: it is none.
    pub(super) fn read(body: &'a [u8]) -> Option<Self> {
        let [choices, usage, error] = body_members(body, ["choices", "usage", "error"])?;
        let [message, finish_reason] = *objects(choices, ["message", "finish_reason"])?.first().filter(|_| error.is_none())?;
        let [content, refusal, tool_calls] = members(message?.get(), ["content", "refusal", "tool_calls"])?;
        Some(Self {
            content,
            refusal: optional(refusal)?,
            tool_calls: objects(tool_calls, ["id", "function"])?.into_iter().map(tool_call).collect::<Option<_>>()?,
            finish_reason: optional(finish_reason)?.unwrap_or_default(),
            usage: OpenaiUsage::of(usage).unwrap_or_default(),
        })
    }
}

fn tool_call<'a>([id, function]: [Option<&'a RawValue>; 2]) -> Option<ToolCall<'a>> {
    let [name, arguments] = members(function?.get(), ["name", "arguments"])?;
    Some(ToolCall { id: optional(id)?, name: optional(name)??, arguments })
}

/// The text of a message or of a stream's delta; some servers give parts.
pub(super) fn content(raw: Option<&RawValue>) -> String {
    let part = |[kind, content]: [Option<_>; 2]| text(kind).filter(|kind| kind == "text").and(text(content));
    text(raw).unwrap_or_else(|| objects(raw, ["type", "text"]).unwrap_or_default().into_iter().filter_map(part).collect())
}
