//! The Anthropic dialect.

use super::behaviour::Answer;
use super::call::Call;
use serde_json::{Value, json};

pub(super) fn error(status: u16) -> Value {
    let kind = match status {
        429 => "rate_limit_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": format!("the mock was asked to fail with {status}")}, "request_id": "req_mock"})
}

/// Unlike OpenAI's, its input excludes what the cache served.
fn usage(input: u64, cached: u64, output: u64) -> Value {
    json!({"input_tokens": input - cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached, "output_tokens": output})
}

fn message(call: &Call, id: &str, content: &Value, stop_reason: Option<&str>, usage: Option<Value>) -> Value {
    let mut message = json!({
        "id": id, "type": "message", "role": "assistant", "model": call.model, "content": content,
        "stop_reason": stop_reason, "stop_sequence": null,
    });
    if let (Some(usage), Some(message)) = (usage, message.as_object_mut()) {
        message.insert("usage".into(), usage);
    }
    message
}

fn stop_reason(answer: &Answer) -> &str {
    match answer.finish.as_deref() {
        None => "end_turn",
        // The by-name script says it in OpenAI's word.
        Some("length") => "max_tokens",
        Some(other) => other,
    }
}

/// A `message`.
pub(super) fn unary(call: &Call, answer: &Answer, id: &str) -> Value {
    let content = if answer.no_choices { json!([]) } else { json!([{"type": "text", "text": call.text(answer)}]) };
    message(call, id, &content, Some(stop_reason(answer)), call.usage(answer, usage))
}

/// The events of a message, a word each.
pub(super) fn stream(call: &Call, answer: &Answer, id: &str) -> Vec<String> {
    let event = |data: &Value| {
        let name = data.get("type").and_then(Value::as_str).unwrap_or_default();
        format!("event: {name}\ndata: {data}\n\n")
    };
    let usage = call.usage(answer, usage);
    let at_start = usage.clone().map(|mut usage| {
        if let Some(output) = usage.get_mut("output_tokens") {
            *output = json!(1);
        }
        usage
    });
    let mut events = vec![event(&json!({"type": "message_start", "message": message(call, id, &json!([]), None, at_start)}))];
    if !answer.no_choices {
        events.push(event(&json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})));
        let text = call.text(answer);
        events.extend(
            text.split_inclusive(' ')
                .map(|word| event(&json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}))),
        );
        events.push(event(&json!({"type": "content_block_stop", "index": 0})));
    }
    let mut end = json!({"type": "message_delta", "delta": {"stop_reason": stop_reason(answer), "stop_sequence": null}});
    if let (Some(usage), Some(end)) = (usage, end.as_object_mut()) {
        end.insert("usage".into(), json!({"output_tokens": usage.get("output_tokens")}));
    }
    events.push(event(&end));
    events.push(event(&json!({"type": "message_stop"})));
    events
}

/// `count_tokens`
pub(super) fn count_tokens(call: &Call) -> Value {
    json!({"input_tokens": call.words})
}
