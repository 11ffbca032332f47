//! An Anthropic messages request as an OpenAI chat one.

use super::messages::{self, Message};
use super::tools::{self, Tool};
use crate::json;
use crate::refusal::Refusal;
use crate::translate::members::{Dropped, Members, cannot_carry, wrong};
use crate::translate::models::Gpt;
use crate::translate::{Outgoing, effort};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// OpenAI's longest `user`.
const MAX_USER_CHARS: usize = 64;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<Message<'a>>,
    max_completion_tokens: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stop: Vec<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<ResponseFormat<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponseFormat<'a> {
    JsonSchema { json_schema: JsonSchema<'a> },
}

#[derive(Serialize)]
struct JsonSchema<'a> {
    name: &'static str,
    schema: &'a RawValue,
    strict: bool,
}

/// Translates a messages request; `max_output_tokens` is the model's own maximum (0: not known).
///
/// # Errors
/// A 400 that names the content which cannot be carried.
pub fn request(body: &str, upstream_model: &str, max_output_tokens: u64, stream: bool) -> Result<Outgoing, Refusal> {
    let mut members = Members::read(body, "")?;
    let mut dropped = Dropped::default();
    let model = Gpt::of(upstream_model);
    for handled in ["model", "stream"] {
        members.take(handled);
    }
    refuse_what_has_no_match(&mut members)?;
    let mut turns = messages::system(&mut members, &mut dropped)?;
    messages::read(&members.list("messages")?, &mut turns, &mut dropped)?;
    let asked = members.typed::<u64>("max_tokens", "a whole number")?.unwrap_or(match max_output_tokens {
        0 => crate::translate::UNKNOWN_MAX_OUTPUT_TOKENS,
        most => most,
    });
    let tools = tools::read(&members.list("tools")?, &mut dropped)?;
    let (tool_choice, parallel_tool_calls) = tools::choice(&mut members, !tools.is_empty())?;
    let mut output = members.object("output_config")?;
    let reasoning_effort = reasoning_effort(&mut members, output.as_mut(), model, &mut dropped)?;
    let response_format = format(&mut members, output.as_mut())?;
    if let Some(output) = output {
        output.drop_rest("output_config.", &mut dropped);
    }
    let out = Body {
        model: upstream_model,
        messages: turns,
        max_completion_tokens: if max_output_tokens == 0 { asked } else { asked.min(max_output_tokens) },
        tools,
        tool_choice,
        parallel_tool_calls,
        stop: members.list("stop_sequences")?,
        temperature: sampling("temperature", &mut members, model, &mut dropped)?,
        top_p: sampling("top_p", &mut members, model, &mut dropped)?,
        reasoning_effort,
        response_format,
        user: user(&mut members, &mut dropped)?,
        stream,
        stream_options: stream.then_some(StreamOptions { include_usage: true }),
    };
    members.drop_rest("", &mut dropped);
    let body = serde_json::to_vec(&out).map_err(|_| wrong("messages", "an array of messages"))?;
    Ok(Outgoing { body, dropped: dropped.into_names() })
}

fn refuse_what_has_no_match(members: &mut Members<'_>) -> Result<(), Refusal> {
    for (name, what) in [
        ("mcp_servers", "tools of MCP servers that the provider calls"),
        ("container", "a container for code"),
        ("inference_geo", "a promise about where the model runs"),
    ] {
        if members.take(name).is_some_and(|value| value.get() != "[]") {
            return Err(cannot_carry(name, what));
        }
    }
    Ok(())
}

/// What the client said of thinking, in one word; what a model cannot be told is named.
fn reasoning_effort(
    members: &mut Members<'_>,
    output: Option<&mut Members<'_>>,
    model: Gpt,
    dropped: &mut Dropped,
) -> Result<Option<&'static str>, Refusal> {
    const EFFORT: &str = "output_config.effort";
    let effort = output.map(|output| output.text("effort")).transpose()?.flatten();
    let thinking = members.object("thinking")?;
    let reasons = model != Gpt::Plain;
    let asked = match effort.as_deref() {
        None => None,
        Some(_) if !reasons => {
            dropped.add(EFFORT);
            None
        }
        Some("low") => Some("low"),
        Some("medium") => Some("medium"),
        Some("high") => Some("high"),
        Some(more) => {
            dropped.add(EFFORT);
            matches!(more, "xhigh" | "max").then_some("high")
        }
    };
    let Some(mut thinking) = thinking else { return Ok(asked) };
    let kind = thinking.required_text("type")?;
    let budget = thinking.typed::<u64>("budget_tokens", "a whole number")?;
    match kind.as_ref() {
        "disabled" | "between_tools" if reasons => Ok(Some("low")),
        // A model that does not reason does as it was told.
        "disabled" | "between_tools" => Ok(None),
        _ if !reasons => {
            dropped.add("thinking");
            Ok(None)
        }
        "enabled" => Ok(asked.or(budget.map(effort::of_budget))),
        "adaptive" => Ok(asked),
        _ => {
            dropped.add("thinking");
            Ok(asked)
        }
    }
}

/// A schema is a promise, so it is strict: a schema that OpenAI's strict mode does not take is refused by it, by name.
fn format<'a>(members: &mut Members<'a>, output: Option<&mut Members<'a>>) -> Result<Option<ResponseFormat<'a>>, Refusal> {
    let newer = output.map(|output| output.object("format")).transpose()?.flatten();
    let older = members.object("output_format")?;
    let Some(mut format) = newer.or(older) else { return Ok(None) };
    let kind = format.required_text("type")?;
    if kind != "json_schema" {
        return Err(cannot_carry(&format.path("type"), &format!("the format `{kind}`")));
    }
    let path = format.path("schema");
    let schema = format.take("schema").ok_or_else(|| wrong(&path, "an object"))?;
    Ok(Some(ResponseFormat::JsonSchema { json_schema: JsonSchema { name: "answer", schema, strict: true } }))
}

fn sampling<'a>(name: &str, members: &mut Members<'a>, model: Gpt, dropped: &mut Dropped) -> Result<Option<&'a RawValue>, Refusal> {
    let Some(value) = members.take(name) else { return Ok(None) };
    let number = json::number(value.get()).ok_or_else(|| wrong(name, "a number"))?;
    if model != Gpt::Reasons {
        return Ok(Some(value));
    }
    // 1 is what such a model does in any case.
    if number != 1.0 {
        dropped.add(name);
    }
    Ok(None)
}

fn user<'a>(members: &mut Members<'a>, dropped: &mut Dropped) -> Result<Option<Cow<'a, str>>, Refusal> {
    let Some(mut metadata) = members.object("metadata")? else { return Ok(None) };
    let user = metadata.text("user_id")?.filter(|user| !user.is_empty());
    metadata.drop_rest("metadata.", dropped);
    if user.as_ref().is_some_and(|user| user.chars().count() > MAX_USER_CHARS) {
        dropped.add("metadata.user_id");
        return Ok(None);
    }
    Ok(user)
}
