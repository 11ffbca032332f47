//! Chat chunks to a chat completion.

use super::fold::Step;
use super::is_error;
use super::node::{Members, Node, Unreadable, members, merge, replace};
use super::tools::Slots;
use crate::sse::Event;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

type Object = BTreeMap<String, Node>;

#[derive(Debug, Default)]
pub(super) struct OpenaiFold {
    top: Object,
    choices: BTreeMap<u64, Choice>,
    done: bool,
}

#[derive(Debug, Default)]
struct Choice {
    message: Object,
    slots: Slots,
    calls: Vec<Object>,
    rest: Object,
}

/// What a choice costs beside its text.
const FRAME_BYTES: usize = 64;

impl OpenaiFold {
    pub(super) fn event(&mut self, event: &Event) -> Step {
        if self.done {
            return Ok(0);
        }
        if event.name == "error" {
            return Err(Unreadable);
        }
        if event.data.starts_with("[DONE]") {
            self.done = true;
            return Ok(0);
        }
        self.chunk(members(&event.data).ok_or(Unreadable)?)
    }

    fn chunk(&mut self, chunk: Members<'_>) -> Step {
        if is_error(chunk.get("error").copied()) {
            return Err(Unreadable);
        }
        let mut grown = 0;
        for (name, raw) in chunk {
            match name.as_str() {
                "choices" => {
                    for choice in list(raw)? {
                        grown += self.choice(members(choice.get()).ok_or(Unreadable)?)?;
                    }
                }
                // Of the stream alone.
                "object" | "obfuscation" => {}
                "usage" if raw.get() == "null" => {}
                _ => grown += replace(&mut self.top, &name, raw),
            }
        }
        Ok(grown)
    }

    fn choice(&mut self, choice: Members<'_>) -> Step {
        let index = choice.get("index").and_then(|raw| raw.get().parse().ok()).unwrap_or_default();
        let mut grown = if self.choices.contains_key(&index) { 0 } else { FRAME_BYTES };
        let folded = self.choices.entry(index).or_default();
        for (name, raw) in choice {
            grown += match name.as_str() {
                "index" => 0,
                "delta" if raw.get() == "null" => 0,
                "delta" => folded.delta(members(raw.get()).ok_or(Unreadable)?)?,
                "logprobs" => merge(&mut folded.rest, &name, raw)?,
                _ => replace(&mut folded.rest, &name, raw),
            };
        }
        Ok(grown)
    }

    pub(super) fn finish(self) -> Option<Vec<u8>> {
        if !self.done || self.choices.is_empty() {
            return None;
        }
        let mut choices = Vec::new();
        for (index, mut choice) in self.choices {
            if !choice.message.contains_key("content") {
                choice.message.insert("content".into(), Node::of(&())?);
            }
            if !choice.calls.is_empty() {
                choice.message.insert("tool_calls".into(), Node::of(&choice.calls)?);
            }
            choice.rest.insert("index".into(), Node::of(&index)?);
            choice.rest.insert("message".into(), Node::Object(choice.message));
            choices.push(choice.rest);
        }
        let mut top = self.top;
        top.insert("choices".into(), Node::of(&choices)?);
        top.insert("object".into(), Node::of(&"chat.completion")?);
        serde_json::to_vec(&top).ok()
    }
}

impl Choice {
    fn delta(&mut self, delta: Members<'_>) -> Step {
        let mut grown = 0;
        for (name, raw) in delta {
            if name != "tool_calls" {
                grown += merge(&mut self.message, &name, raw)?;
                continue;
            }
            for call in list(raw)? {
                grown += self.call(members(call.get()).ok_or(Unreadable)?)?;
            }
        }
        Ok(grown)
    }

    fn call(&mut self, piece: Members<'_>) -> Step {
        let index = piece.get("index").and_then(|raw| raw.get().parse().ok());
        let id: String = piece.get("id").and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        let slot = self.slots.slot(index, &id);
        let mut grown = 0;
        if slot >= self.calls.len() {
            grown += FRAME_BYTES;
            self.calls.push(Object::new());
        }
        let call = self.calls.get_mut(slot).ok_or(Unreadable)?;
        for (name, raw) in piece {
            match name.as_str() {
                "index" => {}
                // Later pieces may hold an empty one.
                "id" if id.is_empty() => {}
                _ => grown += merge(call, &name, raw)?,
            }
        }
        Ok(grown)
    }
}

fn list(raw: &RawValue) -> Result<Vec<&RawValue>, Unreadable> {
    if raw.get() == "null" { Ok(Vec::new()) } else { serde_json::from_str(raw.get()).map_err(|_| Unreadable) }
}
