//! The Anthropic dialect.

use super::behaviour::Answer;
use super::call::Call;
use super::script::{Part, halves};
use serde_json::{Value, json};

pub(super) fn error(status: u16) -> Value {
    let kind = match status {
        400 => "invalid_request_error",
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

fn message(call: &Call, id: &str, content: &Value, end: Value, usage: Option<Value>) -> Value {
    let mut message = json!({
        "id": id, "type": "message", "role": "assistant", "model": call.model, "content": content,
    });
    if let (Some(message), Value::Object(end)) = (message.as_object_mut(), end) {
        message.extend(end);
        message.extend(usage.map(|usage| ("usage".to_owned(), usage)));
    }
    message
}

/// How it ended.
fn end(call: &Call, answer: &Answer) -> Value {
    let stopped = call.stopped(&call.whole_text(answer)).map(|(_, sequence)| sequence);
    let reason = match answer.finish.as_deref() {
        None if call.parts(answer).iter().any(|part| matches!(part, Part::Call { .. })) => "tool_use",
        None if stopped.is_some() => "stop_sequence",
        None => "end_turn",
        // The by-name script says it in OpenAI's word.
        Some("length") => "max_tokens",
        Some(other) => other,
    };
    json!({"stop_reason": reason, "stop_sequence": stopped})
}

fn block(part: &Part) -> Value {
    match part {
        Part::Thinking { text, signature } => json!({"type": "thinking", "thinking": text, "signature": signature}),
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Call { id, name, arguments } => {
            let input: Value = serde_json::from_str(arguments).unwrap_or_default();
            json!({"type": "tool_use", "id": id, "name": name, "input": input})
        }
    }
}

/// How a block starts, and its deltas, a word each; arguments come in two pieces.
fn block_stream(part: &Part) -> (Value, Vec<Value>) {
    let words = |kind: &str, member: &str, text: &str| -> Vec<Value> {
        text.split_inclusive(' ').map(|word| json!({"type": kind, member: word})).collect()
    };
    match part {
        Part::Thinking { text, signature } => {
            let mut deltas = words("thinking_delta", "thinking", text);
            deltas.push(json!({"type": "signature_delta", "signature": signature}));
            (json!({"type": "thinking", "thinking": "", "signature": ""}), deltas)
        }
        Part::Text(text) => (json!({"type": "text", "text": ""}), words("text_delta", "text", text)),
        Part::Call { id, name, arguments } => {
            let pieces = halves(arguments).map(|half| json!({"type": "input_json_delta", "partial_json": half}));
            (json!({"type": "tool_use", "id": id, "name": name, "input": {}}), pieces.into())
        }
    }
}

/// A `message`.
pub(super) fn unary(call: &Call, answer: &Answer, id: &str) -> Value {
    let content: Vec<Value> = if answer.no_choices { Vec::new() } else { call.parts(answer).iter().map(block).collect() };
    message(call, id, &json!(content), end(call, answer), call.usage(answer, usage))
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
    let mut events = vec![event(
        &json!({"type": "message_start", "message": message(call, id, &json!([]), json!({"stop_reason": null, "stop_sequence": null}), at_start)}),
    )];
    if !answer.no_choices {
        for (index, part) in call.parts(answer).iter().enumerate() {
            let (start, deltas) = block_stream(part);
            events.push(event(&json!({"type": "content_block_start", "index": index, "content_block": start})));
            let delta = |delta| event(&json!({"type": "content_block_delta", "index": index, "delta": delta}));
            events.extend(deltas.into_iter().map(delta));
            events.push(event(&json!({"type": "content_block_stop", "index": index})));
        }
    }
    let mut end = json!({"type": "message_delta", "delta": end(call, answer)});
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
