//! An OpenAI chat request as an Anthropic one.

use super::messages::{self, Block, Content, Turn};
use super::tools::{self, Tool, ToolChoice};
use crate::json;
use crate::refusal::Refusal;
use crate::translate::members::{Dropped, Members, cannot_carry, string, wrong};
use crate::translate::models::Claude;
use crate::translate::{Outgoing, effort};
use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Anthropic's longest `metadata.user_id`.
const MAX_USER_CHARS: usize = 256;

/// Parameters that ask for nothing when they are `false`.
const OFF_BY_DEFAULT: [&str; 2] = ["logprobs", "store"];

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<Content<'a>>,
    messages: Vec<Turn<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<ToolChoice<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stop_sequences: Vec<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<Cow<'a, RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Thinking>,
    #[serde(skip_serializing_if = "OutputConfig::is_empty")]
    output_config: OutputConfig<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stream: bool,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Thinking {
    Adaptive,
    Enabled { budget_tokens: u64 },
}

#[derive(Default, Serialize)]
struct OutputConfig<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<Format<'a>>,
}

impl OutputConfig<'_> {
    fn is_empty(&self) -> bool {
        self.effort.is_none() && self.format.is_none()
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Format<'a> {
    JsonSchema { schema: &'a RawValue },
}

#[derive(Serialize)]
struct Metadata<'a> {
    user_id: Cow<'a, str>,
}

/// Translates a chat request; `max_output_tokens` is the model's own maximum (0: not known).
///
/// # Errors
/// A 400 that names the content which cannot be carried.
pub fn request(body: &str, upstream_model: &str, max_output_tokens: u64, stream: bool) -> Result<Outgoing, Refusal> {
    let mut members = Members::read(body, "")?;
    let mut dropped = Dropped::default();
    let model = Claude::of(upstream_model);
    for handled in ["model", "stream", "stream_options"] {
        members.take(handled);
    }
    refuse_what_has_no_match(&mut members)?;
    let conversation = messages::read(&members.list("messages")?, &mut dropped)?;
    let max_tokens = max_tokens(&mut members, max_output_tokens)?;
    let tools = tools::read(&members.list("tools")?, &mut dropped)?;
    let tool_choice = tools::choice(&mut members, !tools.is_empty())?;
    let is_forced = tool_choice.as_ref().is_some_and(ToolChoice::is_forced);
    let thoughtless = is_forced || conversation.ends_with_tool_result();
    let (thinking, effort) = thinking(&mut members, model, max_tokens, thoughtless, &mut dropped)?;
    let (temperature, top_p) = sampling(&mut members, model, matches!(thinking, Some(Thinking::Enabled { .. })), &mut dropped)?;
    let out = Body {
        model: upstream_model,
        max_tokens,
        system: Content::of(conversation.system),
        messages: conversation.turns,
        tools,
        tool_choice,
        stop_sequences: stop(&mut members, &mut dropped)?,
        temperature,
        top_p,
        thinking,
        output_config: OutputConfig { effort, format: format(&mut members)? },
        metadata: metadata(&mut members, &mut dropped)?,
        stream,
    };
    for name in OFF_BY_DEFAULT {
        if members.take(name).is_some_and(|value| value.get() != "false") {
            dropped.add(name);
        }
    }
    members.drop_rest("", &mut dropped);
    let body = serde_json::to_vec(&out).map_err(|_| wrong("messages", "an array of messages"))?;
    Ok(Outgoing { body, dropped: dropped.into_names() })
}

fn refuse_what_has_no_match(members: &mut Members<'_>) -> Result<(), Refusal> {
    if members.typed::<u64>("n", "a whole number")?.is_some_and(|n| n > 1) {
        return Err(cannot_carry("n", "more than one answer"));
    }
    let modalities: Vec<String> = members.typed("modalities", "an array of strings")?.unwrap_or_default();
    if modalities.iter().any(|modality| modality != "text") {
        return Err(cannot_carry("modalities", "an answer other than text"));
    }
    for (name, what) in [
        ("functions", "deprecated functions (`tools` can be)"),
        ("function_call", "a deprecated function choice (`tool_choice` can be)"),
        ("web_search_options", "a provider's own web search"),
    ] {
        if members.take(name).is_some() {
            return Err(cannot_carry(name, what));
        }
    }
    Ok(())
}

/// Anthropic needs a limit, and refuses one above the model's own.
fn max_tokens(members: &mut Members<'_>, most: u64) -> Result<u64, Refusal> {
    let newer = members.typed::<u64>("max_completion_tokens", "a whole number")?;
    let older = members.typed::<u64>("max_tokens", "a whole number")?;
    let most = if most == 0 { None } else { Some(most) };
    match (newer.or(older), most) {
        (Some(0), _) => Err(wrong(if newer.is_some() { "max_completion_tokens" } else { "max_tokens" }, "at least 1")),
        (Some(asked), Some(most)) => Ok(asked.min(most)),
        (Some(asked), None) => Ok(asked),
        (None, Some(most)) => Ok(most),
        (None, None) => Ok(crate::translate::UNKNOWN_MAX_OUTPUT_TOKENS),
    }
}

/// `thoughtless`: with a budget the API refuses to think here, since a tool is forced or a turn with tool calls goes on whose thinking
/// an OpenAI client never saw.
fn thinking(
    members: &mut Members<'_>,
    model: Claude,
    max_tokens: u64,
    thoughtless: bool,
    dropped: &mut Dropped,
) -> Result<(Option<Thinking>, Option<&'static str>), Refusal> {
    const NAME: &str = "reasoning_effort";
    let Some(asked) = members.text(NAME)? else { return Ok((None, None)) };
    if !model.is_adaptive() {
        let budget = effort::budget(&asked, max_tokens).filter(|_| !thoughtless);
        if budget.is_none() && asked != "none" {
            dropped.add(NAME);
        }
        return Ok((budget.map(|budget_tokens| Thinking::Enabled { budget_tokens }), None));
    }
    let effort = match asked.as_ref() {
        "none" if !model.thinks_by_default() => return Ok((None, None)),
        "minimal" | "low" => "low",
        "medium" => "medium",
        "high" => "high",
        "xhigh" if model.takes_every_effort() => "xhigh",
        "max" if model.takes_every_effort() => "max",
        weakened => {
            dropped.add(NAME);
            match weakened {
                "none" => "low",
                "xhigh" | "max" => "high",
                _ => return Ok((None, None)),
            }
        }
    };
    let thinking = if thoughtless && !model.thinks_by_default() { None } else { Some(Thinking::Adaptive) };
    Ok((thinking, Some(effort)))
}

type Sampling<'a> = (Option<Cow<'a, RawValue>>, Option<&'a RawValue>);

/// OpenAI's temperature goes to 2, Anthropic's to 1. A model that takes neither, or thinks by a budget, keeps its own.
fn sampling<'a>(members: &mut Members<'a>, model: Claude, is_budgeted: bool, dropped: &mut Dropped) -> Result<Sampling<'a>, Refusal> {
    let temperature = members.typed::<&RawValue>("temperature", "a number")?;
    let top_p = members.typed::<&RawValue>("top_p", "a number")?;
    for (name, value) in [("temperature", temperature), ("top_p", top_p)] {
        if value.is_some_and(|value| json::number(value.get()).is_none()) {
            return Err(wrong(name, "a number"));
        }
    }
    if !model.samples() || is_budgeted {
        for (name, value) in [("temperature", temperature), ("top_p", top_p)] {
            if value.is_some() {
                dropped.add(name);
            }
        }
        return Ok((None, None));
    }
    let top_p = if model.samples_by_one() && temperature.is_some() && top_p.is_some() {
        dropped.add("top_p");
        None
    } else {
        top_p
    };
    let temperature = match temperature {
        Some(value) if json::number(value.get()).is_some_and(|number| number > 1.0) => {
            dropped.add("temperature");
            RawValue::from_string("1".into()).ok().map(Cow::Owned)
        }
        value => value.map(Cow::Borrowed),
    };
    Ok((temperature, top_p))
}

fn stop<'a>(members: &mut Members<'a>, dropped: &mut Dropped) -> Result<Vec<Cow<'a, str>>, Refusal> {
    const NAME: &str = "stop";
    let Some(value) = members.take(NAME) else { return Ok(Vec::new()) };
    let mut sequences: Vec<Cow<'a, str>> = match string(value) {
        Some(one) => vec![one],
        None => {
            let list: Vec<&'a RawValue> = serde_json::from_str(value.get()).map_err(|_| wrong(NAME, "a string or an array of strings"))?;
            list.into_iter()
                .map(|value| string(value).ok_or_else(|| wrong(NAME, "a string or an array of strings")))
                .collect::<Result<_, _>>()?
        }
    };
    let all = sequences.len();
    sequences.retain(|sequence| !sequence.trim().is_empty());
    if sequences.len() < all {
        dropped.add(NAME);
    }
    Ok(sequences)
}

/// What an answer must look like is never weakened.
fn format<'a>(members: &mut Members<'a>) -> Result<Option<Format<'a>>, Refusal> {
    let Some(mut format) = members.object("response_format")? else { return Ok(None) };
    match format.required_text("type")?.as_ref() {
        "text" => Ok(None),
        "json_schema" => {
            let mut named = format.object("json_schema")?.ok_or_else(|| wrong("response_format.json_schema", "an object"))?;
            let schema = named.take("schema").ok_or_else(|| wrong("response_format.json_schema.schema", "an object"))?;
            Ok(Some(Format::JsonSchema { schema }))
        }
        "json_object" => Err(cannot_carry("response_format", "`json_object` without a schema (`json_schema` can be)")),
        other => Err(cannot_carry("response_format", &format!("the format `{other}`"))),
    }
}

fn metadata<'a>(members: &mut Members<'a>, dropped: &mut Dropped) -> Result<Option<Metadata<'a>>, Refusal> {
    let user = members.text("user")?;
    let safety = members.text("safety_identifier")?;
    let (name, user_id) = match (user, safety) {
        (Some(user), _) => ("user", user),
        (None, Some(safety)) => ("safety_identifier", safety),
        (None, None) => return Ok(None),
    };
    if user_id.is_empty() {
        return Ok(None);
    }
    if user_id.chars().count() > MAX_USER_CHARS || is_personal(&user_id) {
        dropped.add(name);
        return Ok(None);
    }
    Ok(Some(Metadata { user_id }))
}

/// A mail address or a phone number.
fn is_personal(text: &str) -> bool {
    let digits = text.chars().filter(char::is_ascii_digit).count();
    let is_phone = (7..=15).contains(&digits) && text.chars().all(|c| c.is_ascii_digit() || "+-() .".contains(c));
    text.contains('@') || is_phone
}

/// A turn's text, if it has one that Anthropic takes: it refuses blocks of white space.
pub(super) fn text_block(text: Cow<'_, str>) -> Option<Block<'_>> {
    (!text.trim().is_empty()).then_some(Block::Text { text })
}
