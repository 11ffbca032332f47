//! An OpenAI answer or error as an Anthropic one.

use crate::refusal::kind;
use crate::translate::completion::{Completion, content};
use crate::translate::members::object_text;
use crate::translate::{anthropic_usage, error};
use crate::value::{json, written};
use proxium_wire::Dialect;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

#[derive(Serialize)]
struct Message<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block>,
    stop_reason: &'static str,
    stop_sequence: Option<()>,
    usage: Value,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Text { text: String },
    ToolUse { id: String, name: String, input: Box<RawValue> },
}

/// Translates a whole answer. `None` if it is none, or if the model ended it with a tool call whose arguments are no JSON object: a
/// client that runs tools must not be handed made-up ones. A call that the token limit cut off is left out; `max_tokens` tells of it.
///
/// `created_s` has no place in an Anthropic answer.
#[must_use]
pub fn answer(body: &[u8], shown_model: &str, id: &str, _created_s: u64) -> Option<Vec<u8>> {
    let completion = Completion::read(body)?;
    let finish_reason = completion.finish_reason;
    let is_refused = completion.refusal.as_deref().is_some_and(|refusal| !refusal.is_empty());
    let texts = [Some(content(completion.content)), completion.refusal].into_iter().flatten();
    let mut content: Vec<Block> = texts.filter(|text| !text.is_empty()).map(|text| Block::Text { text }).collect();
    let mut has_calls = false;
    for (at, call) in completion.tool_calls.into_iter().enumerate() {
        match input(call.arguments) {
            Some(input) => {
                let id = call.id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("toolu_{id}_{at}"));
                content.push(Block::ToolUse { id, name: call.name, input });
                has_calls = true;
            }
            None if finish_reason == "length" => {}
            None => return None,
        }
    }
    let message = Message {
        id,
        kind: "message",
        role: "assistant",
        model: shown_model,
        content,
        stop_reason: stop_reason(&finish_reason, has_calls, is_refused),
        stop_sequence: None,
        usage: anthropic_usage(&completion.usage),
    };
    serde_json::to_vec(&message).ok()
}

fn input(arguments: Option<&RawValue>) -> Option<Box<RawValue>> {
    let Some(arguments) = arguments.filter(|arguments| arguments.get() != "null") else { return object_text("{}") };
    match serde_json::from_str::<String>(arguments.get()) {
        Ok(text) if matches!(text.trim(), "" | "null") => object_text("{}"),
        Ok(text) => object_text(&text),
        Err(_) => object_text(arguments.get()),
    }
}

/// Why generation ended, in Anthropic's words. A forced tool call ends with `stop` at OpenAI, and a refusal's text too.
#[must_use]
pub fn stop_reason(finish_reason: &str, has_tool_calls: bool, is_refused: bool) -> &'static str {
    match finish_reason {
        "length" => "max_tokens",
        "content_filter" => "refusal",
        _ if is_refused => "refusal",
        _ if has_tool_calls => "tool_use",
        _ => "end_turn",
    }
}

/// Translates a provider's own error.
#[must_use]
pub fn error(status: u16, body: &[u8], request_id: &str) -> Vec<u8> {
    let told = error::read(status, body);
    let error = json!({"type": kind(status, Dialect::Anthropic), "message": told.message, "code": told.code, "param": told.param});
    written(&json!({"type": "error", "error": error, "request_id": request_id})).into_bytes()
}
