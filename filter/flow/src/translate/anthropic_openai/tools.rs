//! Tools, and the choice among them.

use crate::refusal::Refusal;
use crate::translate::members::{Dropped, Members, cannot_carry, wrong};
use crate::value::json;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Tool<'a> {
    Function { function: Function<'a> },
}

#[derive(Serialize)]
pub(super) struct Function<'a> {
    name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<Cow<'a, str>>,
    parameters: &'a RawValue,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    strict: bool,
}

pub(super) fn read<'a>(tools: &[&'a RawValue], dropped: &mut Dropped) -> Result<Vec<Tool<'a>>, Refusal> {
    tools.iter().enumerate().map(|(at, tool)| one(Members::read(tool.get(), format!("tools[{at}]"))?, dropped)).collect()
}

fn one<'a>(mut tool: Members<'a>, dropped: &mut Dropped) -> Result<Tool<'a>, Refusal> {
    if let Some(kind) = tool.text("type")?.filter(|kind| kind != "custom") {
        return Err(cannot_carry(&tool.path("type"), &format!("a tool of type `{kind}`")));
    }
    let path = tool.path("input_schema");
    let function = Function {
        name: tool.required_text("name")?,
        description: tool.text("description")?,
        parameters: tool.take("input_schema").ok_or_else(|| wrong(&path, "an object"))?,
        strict: tool.typed::<bool>("strict", "a boolean")?.unwrap_or_default(),
    };
    // `cache_control` is named alike wherever it stands.
    if tool.take("cache_control").is_some() {
        dropped.add("cache_control");
    }
    tool.drop_rest("tools.", dropped);
    Ok(Tool::Function { function })
}

/// `tool_choice` and `parallel_tool_calls`; both mean nothing, and are refused, without tools.
pub(super) fn choice(members: &mut Members<'_>, has_tools: bool) -> Result<(Option<Value>, Option<bool>), Refusal> {
    let Some(mut choice) = members.object("tool_choice")? else { return Ok((None, None)) };
    let kind = choice.required_text("type")?;
    let one_at_a_time = choice.typed::<bool>("disable_parallel_tool_use", "a boolean")? == Some(true);
    let (value, is_forced) = match kind.as_ref() {
        "auto" => (json!("auto"), false),
        "none" => (json!("none"), false),
        "any" => (json!("required"), true),
        "tool" => (json!({"type": "function", "function": {"name": choice.required_text("name")?}}), true),
        other => return Err(cannot_carry("tool_choice.type", &format!("the choice `{other}`"))),
    };
    match (has_tools, is_forced) {
        (true, _) => Ok((Some(value), one_at_a_time.then_some(false))),
        (false, false) => Ok((None, None)),
        (false, true) => Err(Refusal::invalid("tool_choice", "`tool_choice` asks for a tool, and there are no `tools`.")),
    }
}
