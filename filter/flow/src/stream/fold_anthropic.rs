//! Anthropic's events to a message.

use super::Frame;
use super::fold::Step;
use super::node::{Node, Unreadable, members, merge, replace};
use crate::sse::Event;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

type Object = BTreeMap<String, Node>;

#[derive(Debug, Default)]
pub(super) struct AnthropicFold {
    /// `None`: no `message_start` yet.
    message: Option<Object>,
    usage: Object,
    blocks: BTreeMap<u64, Block>,
    stopped: bool,
}

#[derive(Debug, Default)]
struct Block {
    members: Object,
    /// A tool's input, in pieces.
    input: String,
}

/// What a block costs beside its text.
const FRAME_BYTES: usize = 64;

impl AnthropicFold {
    pub(super) fn event(&mut self, event: &Event) -> Step {
        if self.stopped {
            return Ok(0);
        }
        if event.name == "error" {
            return Err(Unreadable);
        }
        let frame = Frame::read(&event.data).ok_or(Unreadable)?;
        self.frame(&frame, event, &event.data)
    }

    fn frame(&mut self, frame: &Frame<'_>, event: &Event, json: &str) -> Step {
        if frame.is_error() {
            return Err(Unreadable);
        }
        match frame.kind(event).as_str() {
            "error" => Err(Unreadable),
            "message_start" => self.start(frame.message.ok_or(Unreadable)?),
            "content_block_start" => self.block(frame.index().ok_or(Unreadable)?, frame.content_block.ok_or(Unreadable)?),
            "content_block_delta" => {
                let block = frame.index().and_then(|index| self.blocks.get_mut(&index)).ok_or(Unreadable)?;
                block.delta(frame.delta.ok_or(Unreadable)?)
            }
            "message_delta" => self.delta(json),
            "message_stop" => {
                self.stopped = true;
                Ok(0)
            }
            _ => Ok(0),
        }
    }

    fn start(&mut self, message: &RawValue) -> Step {
        let mut object = Object::new();
        let mut grown = 0;
        for (name, raw) in members(message.get()).ok_or(Unreadable)? {
            match name.as_str() {
                "content" => {}
                "usage" => grown += self.usage(raw),
                _ => grown += replace(&mut object, &name, raw),
            }
        }
        self.message = Some(object);
        Ok(grown)
    }

    fn usage(&mut self, usage: &RawValue) -> usize {
        members(usage.get()).into_iter().flatten().map(|(name, raw)| replace(&mut self.usage, &name, raw)).sum()
    }

    fn block(&mut self, index: u64, start: &RawValue) -> Step {
        let mut block = Block::default();
        let mut grown = FRAME_BYTES;
        for (name, raw) in members(start.get()).ok_or(Unreadable)? {
            // What grows by deltas; all else of a block comes whole.
            grown += match name.as_str() {
                "text" | "thinking" | "citations" => merge(&mut block.members, &name, raw)?,
                _ => replace(&mut block.members, &name, raw),
            };
        }
        self.blocks.insert(index, block);
        Ok(grown)
    }

    /// `delta` holds members of the message; what stands beside it (`usage`, `context_management`) belongs to the message, too.
    fn delta(&mut self, json: &str) -> Step {
        let mut grown = 0;
        for (name, raw) in members(json).ok_or(Unreadable)? {
            let message = self.message.as_mut().ok_or(Unreadable)?;
            match name.as_str() {
                "type" => {}
                "usage" => grown += self.usage(raw),
                "delta" => {
                    for (name, raw) in members(raw.get()).ok_or(Unreadable)? {
                        grown += replace(message, &name, raw);
                    }
                }
                _ => grown += replace(message, &name, raw),
            }
        }
        Ok(grown)
    }

    pub(super) fn finish(self) -> Option<Vec<u8>> {
        let mut message = self.message.filter(|_| self.stopped)?;
        let mut content = Vec::new();
        for (_, mut block) in self.blocks {
            if !block.input.trim().is_empty() {
                block.members.insert("input".into(), Node::Other(RawValue::from_string(block.input).ok()?));
            }
            content.push(block.members);
        }
        message.insert("content".into(), Node::of(&content)?);
        message.insert("usage".into(), Node::Object(self.usage));
        serde_json::to_vec(&message).ok()
    }
}

impl Block {
    fn delta(&mut self, delta: &RawValue) -> Step {
        let mut grown = 0;
        for (name, raw) in members(delta.get()).ok_or(Unreadable)? {
            grown += match name.as_str() {
                "type" => 0,
                "partial_json" => {
                    let piece: String = serde_json::from_str(raw.get()).map_err(|_| Unreadable)?;
                    self.input.push_str(&piece);
                    piece.len()
                }
                // One citation a delta.
                "citation" => {
                    let list = RawValue::from_string(format!("[{}]", raw.get())).map_err(|_| Unreadable)?;
                    merge(&mut self.members, "citations", &list)?
                }
                // It comes whole; the block starts with an empty one.
                "signature" => replace(&mut self.members, &name, raw),
                _ => merge(&mut self.members, &name, raw)?,
            };
        }
        Ok(grown)
    }
}
