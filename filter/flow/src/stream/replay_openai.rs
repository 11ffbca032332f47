//! A chat completion to chunks, in the order OpenAI sends them: role, text, tool calls, finish, usage, `[DONE]`.

use super::node::{Members, members};
use super::replay::{Json, write_pieces};
use crate::json::map;
use crate::sse;
use crate::value::json;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

type Object<'a> = BTreeMap<String, Json<'a>>;

pub(super) fn replay(unary: &str, include_usage: bool) -> Option<Vec<u8>> {
    let top = members(unary)?;
    let choices: Vec<&RawValue> = serde_json::from_str(top.get("choices")?.get()).ok()?;
    if choices.is_empty() {
        return None;
    }
    let usage = top.get("usage").filter(|usage| include_usage && usage.get() != "null").copied();
    let mut writer = Writer { top, nulls: usage.is_some(), out: Vec::with_capacity(unary.len() * 2) };
    for choice in choices {
        writer.choice(&members(choice.get())?)?;
    }
    if let Some(usage) = usage {
        writer.write(Vec::new(), Json::Raw(usage));
    }
    let mut out = writer.out;
    out.extend_from_slice(b"data: [DONE]\n\n");
    Some(out)
}

struct Writer<'a> {
    top: Members<'a>,
    /// With a usage chunk to come every other chunk has a null.
    nulls: bool,
    out: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn choice(&mut self, choice: &Members<'a>) -> Option<()> {
        let message = members(choice.get("message")?.get())?;
        let index = || choice.get("index").map_or(Json::Value(0.into()), |raw| Json::Raw(raw));
        let logprobs = choice.get("logprobs").copied();
        let (nulls, real) = (logprobs.filter(|raw| raw.get() == "null"), logprobs.filter(|raw| raw.get() != "null"));
        let beside = |raw: Option<&'a RawValue>| map(raw.map(|raw| ("logprobs".to_owned(), Json::Raw(raw))));

        // The first chunk says the role, that content will come, and what there is none of.
        let first = message.iter().filter_map(|(name, raw)| match (name.as_str(), raw.get()) {
            ("role", _) | (_, "null" | "\"\"") => Some((name.clone(), Json::Raw(raw))),
            ("content", json) if json.starts_with('"') => Some((name.clone(), Json::Value("".into()))),
            _ => None,
        });
        self.chunk(index(), map(first), beside(nulls));

        // Reasoning comes before what it led to.
        let parts = message.iter().filter(|(name, raw)| !matches!((name.as_str(), raw.get()), ("role", _) | (_, "null" | "\"\"")));
        let (reasoning, others): (Vec<_>, Vec<_>) = parts.partition(|(name, _)| name.starts_with("reasoning"));
        let mut logprobs = real;
        for (name, raw) in reasoning.into_iter().chain(others) {
            if name == "tool_calls" {
                let calls: Vec<&RawValue> = serde_json::from_str(raw.get()).ok()?;
                for (slot, call) in calls.into_iter().enumerate() {
                    self.call(&index, slot, members(call.get())?);
                }
                continue;
            }
            if name == "content" && logprobs.is_none() && raw.get().starts_with('"') {
                self.text(&index, raw);
                continue;
            }
            let of_text = matches!(name.as_str(), "content" | "refusal").then(|| logprobs.take()).flatten();
            self.chunk(index(), map([(name.clone(), Json::Raw(raw))]), beside(of_text));
        }

        let mut last = beside(logprobs);
        for (name, raw) in choice.iter().filter(|(name, _)| !matches!(name.as_str(), "index" | "message" | "logprobs")) {
            last.insert(name.clone(), Json::Raw(raw));
        }
        self.chunk(index(), Object::new(), last);
        Some(())
    }

    fn text(&mut self, choice_index: &impl Fn() -> Json<'a>, text: &RawValue) {
        let event = ["", "x"].map(|text| {
            let start = self.out.len();
            self.chunk(choice_index(), map([("content".to_owned(), Json::Value(text.into()))]), Object::new());
            self.out.split_off(start)
        });
        write_pieces(&mut self.out, text, event);
    }

    /// A call's name and its arguments come apart, as OpenAI sends them; what is no function comes whole.
    fn call(&mut self, choice_index: &impl Fn() -> Json<'a>, slot: usize, call: Members<'a>) {
        let mut head = map(call.iter().map(|(name, raw)| (name.clone(), Json::Raw(raw))));
        head.insert("index".into(), Json::Value(slot.into()));
        let function = call.get("function").and_then(|raw| members(raw.get()));
        let arguments = function.as_ref().and_then(|function| function.get("arguments").copied());
        if let (Some(function), Some(_)) = (function, arguments) {
            let mut function = map(function.into_iter().map(|(name, raw)| (name, Json::Raw(raw))));
            function.insert("arguments".into(), Json::Value("".into()));
            head.insert("function".into(), Json::Object(function));
        }
        let delta = |call: Object<'a>| map([("tool_calls".to_owned(), Json::List(vec![Json::Object(call)]))]);
        self.chunk(choice_index(), delta(head), Object::new());
        if let Some(arguments) = arguments.filter(|raw| raw.get() != "\"\"") {
            let function = Json::Object(map([("arguments".to_owned(), Json::Raw(arguments))]));
            let piece = [("index".to_owned(), Json::Value(slot.into())), ("function".to_owned(), function)];
            self.chunk(choice_index(), delta(map(piece)), Object::new());
        }
    }

    /// One chunk of a choice; `beside` stands beside the delta.
    fn chunk(&mut self, index: Json<'a>, delta: Object<'a>, beside: Object<'a>) {
        let mut choice = beside;
        choice.entry("finish_reason".into()).or_insert(Json::Value(Value::Null));
        choice.insert("index".into(), index);
        choice.insert("delta".into(), Json::Object(delta));
        self.write(vec![Json::Object(choice)], Json::Value(Value::Null));
    }

    fn write(&mut self, choices: Vec<Json<'a>>, usage: Json<'a>) {
        let mut chunk = map(self.top.iter().filter(|(name, _)| *name != "usage").map(|(name, raw)| (name.clone(), Json::Raw(raw))));
        chunk.insert("object".into(), Json::Value(json!("chat.completion.chunk")));
        chunk.insert("choices".into(), Json::List(choices));
        if self.nulls {
            chunk.insert("usage".into(), usage);
        }
        sse::write(&mut self.out, None, &chunk);
    }
}
