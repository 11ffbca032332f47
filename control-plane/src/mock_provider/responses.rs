//! OpenAI's `/responses`, unary and as its named events.

use super::behaviour::Answer;
use super::call::Call;
use super::script::{Part, halves};
use serde_json::{Map, Value, json};

fn usage(input: u64, cached: u64, output: u64) -> Value {
    json!({
        "input_tokens": input, "input_tokens_details": {"cached_tokens": cached}, "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": input + output,
    })
}

/// No two mocks give the same, as no two providers do.
pub(super) fn id(call: &Call, number: u64) -> String {
    format!("resp_mock_{}_{number}", call.model)
}

fn response(call: &Call, id: &str, status: &str, output: &[Value]) -> Map<String, Value> {
    let given = |name: &str, default: Value| call.body.get(name).cloned().unwrap_or(default);
    let response = json!({
        "id": id, "object": "response", "created_at": 1_700_000_000, "status": status, "error": null, "incomplete_details": null,
        "instructions": given("instructions", Value::Null), "metadata": given("metadata", json!({})), "model": call.model,
        "output": output, "parallel_tool_calls": true, "previous_response_id": given("previous_response_id", Value::Null),
        "temperature": 1.0, "tool_choice": given("tool_choice", json!("auto")), "tools": given("tools", json!([])), "top_p": 1.0,
        "usage": null,
    });
    match response {
        Value::Object(response) => response,
        _ => Map::new(),
    }
}

/// The whole of it, with its usage; `incomplete` where the answer's finish says so.
fn ended(call: &Call, answer: &Answer, id: &str, output: &[Value]) -> Map<String, Value> {
    let incomplete = answer.finish.as_deref() == Some("length");
    let mut response = response(call, id, if incomplete { "incomplete" } else { "completed" }, output);
    if incomplete {
        response.insert("incomplete_details".into(), json!({"reason": "max_output_tokens"}));
    }
    response.insert("usage".into(), call.usage(answer, usage).unwrap_or(Value::Null));
    response
}

/// An item of the output, empty as it is added or whole as it is done.
fn item(id: &str, at: usize, part: &Part, whole: bool) -> Value {
    let status = if whole { "completed" } else { "in_progress" };
    match part {
        Part::Text(text) => {
            let content = json!([{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]);
            let content = if whole { content } else { json!([]) };
            json!({"id": format!("msg_{id}_{at}"), "type": "message", "role": "assistant", "status": status, "content": content})
        }
        Part::Thinking { text, .. } => {
            let summary = if whole { json!([{"type": "summary_text", "text": text}]) } else { json!([]) };
            json!({"id": format!("rs_{id}_{at}"), "type": "reasoning", "summary": summary})
        }
        Part::Call { id: call_id, name, arguments } => {
            let arguments = if whole { arguments.as_str() } else { "" };
            json!({"id": format!("fc_{id}_{at}"), "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, "status": status})
        }
    }
}

fn items(id: &str, parts: &[Part]) -> Vec<Value> {
    parts.iter().enumerate().map(|(at, part)| item(id, at, part, true)).collect()
}

pub(super) fn unary(call: &Call, answer: &Answer, id: &str) -> Value {
    let output = if answer.no_choices { Vec::new() } else { items(id, &call.parts(answer)) };
    let mut response = ended(call, answer, id, &output);
    if answer.no_choices {
        response.remove("output");
    }
    Value::Object(response)
}

/// The events of an answer, text in words, arguments in two pieces; the usage is in the last.
pub(super) fn stream(call: &Call, answer: &Answer, id: &str) -> Vec<String> {
    let mut events = Vec::new();
    let mut tell = |kind: &str, mut data: Value| {
        if let Some(data) = data.as_object_mut() {
            data.insert("type".into(), json!(kind));
            data.insert("sequence_number".into(), json!(events.len()));
        }
        events.push(format!("event: {kind}\ndata: {data}\n\n"));
    };
    let begun = response(call, id, "in_progress", &[]);
    tell("response.created", json!({"response": begun}));
    tell("response.in_progress", json!({"response": begun}));
    let parts = call.parts(answer);
    for (at, part) in parts.iter().enumerate() {
        let (added, done) = (item(id, at, part, false), item(id, at, part, true));
        let here = |more: Value| {
            let mut here = json!({"item_id": done.get("id"), "output_index": at});
            if let (Some(here), Value::Object(more)) = (here.as_object_mut(), more) {
                here.extend(more);
            }
            here
        };
        tell("response.output_item.added", json!({"output_index": at, "item": added}));
        match part {
            Part::Text(text) => {
                let part = |text: &str| json!({"content_index": 0, "part": {"type": "output_text", "text": text, "annotations": []}});
                tell("response.content_part.added", here(part("")));
                for word in text.split_inclusive(' ') {
                    tell("response.output_text.delta", here(json!({"content_index": 0, "delta": word, "logprobs": []})));
                }
                tell("response.output_text.done", here(json!({"content_index": 0, "text": text, "logprobs": []})));
                tell("response.content_part.done", here(part(text)));
            }
            Part::Thinking { text, .. } => {
                tell("response.reasoning_summary_text.delta", here(json!({"summary_index": 0, "delta": text})));
            }
            Part::Call { name, arguments, .. } => {
                for half in halves(arguments) {
                    tell("response.function_call_arguments.delta", here(json!({"delta": half})));
                }
                tell("response.function_call_arguments.done", here(json!({"arguments": arguments, "name": name})));
            }
        }
        tell("response.output_item.done", json!({"output_index": at, "item": done}));
    }
    let whole = ended(call, answer, id, &items(id, &parts));
    let kind = if whole.get("status").and_then(Value::as_str) == Some("incomplete") { "response.incomplete" } else { "response.completed" };
    tell(kind, json!({"response": whole}));
    events
}
