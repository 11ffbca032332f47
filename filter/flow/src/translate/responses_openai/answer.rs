//! A chat completion as a response.

use crate::object::optional;
use crate::stream::responses::{Frame, ended, function_call, message, part};
use crate::translate::completion::Completion;
use crate::value::written;
use serde_json::Value;
use serde_json::value::RawValue;

/// Translates a whole answer. `None` if it is none.
#[must_use]
pub fn answer(body: &[u8], frame: Frame) -> Option<Vec<u8>> {
    let completion = Completion::read(body)?;
    let content: Option<String> = optional(completion.content)?;
    let unique = frame.id.strip_prefix("resp_").unwrap_or(&frame.id);
    let (status, incomplete) = ended(&completion.finish_reason);
    let texts = [(content, false), (completion.refusal, true)];
    let parts: Vec<Value> =
        texts.iter().filter_map(|(text, is_refusal)| Some(part(text.as_deref().filter(|text| !text.is_empty())?, *is_refusal))).collect();
    let calls = completion.tool_calls;
    let mut output = Vec::with_capacity(calls.len() + 1);
    if !parts.is_empty() || calls.is_empty() {
        output.push(message(&format!("msg_{unique}"), status, parts));
    }
    for (at, call) in calls.into_iter().enumerate() {
        let id = call.id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call_{unique}_{at}"));
        let arguments = call.arguments.map_or("", RawValue::get);
        let arguments = serde_json::from_str::<String>(arguments).unwrap_or_else(|_| arguments.to_owned());
        output.push(function_call(&format!("fc_{unique}_{at}"), status, &id, &call.name, &arguments));
    }
    Some(written(&frame.response(status, output, Some(&completion.usage), incomplete)).into_bytes())
}
