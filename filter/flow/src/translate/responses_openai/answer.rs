//! A chat completion as a response.

use crate::dialect::openai::UsageBody;
use crate::stream::responses::{Frame, ended, function_call, message, part};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Completion<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    message: Reply<'a>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Reply<'a> {
    content: Option<String>,
    refusal: Option<String>,
    #[serde(borrow)]
    tool_calls: Option<Vec<ToolCall<'a>>>,
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    id: Option<String>,
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    name: String,
    /// A string of JSON; some servers give the object itself.
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// Translates a whole answer. `None` if it is none.
#[must_use]
pub fn answer(body: &[u8], frame: Frame) -> Option<Vec<u8>> {
    let completion: Completion<'_> = crate::json::parse(body).ok()?;
    let choice = completion.choices.into_iter().next()?;
    let unique = frame.id.strip_prefix("resp_").unwrap_or(&frame.id);
    let (status, incomplete) = ended(choice.finish_reason.as_deref().unwrap_or_default());
    let texts = [(choice.message.content, false), (choice.message.refusal, true)];
    let parts: Vec<Value> =
        texts.iter().filter_map(|(text, is_refusal)| Some(part(text.as_deref().filter(|text| !text.is_empty())?, *is_refusal))).collect();
    let calls = choice.message.tool_calls.unwrap_or_default();
    let mut output = Vec::with_capacity(calls.len() + 1);
    if !parts.is_empty() || calls.is_empty() {
        output.push(message(&format!("msg_{unique}"), status, parts));
    }
    for (at, call) in calls.into_iter().enumerate() {
        let id = call.id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call_{unique}_{at}"));
        let arguments = call.function.arguments.map_or("", RawValue::get);
        let arguments = serde_json::from_str::<String>(arguments).unwrap_or_else(|_| arguments.to_owned());
        output.push(function_call(&format!("fc_{unique}_{at}"), status, &id, &call.function.name, &arguments));
    }
    let usage = completion.usage.and_then(|usage| serde_json::from_str::<UsageBody>(usage.get()).ok()).and_then(|usage| usage.read());
    Some(frame.response(status, output, Some(&usage.unwrap_or_default()), incomplete).to_string().into_bytes())
}
