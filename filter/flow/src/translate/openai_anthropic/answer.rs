//! An Anthropic answer or error as an OpenAI one.

use crate::object::{body_members, members, objects, optional};
use crate::refusal::kind;
use crate::stream::usage::AnthropicUsage;
use crate::translate::{error, openai_usage};
use crate::value::{json, written};
use proxium_wire::Dialect;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: [Choice; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

#[derive(Serialize)]
struct Choice {
    index: u8,
    message: Reply,
    logprobs: Option<()>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Reply {
    role: &'static str,
    content: Option<String>,
    refusal: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

#[derive(Serialize)]
struct ToolCall {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function,
}

#[derive(Serialize)]
struct Function {
    name: String,
    arguments: String,
}

/// Translates a whole answer; `None` if it is none. Thinking becomes `reasoning_content`, as in a stream; signatures and redacted
/// thinking have no place in an OpenAI answer.
#[must_use]
pub fn answer(body: &[u8], shown_model: &str, id: &str, created_s: u64) -> Option<Vec<u8>> {
    let [content, stop_reason, stop_details, usage, error] =
        body_members(body, ["content", "stop_reason", "stop_details", "usage", "error"])?;
    if error.is_some() {
        return None;
    }
    let (mut text, mut reasoning_content) = (String::new(), String::new());
    let mut tool_calls = Vec::new();
    for [kind, said, thinking, id, name, input] in objects(Some(content?), ["type", "text", "thinking", "id", "name", "input"])? {
        let kind: String = optional(kind)??;
        match kind.as_str() {
            "text" => text.push_str(&optional::<String>(said)?.unwrap_or_default()),
            "thinking" => reasoning_content.push_str(&optional::<String>(thinking)?.unwrap_or_default()),
            "tool_use" => {
                let arguments = input.map_or("{}", RawValue::get).to_owned();
                let function = Function { name: optional(name)??, arguments };
                tool_calls.push(ToolCall { id: optional(id)??, kind: "function", function });
            }
            _ => {}
        }
    }
    let stop_reason: String = optional(stop_reason)?.unwrap_or_default();
    let details = stop_details.filter(|_| stop_reason == "refusal").and_then(|details| members(details.get(), ["explanation"]));
    let refusal = details.and_then(|[explanation]| crate::stream::text(explanation));
    let usage = AnthropicUsage::of(usage);
    let content = if text.is_empty() && !tool_calls.is_empty() { None } else { Some(text) };
    let reply = Reply { role: "assistant", content, refusal, reasoning_content, tool_calls };
    let completion = Completion {
        id,
        object: "chat.completion",
        created: created_s,
        model: shown_model,
        choices: [Choice { index: 0, message: reply, logprobs: None, finish_reason: finish_reason(&stop_reason) }],
        usage: usage.as_ref().map(openai_usage),
    };
    serde_json::to_vec(&completion).ok()
}

/// Why generation ended, in OpenAI's words. A turn that paused or outgrew the context is cut off, not finished.
#[must_use]
pub fn finish_reason(stop_reason: &str) -> &'static str {
    match stop_reason {
        "tool_use" => "tool_calls",
        "max_tokens" | "model_context_window_exceeded" | "pause_turn" => "length",
        "refusal" => "content_filter",
        _ => "stop",
    }
}

/// Translates a provider's own error. OpenAI's clients find the request's id in a header, not in the body.
#[must_use]
pub fn error(status: u16, body: &[u8], _request_id: &str) -> Vec<u8> {
    let told = error::read(status, body);
    let error = json!({"message": told.message, "type": kind(status, Dialect::Openai), "param": told.param, "code": told.code});
    written(&json!({"error": error})).into_bytes()
}
