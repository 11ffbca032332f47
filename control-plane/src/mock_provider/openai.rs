//! The OpenAI dialect.

use super::behaviour::Answer;
use super::call::Call;
use super::script::{Part, halves};
use serde_json::{Map, Value, json};

pub(super) fn error(status: u16) -> Value {
    let kind = if status == 429 { "rate_limit_error" } else { "mock_error" };
    json!({"error": {"message": format!("the mock was asked to fail with {status}"), "type": kind, "param": null, "code": null}})
}

fn usage(input: u64, cached: u64, output: u64) -> Value {
    json!({
        "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
    })
}

fn head(call: &Call, object: &str, id: &str) -> Map<String, Value> {
    let mut head = Map::new();
    head.insert("id".into(), json!(id));
    head.insert("object".into(), json!(object));
    // A fixed instant, so that equal requests have equal answers.
    head.insert("created".into(), json!(1_700_000_000));
    head.insert("model".into(), json!(call.model));
    head
}

fn finish_reason<'a>(answer: &'a Answer, parts: &[Part]) -> &'a str {
    let calls = parts.iter().any(|part| matches!(part, Part::Call { .. }));
    answer.finish.as_deref().unwrap_or(if calls { "tool_calls" } else { "stop" })
}

fn message(parts: &[Part]) -> Value {
    let mut message =
        Map::from_iter([("role".into(), json!("assistant")), ("content".into(), json!(null)), ("refusal".into(), json!(null))]);
    for part in parts {
        match part {
            Part::Thinking { text, .. } => drop(message.insert("reasoning_content".into(), json!(text))),
            Part::Text(text) => drop(message.insert("content".into(), json!(text))),
            Part::Call { id, name, arguments } => {
                let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
                if let Some(calls) = message.entry("tool_calls").or_insert_with(|| json!([])).as_array_mut() {
                    calls.push(call);
                }
            }
        }
    }
    Value::Object(message)
}

/// The deltas of an answer, a word each; arguments come in two pieces.
fn deltas(parts: &[Part]) -> Vec<Value> {
    let words = |member: &str, text: &str| text.split_inclusive(' ').map(|word| json!({member: word})).collect::<Vec<_>>();
    let mut calls = 0;
    let delta = |part: &Part| match part {
        Part::Thinking { text, .. } => words("reasoning_content", text),
        Part::Text(text) => words("content", text),
        Part::Call { id, name, arguments } => {
            let index = calls;
            calls += 1;
            let head = json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
            let pieces = halves(arguments).map(|half| json!({"index": index, "function": {"arguments": half}}));
            [head].into_iter().chain(pieces).map(|call| json!({"tool_calls": [call]})).collect()
        }
    };
    parts.iter().flat_map(delta).collect()
}

/// `chat.completion`
pub(super) fn unary(call: &Call, answer: &Answer, id: &str) -> Value {
    let mut body = head(call, "chat.completion", id);
    let parts = call.parts(answer);
    let count = if answer.no_choices { 0 } else { call.choices };
    let choices: Vec<Value> = (0..count)
        .map(|index| {
            json!({
                "index": index, "message": message(&parts), "logprobs": null, "finish_reason": finish_reason(answer, &parts),
            })
        })
        .collect();
    body.insert("choices".into(), json!(choices));
    if let Some(usage) = call.usage(answer, usage) {
        body.insert("usage".into(), usage);
    }
    Value::Object(body)
}

/// `chat.completion.chunk` events, a word each, and `[DONE]`.
pub(super) fn stream(call: &Call, answer: &Answer, id: &str) -> Vec<String> {
    let chunk = |choices: Value, usage: Option<Value>| {
        let mut chunk = head(call, "chat.completion.chunk", id);
        chunk.insert("choices".into(), choices);
        if let Some(usage) = usage {
            chunk.insert("usage".into(), usage);
        }
        format!("data: {}\n\n", Value::Object(chunk))
    };
    let choice = |delta: Value, finish: Option<&str>| chunk(json!([{"index": 0, "delta": delta, "finish_reason": finish}]), None);
    let mut events = Vec::new();
    if !answer.no_choices {
        events.push(choice(json!({"role": "assistant", "content": ""}), None));
        let parts = call.parts(answer);
        events.extend(deltas(&parts).into_iter().map(|delta| choice(delta, None)));
        events.push(choice(json!({}), Some(finish_reason(answer, &parts))));
    }
    if call.include_usage
        && let Some(usage) = call.usage(answer, usage)
    {
        events.push(chunk(json!([]), Some(usage)));
    }
    events.push("data: [DONE]\n\n".into());
    events
}
