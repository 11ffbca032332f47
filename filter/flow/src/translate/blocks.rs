//! Content blocks that come interleaved, written one after the other.
//!
//! Anthropic's blocks cannot interleave: a block is started, filled and stopped before the next. OpenAI's tool calls can: pieces of call
//! 0 and 1 may alternate. So the first open block is written as it comes and the ones behind it are held until it is done. A text
//! block is done once another block follows, a tool block once its input is one whole JSON object; so calls that come
//! one after the other, which is what providers do, are written without delay.

use crate::sse;
use crate::value::json;
use serde_json::Value;
use std::collections::VecDeque;

/// More held than this is no answer of a model.
const MAX_HELD_BYTES: usize = 4 << 20;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Text for the reader.
    Text,
    /// The tool call of this slot.
    Tool(usize),
}

#[derive(Debug)]
struct Block {
    kind: Kind,
    /// Not written yet.
    held: String,
    id: String,
    name: String,
    started: bool,
    json: JsonEnd,
}

/// More is held than [`MAX_HELD_BYTES`].
#[derive(Debug)]
pub(super) struct TooLarge;

/// Writes blocks in order.
#[derive(Debug)]
pub(super) struct Blocks {
    /// The message's id, for calls without one of their own.
    message: String,
    open: VecDeque<Block>,
    /// The index of the first open block.
    index: u64,
    held_bytes: usize,
    pub(super) any_tool: bool,
}

impl Blocks {
    pub(super) fn new(message: &str) -> Self {
        Self { message: message.into(), open: VecDeque::new(), index: 0, held_bytes: 0, any_tool: false }
    }

    /// Text goes to the last block, if that is one of text.
    pub(super) fn text(&mut self, text: &str, out: &mut Vec<u8>) -> Result<(), TooLarge> {
        if text.is_empty() {
            return Ok(());
        }
        if self.open.back().is_none_or(|block| block.kind != Kind::Text) {
            self.open.push_back(Block::new(Kind::Text));
        }
        self.held_bytes += text.len();
        if let Some(block) = self.open.back_mut() {
            block.held.push_str(text);
        }
        self.write(out)
    }

    /// A piece of a tool call. A call whose input was whole takes no more.
    pub(super) fn tool(&mut self, slot: usize, begins: bool, id: &str, name: &str, piece: &str, out: &mut Vec<u8>) -> Result<(), TooLarge> {
        if begins {
            self.any_tool = true;
            self.open.push_back(Block::new(Kind::Tool(slot)));
        }
        if let Some(block) = self.open.iter_mut().find(|block| block.kind == Kind::Tool(slot)) {
            if block.id.is_empty() {
                id.clone_into(&mut block.id);
            }
            // A name comes whole; some providers repeat it.
            if block.name.is_empty() {
                name.clone_into(&mut block.name);
            }
            self.held_bytes += piece.len() + name.len() + id.len();
            block.json.feed(piece);
            block.held.push_str(piece);
        }
        self.write(out)
    }

    /// Nothing more comes: every block is written and stopped.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        while let Some(mut block) = self.open.pop_front() {
            block.start(&self.message, self.index, out);
            block.flush(self.index, out);
            self.stop(out);
        }
        self.held_bytes = 0;
    }

    /// Writes what can be written.
    fn write(&mut self, out: &mut Vec<u8>) -> Result<(), TooLarge> {
        while let Some(block) = self.open.front_mut() {
            if let Kind::Tool(_) = block.kind
                && block.name.is_empty()
            {
                break;
            }
            block.start(&self.message, self.index, out);
            self.held_bytes = self.held_bytes.saturating_sub(block.flush(self.index, out));
            let done = match block.kind {
                Kind::Tool(_) => block.json.ended(),
                Kind::Text => true,
            };
            if !done || self.open.len() == 1 {
                break;
            }
            self.open.pop_front();
            self.stop(out);
        }
        if self.held_bytes > MAX_HELD_BYTES { Err(TooLarge) } else { Ok(()) }
    }

    fn stop(&mut self, out: &mut Vec<u8>) {
        sse::write(out, Some("content_block_stop"), &json!({"type": "content_block_stop", "index": self.index}));
        self.index += 1;
    }
}

impl Block {
    fn new(kind: Kind) -> Self {
        Self { kind, held: String::new(), id: String::new(), name: String::new(), started: false, json: JsonEnd::default() }
    }

    fn start(&mut self, message: &str, index: u64, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let block = match self.kind {
            Kind::Text => json!({"type": "text", "text": ""}),
            Kind::Tool(slot) => {
                let id = if self.id.is_empty() { format!("toolu_{message}_{slot}") } else { std::mem::take(&mut self.id) };
                json!({"type": "tool_use", "id": id, "name": self.name, "input": {}})
            }
        };
        sse::write(out, Some("content_block_start"), &json!({"type": "content_block_start", "index": index, "content_block": block}));
    }

    /// Writes what is held; how much that was.
    fn flush(&mut self, index: u64, out: &mut Vec<u8>) -> usize {
        if self.held.is_empty() {
            return 0;
        }
        let (kind, member) = match self.kind {
            Kind::Text => ("text_delta", "text"),
            Kind::Tool(_) => ("input_json_delta", "partial_json"),
        };
        let length = self.held.len();
        let delta = json!({"type": kind, member: Value::String(std::mem::take(&mut self.held))});
        sse::write(out, Some("content_block_delta"), &json!({"type": "content_block_delta", "index": index, "delta": delta}));
        length
    }
}

/// Finds the end of a JSON object that comes in pieces, without keeping it.
#[derive(Debug, Default)]
struct JsonEnd {
    depth: u32,
    in_string: bool,
    escaped: bool,
    begun: bool,
}

impl JsonEnd {
    fn feed(&mut self, piece: &str) {
        for byte in piece.bytes() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => {
                    self.depth = self.depth.saturating_add(1);
                    self.begun = true;
                }
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    fn ended(&self) -> bool {
        self.begun && self.depth == 0 && !self.in_string
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn the_end_of_an_object_is_found_in_pieces() {
        for (pieces, ended) in [
            (&["{", "}"][..], true),
            (&[""], false),
            (&[" "], false),
            (&["{\"a\":\"}"], false),
            (&["{\"a\":\"}\\", "\"}", "\"", "}"], true),
            (&["{\"a\":[{", "}]"], false),
            (&["{\"a\":[{", "}]}"], true),
        ] {
            let mut json = JsonEnd::default();
            pieces.iter().for_each(|piece| json.feed(piece));
            assert_eq!(json.ended(), ended, "{pieces:?}");
        }
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut blocks = Blocks::new("msg_1");
        let mut out = Vec::new();
        blocks.tool(0, true, "a", "f", "{", &mut out).unwrap();
        blocks.tool(1, true, "b", "g", "{", &mut out).unwrap();
        let piece = "a".repeat(1 << 20);
        let held: Vec<bool> = (0..5).map(|_| blocks.tool(1, false, "", "", &piece, &mut out).is_ok()).collect();
        assert_eq!(held, [true, true, true, false, false]);
    }
}
