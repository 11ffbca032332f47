//! A response's request as a chat one.

use super::input;
use crate::refusal::Refusal;
use crate::translate::Outgoing;
use crate::translate::members::{Dropped, Members, cannot_carry, wrong};
use crate::translate::models::Gpt;
use crate::value::json;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<Format<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<Value>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Tool<'a> {
    Function { function: Function<'a> },
}

#[derive(Serialize)]
struct Function<'a> {
    name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Format<'a> {
    JsonObject,
    JsonSchema { json_schema: Schema<'a> },
}

#[derive(Serialize)]
struct Schema<'a> {
    name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<Cow<'a, str>>,
    schema: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

/// Translates a request; `max_output_tokens` is the model's own maximum (0: not known).
///
/// # Errors
/// A 400 that names the content which cannot be carried.
pub fn request(body: &str, upstream_model: &str, max_output_tokens: u64, stream: bool) -> Result<Outgoing, Refusal> {
    as_chat(body, upstream_model, max_output_tokens, stream, Gpt::of(upstream_model) != Gpt::Plain)
}

/// The same; `takes_effort`: the model can be told how hard to think.
///
/// # Errors
/// As [`request`].
pub fn as_chat(body: &str, upstream_model: &str, max_output_tokens: u64, stream: bool, takes_effort: bool) -> Result<Outgoing, Refusal> {
    let mut members = Members::read(body, "")?;
    let mut dropped = Dropped::default();
    for handled in ["model", "stream", "stream_options", "background"] {
        members.take(handled);
    }
    refuse_what_has_no_match(&mut members)?;
    let messages = input::messages(&mut members, &mut dropped)?;
    let tools = tools(&members.list("tools")?, &mut dropped)?;
    let tool_choice = tool_choice(&mut members, tools.is_empty())?;
    let parallel_tool_calls = members.typed::<bool>("parallel_tool_calls", "a boolean")?.filter(|_| !tools.is_empty());
    let most = |asked: u64| if max_output_tokens == 0 { asked } else { asked.min(max_output_tokens) };
    let out = Body {
        model: upstream_model,
        messages,
        max_completion_tokens: members.typed::<u64>("max_output_tokens", "a whole number")?.map(most),
        tools,
        tool_choice,
        parallel_tool_calls,
        temperature: members.take("temperature"),
        top_p: members.take("top_p"),
        reasoning_effort: effort(&mut members, takes_effort, &mut dropped)?,
        response_format: format(&mut members, &mut dropped)?,
        user: members.text("user")?,
        stream,
        stream_options: stream.then(|| json!({"include_usage": true})),
    };
    // Nothing is kept in any case.
    if members.typed::<bool>("store", "a boolean")? == Some(true) {
        dropped.add("store");
    }
    members.drop_rest("", &mut dropped);
    let body = serde_json::to_vec(&out).map_err(|_| wrong("input", "a string or an array of items"))?;
    Ok(Outgoing { body, dropped: dropped.into_names() })
}

fn refuse_what_has_no_match(members: &mut Members<'_>) -> Result<(), Refusal> {
    for (name, what) in [
        ("previous_response_id", "a response that another provider keeps"),
        ("conversation", "a conversation that another provider keeps"),
        ("prompt", "a prompt that another provider keeps"),
    ] {
        if members.take(name).is_some() {
            return Err(cannot_carry(name, what));
        }
    }
    Ok(())
}

fn tools<'a>(tools: &[&'a RawValue], dropped: &mut Dropped) -> Result<Vec<Tool<'a>>, Refusal> {
    let one = |(at, tool): (usize, &&'a RawValue)| {
        let mut tool = Members::read(tool.get(), format!("tools[{at}]"))?;
        let kind = tool.required_text("type")?;
        if kind != "function" {
            return Err(cannot_carry(&tool.path("type"), &format!("a tool of type `{kind}`")));
        }
        let function = Function {
            name: tool.required_text("name")?,
            description: tool.text("description")?,
            parameters: tool.take("parameters"),
            strict: tool.typed("strict", "a boolean")?,
        };
        tool.drop_rest("tools.", dropped);
        Ok(Tool::Function { function })
    };
    tools.iter().enumerate().map(one).collect()
}

fn tool_choice(members: &mut Members<'_>, no_tools: bool) -> Result<Option<Value>, Refusal> {
    let Some(choice) = members.take("tool_choice") else { return Ok(None) };
    if let Ok(word) = serde_json::from_str::<Cow<'_, str>>(choice.get()) {
        return match word.as_ref() {
            "auto" | "none" => Ok((!no_tools).then(|| json!(word))),
            "required" => Ok(Some(json!("required"))),
            other => Err(cannot_carry("tool_choice", &format!("the choice `{other}`"))),
        };
    }
    let mut choice = Members::read(choice.get(), "tool_choice")?;
    let kind = choice.required_text("type")?;
    if kind != "function" {
        return Err(cannot_carry("tool_choice.type", &format!("the choice of a tool of type `{kind}`")));
    }
    Ok(Some(json!({"type": "function", "function": {"name": choice.required_text("name")?}})))
}

fn effort<'a>(members: &mut Members<'a>, takes_effort: bool, dropped: &mut Dropped) -> Result<Option<Cow<'a, str>>, Refusal> {
    let Some(mut reasoning) = members.object("reasoning")? else { return Ok(None) };
    let mut effort = reasoning.text("effort")?;
    if effort.is_some() && !takes_effort {
        dropped.add("reasoning.effort");
        effort = None;
    }
    reasoning.drop_rest("reasoning.", dropped);
    Ok(effort)
}

fn format<'a>(members: &mut Members<'a>, dropped: &mut Dropped) -> Result<Option<Format<'a>>, Refusal> {
    let Some(mut text) = members.object("text")? else { return Ok(None) };
    let format = text.object("format")?;
    text.drop_rest("text.", dropped);
    let Some(mut format) = format else { return Ok(None) };
    match format.required_text("type")?.as_ref() {
        "text" => Ok(None),
        "json_object" => Ok(Some(Format::JsonObject)),
        "json_schema" => {
            let path = format.path("schema");
            let json_schema = Schema {
                name: format.required_text("name")?,
                description: format.text("description")?,
                schema: format.take("schema").ok_or_else(|| wrong(&path, "an object"))?,
                strict: format.typed("strict", "a boolean")?,
            };
            Ok(Some(Format::JsonSchema { json_schema }))
        }
        other => Err(cannot_carry("text.format.type", &format!("the format `{other}`"))),
    }
}
