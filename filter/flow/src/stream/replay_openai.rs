//! A chat completion to chunks, in the order OpenAI sends them: role, text, tool calls, finish, usage, `[DONE]`.

use super::node::{Members, members};
use super::replay::{Object, write_pieces};
use crate::sse;
use serde_json::value::RawValue;

pub(super) fn replay(unary: &str, include_usage: bool) -> Option<Vec<u8>> {
    let top = members(unary)?;
    let choices: Vec<&RawValue> = serde_json::from_str(top.get("choices")?.get()).ok()?;
    if choices.is_empty() {
        return None;
    }
    let usage = top.get("usage").filter(|usage| include_usage && usage.get() != "null");
    let chunk = Object::of(top.iter().filter(|(name, _)| *name != "usage")).with("object", r#""chat.completion.chunk""#);
    let mut writer = Writer { chunk, nulls: usage.is_some(), out: Vec::with_capacity(unary.len() * 2) };
    for choice in choices {
        writer.choice(&members(choice.get())?)?;
    }
    if let Some(usage) = usage {
        writer.write("[]", usage.get());
    }
    let mut out = writer.out;
    out.extend_from_slice(b"data: [DONE]\n\n");
    Some(out)
}

struct Writer {
    /// What all chunks have in common.
    chunk: Object,
    /// With a usage chunk to come every other chunk has a null.
    nulls: bool,
    out: Vec<u8>,
}

impl Writer {
    fn choice(&mut self, choice: &Members<'_>) -> Option<()> {
        let message = members(choice.get("message")?.get())?;
        let index = choice.get("index").map_or("0", |raw| raw.get());
        let logprobs = choice.get("logprobs").map(|raw| raw.get());
        let beside = |json: Option<&str>| json.map_or_else(Object::default, |json| Object::default().with("logprobs", json));

        // The first chunk says the role, that content will come, and what there is none of.
        let mut first = Object::default();
        for (name, raw) in &message {
            match (name.as_str(), raw.get()) {
                ("role", _) | (_, "null" | "\"\"") => first = first.with(name, raw.get()),
                ("content", json) if json.starts_with('"') => first = first.with(name, "\"\""),
                _ => {}
            }
        }
        self.chunk(index, &first, beside(logprobs.filter(|json| *json == "null")));

        // Reasoning comes before what it led to.
        let parts = message.iter().filter(|(name, raw)| !matches!((name.as_str(), raw.get()), ("role", _) | (_, "null" | "\"\"")));
        let (reasoning, others): (Vec<_>, Vec<_>) = parts.partition(|(name, _)| name.starts_with("reasoning"));
        let mut logprobs = logprobs.filter(|json| *json != "null");
        for (name, raw) in reasoning.into_iter().chain(others) {
            if name == "tool_calls" {
                let calls: Vec<&RawValue> = serde_json::from_str(raw.get()).ok()?;
                for (slot, call) in calls.into_iter().enumerate() {
                    self.call(index, &slot.to_string(), &members(call.get())?);
                }
                continue;
            }
            if name == "content" && logprobs.is_none() && raw.get().starts_with('"') {
                self.text(index, raw);
                continue;
            }
            let of_text = matches!(name.as_str(), "content" | "refusal").then(|| logprobs.take()).flatten();
            self.chunk(index, &Object::default().with(name, raw.get()), beside(of_text));
        }

        let rest = choice.iter().filter(|(name, _)| !matches!(name.as_str(), "index" | "message" | "logprobs"));
        let mut last = Object::of(rest);
        if let Some(logprobs) = logprobs {
            last = last.with("logprobs", logprobs);
        }
        self.chunk(index, &Object::default(), last);
        Some(())
    }

    fn text(&mut self, index: &str, text: &RawValue) {
        let event = ["\"\"", "\"x\""].map(|text| {
            let start = self.out.len();
            self.chunk(index, &Object::default().with("content", text), Object::default());
            self.out.split_off(start)
        });
        write_pieces(&mut self.out, text, event);
    }

    /// A call's name and its arguments come apart, as OpenAI sends them; what is no function comes whole.
    fn call(&mut self, index: &str, slot: &str, call: &Members<'_>) {
        let mut head = Object::of(call).with("index", slot);
        let function = call.get("function").and_then(|raw| members(raw.get()));
        let arguments = function.as_ref().and_then(|function| function.get("arguments"));
        if let (Some(function), Some(_)) = (&function, arguments) {
            head = head.with("function", Object::of(function).with("arguments", "\"\"").text());
        }
        let delta = |call: Object| Object::default().with("tool_calls", format!("[{}]", call.text()));
        self.chunk(index, &delta(head), Object::default());
        if let Some(arguments) = arguments.filter(|raw| raw.get() != "\"\"") {
            let function = Object::default().with("arguments", arguments.get()).text();
            self.chunk(index, &delta(Object::default().with("index", slot).with("function", function)), Object::default());
        }
    }

    /// One chunk of a choice; `beside` stands beside the delta.
    fn chunk(&mut self, index: &str, delta: &Object, beside: Object) {
        let mut choice = beside.with("index", index).with("delta", delta.text());
        if !choice.has("finish_reason") {
            choice = choice.with("finish_reason", "null");
        }
        self.write(&format!("[{}]", choice.text()), "null");
    }

    fn write(&mut self, choices: &str, usage: &str) {
        let mut chunk = self.chunk.clone().with("choices", choices);
        if self.nulls {
            chunk = chunk.with("usage", usage);
        }
        sse::write_json(&mut self.out, None, &chunk.text());
    }
}
