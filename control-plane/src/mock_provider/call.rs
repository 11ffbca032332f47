//! A request, as far as the mock looks into it.

use super::behaviour::{Answer, UsageScript};
use serde_json::Value;

/// Words the mock reads from either dialect.
#[derive(Debug)]
pub(super) struct Call {
    pub model: String,
    pub stream: bool,
    pub include_usage: bool,
    /// Number of whitespace-separated words in all message texts (and in `system`, `input`): the input tokens.
    pub words: u64,
    /// Texts of the last user message.
    pub last_user: Vec<String>,
    /// `n`
    pub choices: u64,
    /// The whole of it.
    pub body: Value,
}

/// Texts of a content value: a string, or parts with `text`.
pub(super) fn texts(content: &Value, into: &mut Vec<String>) {
    match content {
        Value::String(text) => into.push(text.clone()),
        Value::Array(parts) => parts.iter().for_each(|part| texts(part.get("text").unwrap_or(part), into)),
        _ => {}
    }
}

/// Chat's messages, and the items of a response's input.
pub(super) fn messages(body: &Value) -> impl DoubleEndedIterator<Item = &Value> {
    ["messages", "input"].into_iter().filter_map(|name| body.get(name)?.as_array()).flatten()
}

impl Call {
    /// Of a request body; what is not there is empty.
    pub fn of(body: &Value) -> Self {
        let (mut all, mut last_user) = (Vec::new(), Vec::new());
        for field in ["system", "instructions", "input"] {
            texts(body.get(field).unwrap_or(&Value::Null), &mut all);
        }
        if let Some(Value::String(input)) = body.get("input") {
            last_user.push(input.clone());
        }
        for message in messages(body) {
            let mut of_message = Vec::new();
            texts(message.get("content").unwrap_or(&Value::Null), &mut of_message);
            if message.get("role").and_then(Value::as_str) == Some("user") {
                last_user.clone_from(&of_message);
            }
            all.append(&mut of_message);
        }
        Self {
            model: body.get("model").and_then(Value::as_str).unwrap_or_default().to_owned(),
            stream: body.get("stream").and_then(Value::as_bool).unwrap_or(false),
            include_usage: body.pointer("/stream_options/include_usage").and_then(Value::as_bool).unwrap_or(false),
            words: all.iter().map(|text| words(text)).sum(),
            last_user,
            choices: body.get("n").and_then(Value::as_u64).unwrap_or(1).clamp(1, 16),
            body: body.clone(),
        }
    }

    /// Text of the last user message.
    pub fn last_user(&self) -> String {
        self.last_user.join(" ")
    }

    /// The text of an ordinary answer, up to a stop sequence.
    pub fn text(&self, answer: &Answer) -> String {
        let mut text = self.whole_text(answer);
        if let Some((end, _)) = self.stopped(&text) {
            text.truncate(end);
        }
        text
    }

    /// The text without regard to stop sequences.
    pub fn whole_text(&self, answer: &Answer) -> String {
        let mut text = answer.text.clone().unwrap_or_else(|| format!("You said: {}", self.last_user()));
        if text.len() < answer.padding {
            text.push_str(&" pad".repeat((answer.padding - text.len()).div_ceil(4)));
        }
        text
    }

    /// Input tokens, cached ones among them, and output tokens; or the object to send; or nothing.
    pub fn usage(&self, answer: &Answer, shape: impl Fn(u64, u64, u64) -> Value) -> Option<Value> {
        let output = self.parts(answer).iter().map(|part| words(part.text())).sum::<u64>() * self.choices;
        match &answer.usage {
            UsageScript::Counted => Some(shape(self.words, 0, output)),
            UsageScript::Cached(cached) => Some(shape(self.words, (*cached).min(self.words), output)),
            UsageScript::Given(usage) => Some(usage.clone()),
            UsageScript::Missing => None,
        }
    }
}

pub(super) fn words(text: &str) -> u64 {
    text.split_whitespace().map(|_| 1).sum()
}
