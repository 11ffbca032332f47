//! A provider's chat stream for a client of `/v1/responses`.
//!
//! | chat | responses |
//! |---|---|
//! | first chunk with a choice | `response.created`, `response.in_progress` |
//! | `content`, `refusal` | one message item; its parts are added, filled by deltas |
//! | `tool_calls` | an item each; their deltas may interleave, as they name their item |
//! | `reasoning_content` | left out |
//! | `finish_reason` | every part and item is done |
//! | usage, `[DONE]` | `response.completed` or `response.incomplete`, which holds the whole |
//! | `error` | `error`, and nothing after it |

use crate::speaks::Speaks;
use crate::sse::Event;
use crate::stream::responses::{Events, Frame, ended, function_call, message, part};
use crate::stream::usage::OpenaiUsage;
use crate::stream::{Choice, Chunk, Slots, broken, choices, error, is_error, text};
use crate::value::json;
use serde_json::Value;
use serde_json::value::RawValue;

/// A larger answer is no model's; it is held until its end, which tells all of it again.
const MAX_HELD_BYTES: usize = 4 << 20;

/// Takes the provider's events, appends the client's bytes.
#[derive(Debug)]
pub struct Translator {
    frame: Frame,
    unique: String,
    events: Events,
    usage: OpenaiUsage,
    slots: Slots,
    /// In the order of their `output_index`.
    items: Vec<Item>,
    /// The item of each tool call.
    calls: Vec<usize>,
    held_bytes: usize,
    begun: bool,
    finish_reason: Option<String>,
    /// The last event went out; nothing follows.
    over: bool,
}

#[derive(Debug)]
enum Item {
    /// Its parts, and which are refusals.
    Message(Vec<(String, bool)>),
    Call {
        call_id: String,
        name: String,
        arguments: String,
        /// It waits for its name.
        told: bool,
    },
}

impl Translator {
    /// At the start of a stream.
    #[must_use]
    pub fn new(frame: Frame) -> Self {
        Self {
            unique: frame.id.strip_prefix("resp_").unwrap_or(&frame.id).to_owned(),
            frame,
            events: Events::default(),
            usage: OpenaiUsage::default(),
            slots: Slots::default(),
            items: Vec::new(),
            calls: Vec::new(),
            held_bytes: 0,
            begun: false,
            finish_reason: None,
            over: false,
        }
    }

    /// Takes an event. What makes no sense is passed over: the meter tells of it.
    pub fn event(&mut self, event: &Event, out: &mut Vec<u8>) {
        if self.over {
            return;
        }
        if event.data.starts_with("[DONE]") {
            return self.stop(out);
        }
        if let Some(chunk) = Chunk::read(&event.data) {
            self.chunk(&chunk, event, out);
        } else if event.name == "error" {
            self.fail(None, out);
        }
        if self.held_bytes > MAX_HELD_BYTES && !self.over {
            out.extend_from_slice(&error(Speaks::Responses, "api_error", "The answer is too large to be translated.", &Value::Null));
            self.over = true;
        }
    }

    /// The provider sends no more. If it told how the answer finished the response ends naturally; else the client gets an error.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.over {
            return;
        }
        if self.finish_reason.is_some() {
            return self.stop(out);
        }
        out.extend_from_slice(&broken(Speaks::Responses));
        self.over = true;
    }

    fn chunk(&mut self, chunk: &Chunk<'_>, event: &Event, out: &mut Vec<u8>) {
        if let Some(usage) = chunk.usage {
            self.usage.update(usage.get());
        }
        if event.name == "error" || is_error(chunk.error) {
            return self.fail(chunk.error, out);
        }
        for choice in choices(chunk.choices).iter().flatten().filter(|choice| choice.index == 0) {
            self.begin(out);
            self.choice(choice, out);
        }
    }

    fn choice(&mut self, choice: &Choice<'_>, out: &mut Vec<u8>) {
        if let Some(delta) = &choice.delta {
            for (raw, is_refusal) in [(delta.content, false), (delta.refusal, true)] {
                if let Some(text) = text(raw).filter(|text| !text.is_empty()) {
                    self.say(&text, is_refusal, out);
                }
            }
            for call in &delta.tool_calls {
                let id = text(call.id).unwrap_or_default();
                let slot = self.slots.slot(call.index, &id);
                let function = call.function.as_ref();
                let name = function.and_then(|function| text(function.name)).unwrap_or_default();
                let piece = function.and_then(|function| arguments(function.arguments)).unwrap_or_default();
                self.call(slot, &id, &name, &piece, out);
            }
        }
        if let Some(reason) = text(choice.finish_reason).filter(|reason| !reason.is_empty()) {
            self.finish_reason = Some(reason);
        }
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.begun, true) {
            self.events.begin(out, &self.frame.response("in_progress", Vec::new(), None, None));
        }
    }

    fn say(&mut self, piece: &str, is_refusal: bool, out: &mut Vec<u8>) {
        self.held_bytes += piece.len();
        let at = match self.items.iter().position(|item| matches!(item, Item::Message(_))) {
            Some(at) => at,
            None => {
                let at = self.items.len();
                self.items.push(Item::Message(Vec::new()));
                let item = message(&self.item_id("msg", at), "in_progress", Vec::new());
                self.events.tell(out, "response.output_item.added", json!({"output_index": at, "item": item}));
                at
            }
        };
        let id = self.item_id("msg", at);
        let Some(Item::Message(parts)) = self.items.get_mut(at) else { return };
        let place = match parts.iter_mut().position(|(_, refusal)| *refusal == is_refusal) {
            Some(place) => place,
            None => {
                parts.push((String::new(), is_refusal));
                let place = parts.len() - 1;
                let added = json!({"item_id": id, "output_index": at, "content_index": place, "part": part("", is_refusal)});
                self.events.tell(out, "response.content_part.added", added);
                place
            }
        };
        if let Some((text, _)) = parts.get_mut(place) {
            text.push_str(piece);
        }
        let mut delta = json!({"item_id": id, "output_index": at, "content_index": place, "delta": piece});
        if let (Some(delta), false) = (delta.as_object_mut(), is_refusal) {
            delta.insert("logprobs".into(), json!([]));
        }
        self.events.tell(out, &format!("{}.delta", of_part(is_refusal)), delta);
    }

    /// A piece of a tool call, held until its name is known.
    fn call(&mut self, slot: usize, id: &str, name: &str, piece: &str, out: &mut Vec<u8>) {
        self.held_bytes += id.len() + name.len() + piece.len();
        if slot >= self.calls.len() {
            self.calls.push(self.items.len());
            self.items.push(Item::Call { call_id: String::new(), name: String::new(), arguments: String::new(), told: false });
        }
        let Some(at) = self.calls.get(slot).copied() else { return };
        let (item_id, unique) = (self.item_id("fc", at), &self.unique);
        let Some(Item::Call { call_id, name: own_name, arguments, told }) = self.items.get_mut(at) else { return };
        // A name comes whole; some providers repeat it.
        if own_name.is_empty() {
            name.clone_into(own_name);
        }
        if call_id.is_empty() {
            id.clone_into(call_id);
        }
        arguments.push_str(piece);
        if own_name.is_empty() {
            return;
        }
        let mut new = piece;
        if !std::mem::replace(told, true) {
            if call_id.is_empty() {
                *call_id = format!("call_{unique}_{at}");
            }
            let item = function_call(&item_id, "in_progress", call_id, own_name, "");
            self.events.tell(out, "response.output_item.added", json!({"output_index": at, "item": item}));
            new = arguments;
        }
        if !new.is_empty() {
            let delta = json!({"item_id": item_id, "output_index": at, "delta": new});
            self.events.tell(out, "response.function_call_arguments.delta", delta);
        }
    }

    fn stop(&mut self, out: &mut Vec<u8>) {
        self.begin(out);
        let (status, incomplete) = ended(self.finish_reason.as_deref().unwrap_or_default());
        let mut output = Vec::with_capacity(self.items.len());
        for (at, item) in std::mem::take(&mut self.items).into_iter().enumerate() {
            let item = match item {
                Item::Message(parts) => self.end_message(at, &parts, status, out),
                Item::Call { call_id, name, arguments, .. } => {
                    let id = self.item_id("fc", at);
                    let done = json!({"item_id": id, "output_index": at, "name": name, "arguments": arguments});
                    self.events.tell(out, "response.function_call_arguments.done", done);
                    function_call(&id, status, &call_id, &name, &arguments)
                }
            };
            self.events.tell(out, "response.output_item.done", json!({"output_index": at, "item": item}));
            output.push(item);
        }
        let usage = self.usage.usage().unwrap_or_default();
        self.events.end(out, &self.frame.response(status, output, Some(&usage), incomplete));
        self.over = true;
    }

    fn end_message(&mut self, at: usize, parts: &[(String, bool)], status: &str, out: &mut Vec<u8>) -> Value {
        let id = self.item_id("msg", at);
        let mut content = Vec::with_capacity(parts.len());
        for (place, (text, is_refusal)) in parts.iter().enumerate() {
            let member = if *is_refusal { "refusal" } else { "text" };
            let mut done = json!({"item_id": id, "output_index": at, "content_index": place, member: text});
            if let (Some(done), false) = (done.as_object_mut(), *is_refusal) {
                done.insert("logprobs".into(), json!([]));
            }
            self.events.tell(out, &format!("{}.done", of_part(*is_refusal)), done);
            let part = part(text, *is_refusal);
            let done = json!({"item_id": id, "output_index": at, "content_index": place, "part": part});
            self.events.tell(out, "response.content_part.done", done);
            content.push(part);
        }
        message(&id, status, content)
    }

    fn fail(&mut self, raw: Option<&RawValue>, out: &mut Vec<u8>) {
        let told: Value = raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        let word = |name: &str| told.get(name).and_then(Value::as_str);
        let message = word("message").or(told.as_str()).unwrap_or("The provider's stream ended with an error.");
        let code = told.get("code").cloned().unwrap_or_default();
        out.extend_from_slice(&error(Speaks::Responses, word("type").unwrap_or("api_error"), message, &code));
        self.over = true;
    }

    fn item_id(&self, kind: &str, at: usize) -> String {
        format!("{kind}_{}_{at}", self.unique)
    }
}

const fn of_part(is_refusal: bool) -> &'static str {
    if is_refusal { "response.refusal" } else { "response.output_text" }
}

/// Arguments are text; some providers send the object itself.
fn arguments(raw: Option<&RawValue>) -> Option<String> {
    text(raw).or_else(|| raw.filter(|raw| raw.get().starts_with('{')).map(|raw| raw.get().to_owned()))
}
