//! Tools, and the choice among them.

use crate::refusal::Refusal;
use crate::translate::members::{Dropped, Members, cannot_carry, string, wrong};
use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Serialize)]
pub(super) struct Tool<'a> {
    name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<Cow<'a, str>>,
    input_schema: Cow<'a, RawValue>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    strict: bool,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ToolChoice<'a> {
    Auto {
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        disable_parallel_tool_use: bool,
    },
    Any {
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        disable_parallel_tool_use: bool,
    },
    Tool {
        name: Cow<'a, str>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        disable_parallel_tool_use: bool,
    },
    None,
}

impl ToolChoice<'_> {
    pub(super) fn is_forced(&self) -> bool {
        matches!(self, Self::Any { .. } | Self::Tool { .. })
    }
}

pub(super) fn read<'a>(tools: &[&'a RawValue], dropped: &mut Dropped) -> Result<Vec<Tool<'a>>, Refusal> {
    tools.iter().enumerate().map(|(at, tool)| one(Members::read(tool.get(), format!("tools[{at}]"))?, dropped)).collect()
}

fn one<'a>(mut tool: Members<'a>, dropped: &mut Dropped) -> Result<Tool<'a>, Refusal> {
    let kind = tool.required_text("type")?;
    if kind != "function" {
        return Err(cannot_carry(&tool.path("type"), &format!("a tool of type `{kind}`")));
    }
    let path = tool.path("function");
    let mut function = tool.object("function")?.ok_or_else(|| wrong(&path, "an object"))?;
    let name = function.required_text("name")?;
    let description = function.text("description")?.filter(|text| !text.is_empty());
    let schema_path = function.path("parameters");
    let input_schema = schema(function.take("parameters"), &schema_path)?;
    let strict = function.typed::<bool>("strict", "a boolean")?.unwrap_or_default();
    function.drop_rest("tools.", dropped);
    tool.drop_rest("tools.", dropped);
    Ok(Tool { name, description, input_schema, strict })
}

/// Anthropic needs a schema of type `object`; OpenAI lets it be left out.
fn schema<'a>(parameters: Option<&'a RawValue>, path: &str) -> Result<Cow<'a, RawValue>, Refusal> {
    let Some(parameters) = parameters else { return empty_schema(path) };
    let members = Members::read(parameters.get(), path)?;
    if members.has("type") {
        return Ok(Cow::Borrowed(parameters));
    }
    let rest = parameters.get().trim_start_matches('{').trim_start();
    if rest == "}" {
        return empty_schema(path);
    }
    RawValue::from_string(format!("{{\"type\":\"object\",{rest}")).map(Cow::Owned).map_err(|_| wrong(path, "an object"))
}

fn empty_schema<'a>(path: &str) -> Result<Cow<'a, RawValue>, Refusal> {
    RawValue::from_string(r#"{"type":"object","properties":{}}"#.into()).map(Cow::Owned).map_err(|_| wrong(path, "an object"))
}

pub(super) fn choice<'a>(members: &mut Members<'a>, has_tools: bool) -> Result<Option<ToolChoice<'a>>, Refusal> {
    const NAME: &str = "tool_choice";
    let disable_parallel_tool_use = members.typed::<bool>("parallel_tool_calls", "a boolean")? == Some(false);
    let Some(value) = members.take(NAME) else {
        return Ok((has_tools && disable_parallel_tool_use).then_some(ToolChoice::Auto { disable_parallel_tool_use }));
    };
    let choice = match string(value).as_deref() {
        Some("auto") => ToolChoice::Auto { disable_parallel_tool_use },
        Some("none") => ToolChoice::None,
        Some("required") => ToolChoice::Any { disable_parallel_tool_use },
        Some(other) => return Err(cannot_carry(NAME, &format!("the choice `{other}`"))),
        None => {
            let mut named = Members::read(value.get(), NAME)?;
            let kind = named.required_text("type")?;
            if kind != "function" {
                return Err(cannot_carry(NAME, &format!("a choice of type `{kind}`")));
            }
            let mut function = named.object("function")?.ok_or_else(|| wrong("tool_choice.function", "an object"))?;
            ToolChoice::Tool { name: function.required_text("name")?, disable_parallel_tool_use }
        }
    };
    match (has_tools, choice) {
        (false, choice) if choice.is_forced() => Err(Refusal::invalid(NAME, "`tool_choice` asks for a tool, and there are no `tools`.")),
        (false, _) => Ok(None),
        (true, choice) => Ok(Some(choice)),
    }
}
