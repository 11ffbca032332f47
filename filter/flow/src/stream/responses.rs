//! What `/v1/responses` answers, made here: the response object, and the events it comes in.
//! Shapes: the types of openai-python 3.57 (`response.py`, `response_*_event.py`), 2026.

use crate::json::Document;
use crate::sse;
use crate::value::json;
use proxium_wire::Usage;
use serde_json::{Map, Value};

/// Members of a request that its response tells again, and what they are where it has none.
const TOLD_AGAIN: [(&str, &str); 11] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("reasoning", r#"{"effort":null,"summary":null}"#),
    ("temperature", "1.0"),
    ("text", r#"{"format":{"type":"text"}}"#),
    ("tool_choice", "\"auto\""),
    ("tools", "[]"),
    ("top_p", "1.0"),
    ("user", "null"),
];

/// A response but for what comes with its end.
#[derive(Debug)]
pub struct Frame {
    members: Map<String, Value>,
    /// Its id.
    pub id: String,
}

impl Frame {
    /// The response to a request.
    #[must_use]
    pub fn new(request: &Document, model: &str, id: &str, created_s: u64) -> Self {
        let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
        let mut members = Map::new();
        for (name, without) in TOLD_AGAIN {
            members.insert(name.to_owned(), parsed(request.member(name).unwrap_or(without)));
        }
        for (name, value) in [
            ("id", json!(id)),
            ("object", json!("response")),
            ("created_at", json!(created_s)),
            ("model", json!(model)),
            ("error", Value::Null),
            ("previous_response_id", Value::Null),
            ("store", json!(false)),
        ] {
            members.insert(name.into(), value);
        }
        Self { members, id: id.into() }
    }

    /// The response in this state. `incomplete`: why it ended before its end.
    #[must_use]
    pub fn response(&self, status: &str, output: Vec<Value>, usage: Option<&Usage>, incomplete: Option<&str>) -> Value {
        let mut members = self.members.clone();
        members.insert("status".into(), json!(status));
        members.insert("output".into(), Value::Array(output));
        members.insert("usage".into(), usage.map_or(Value::Null, told));
        members.insert("incomplete_details".into(), incomplete.map_or(Value::Null, |reason| json!({"reason": reason})));
        Value::Object(members)
    }
}

/// A `usage` object: the input includes what a cache served and took in.
fn told(usage: &Usage) -> Value {
    let input = usage.tokens().saturating_sub(usage.output);
    json!({
        "input_tokens": input, "input_tokens_details": {"cached_tokens": usage.cached_input},
        "output_tokens": usage.output, "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": input.saturating_add(usage.output),
    })
}

/// How an answer ended that a chat model's finish reason tells of: its status, and why it is incomplete.
#[must_use]
pub fn ended(finish_reason: &str) -> (&'static str, Option<&'static str>) {
    match finish_reason {
        "length" => ("incomplete", Some("max_output_tokens")),
        "content_filter" => ("incomplete", Some("content_filter")),
        _ => ("completed", None),
    }
}

/// A message of the model.
#[must_use]
pub fn message(id: &str, status: &str, content: Vec<Value>) -> Value {
    json!({"id": id, "type": "message", "role": "assistant", "status": status, "content": content})
}

/// A part of a message.
#[must_use]
pub fn part(text: &str, is_refusal: bool) -> Value {
    match is_refusal {
        true => json!({"type": "refusal", "refusal": text}),
        false => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
    }
}

/// A call of a tool.
#[must_use]
pub fn function_call(id: &str, status: &str, call_id: &str, name: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name, "arguments": arguments})
}

/// Numbers the events of a stream.
#[derive(Debug, Default)]
pub struct Events {
    told: u64,
}

impl Events {
    /// Appends an event.
    pub fn tell(&mut self, out: &mut Vec<u8>, kind: &str, mut data: Value) {
        if let Some(members) = data.as_object_mut() {
            members.insert("type".into(), json!(kind));
            members.insert("sequence_number".into(), json!(self.told));
        }
        self.told += 1;
        sse::write(out, Some(kind), &data);
    }

    /// Appends the events of a response that begins.
    pub fn begin(&mut self, out: &mut Vec<u8>, response: &Value) {
        for kind in ["response.created", "response.in_progress"] {
            self.tell(out, kind, json!({"response": response}));
        }
    }

    /// Appends the last event.
    pub fn end(&mut self, out: &mut Vec<u8>, response: &Value) {
        let kind = match response.get("status").and_then(Value::as_str) {
            Some("incomplete") => "response.incomplete",
            Some("failed") => "response.failed",
            _ => "response.completed",
        };
        self.tell(out, kind, json!({"response": response}));
    }
}
