//! Hides the usage chunk of an OpenAI stream from a client that did not ask for it.
//!
//! OpenAI providers are always asked for usage, and send it in an event of its own: `"choices":[]` with a `usage`. Only the bytes of that
//! event are taken out; every other byte goes on unchanged and in order. To know which event it is, the bytes of an event are held from
//! its first line up to its blank line: providers write an event at once, so that nothing waits in practice. Comments between events pass
//! as they come, and so does what is longer than any usage chunk.

use crate::object::members;
use crate::sse::Reader;
use memchr::{memchr_iter, memchr2};
use serde::de::IgnoredAny;

/// No usage chunk is longer.
const MAX_HELD_BYTES: usize = 16 << 10;

const BOM: [u8; 3] = [0xef, 0xbb, 0xbf];

/// Where the last line ending went: a line feed after a carriage return follows it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Fate {
    /// Out, or nowhere in particular.
    #[default]
    Passed,
    Held,
    Hidden,
}

/// Takes a provider's bytes, gives the client's.
#[derive(Debug, Default)]
pub struct Hider {
    held: Vec<u8>,
    /// How much of a byte order mark was seen; [`BOM`]'s length: the start is over.
    bom: usize,
    in_line: bool,
    in_event: bool,
    /// What is being read passes: a comment between events, or an event that is too long to be the one.
    passing: bool,
    after_cr: Option<Fate>,
}

impl Hider {
    /// At the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Some bytes are held.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes whole events that are known not to be the one.
    pub fn pass(&mut self, events: &[u8], out: &mut Vec<u8>) {
        let between_events = self.bom == BOM.len() && !self.holds() && !self.in_line && !self.in_event && self.after_cr.is_none();
        if between_events {
            out.extend_from_slice(events);
        } else {
            self.push(events, out);
        }
    }

    /// Takes bytes; adds those that may go on.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut bytes = self.start(bytes, out);
        while let Some((first, after_first)) = bytes.split_first() {
            if let Some(fate) = self.after_cr.take()
                && *first == b'\n'
            {
                match fate {
                    Fate::Passed => out.push(*first),
                    Fate::Held => self.hold(&[*first], out),
                    Fate::Hidden => {}
                }
                bytes = after_first;
                continue;
            }
            let ending = memchr2(b'\n', b'\r', bytes);
            let length = ending.map_or(bytes.len(), |at| at + 1);
            let (piece, rest) = bytes.split_at_checked(length).unwrap_or((bytes, &[]));
            self.piece(piece, *first, ending.is_some(), out);
            bytes = rest;
        }
    }

    /// The stream is over: the last event if it only lacks its blank line. Half an event is of no use to a client, and whatever is
    /// written after it would be read as its end; it is dropped.
    pub fn finish(&mut self) -> Vec<u8> {
        let held = std::mem::take(&mut self.held);
        match parse(&held) {
            Some(data) if data.starts_with("[DONE]") || (serde_json::from_str::<IgnoredAny>(&data).is_ok() && !is_usage(&data)) => held,
            _ => Vec::new(),
        }
    }

    /// Passes a byte order mark, so that it is no part of the first event.
    fn start<'a>(&mut self, mut bytes: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
        while let Some(expected) = BOM.get(self.bom) {
            let Some((byte, rest)) = bytes.split_first() else { return bytes };
            if byte != expected {
                self.in_line = self.bom > 0;
                self.in_event = self.in_line;
                self.bom = BOM.len();
                return bytes;
            }
            self.held.push(*byte);
            self.bom += 1;
            bytes = rest;
            if self.bom == BOM.len() {
                out.append(&mut self.held);
            }
        }
        bytes
    }

    /// A line or a part of one; `ends`: with its line ending.
    fn piece(&mut self, piece: &[u8], first: u8, ends: bool, out: &mut Vec<u8>) {
        let blank = !self.in_line && matches!(first, b'\n' | b'\r');
        if !self.in_line && !self.in_event {
            self.passing = blank || first == b':';
            self.in_event = !self.passing;
        }
        self.in_line = !ends;
        self.hold(piece, out);
        let mut fate = if self.passing { Fate::Passed } else { Fate::Held };
        if blank && self.in_event {
            self.in_event = false;
            if !self.passing {
                fate = self.release(out);
            }
            self.passing = false;
        }
        self.after_cr = (piece.last() == Some(&b'\r')).then_some(fate);
    }

    fn hold(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.passing {
            out.extend_from_slice(bytes);
            return;
        }
        self.held.extend_from_slice(bytes);
        if self.held.len() > MAX_HELD_BYTES {
            out.append(&mut self.held);
            self.passing = true;
        }
    }

    /// The held event is whole.
    fn release(&mut self, out: &mut Vec<u8>) -> Fate {
        if may_tell_usage(&self.held) && parse(&self.held).is_some_and(|data| is_usage(&data)) {
            for line in self.held.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| line.starts_with(b":")) {
                out.extend_from_slice(line);
            }
            self.held.clear();
            return Fate::Hidden;
        }
        out.append(&mut self.held);
        Fate::Passed
    }
}

/// Whether a member `usage` that is not null may be among these bytes; its name could be escaped.
fn may_tell_usage(bytes: &[u8]) -> bool {
    let not_null = |after: &[u8]| {
        let value = after.trim_ascii_start().strip_prefix(b":").unwrap_or_default();
        !value.trim_ascii_start().starts_with(b"null")
    };
    memchr_iter(b'u', bytes).any(|at| {
        let found = bytes.get(at.saturating_sub(1)..).unwrap_or_default();
        found.starts_with(br"\u00") || found.strip_prefix(br#""usage""#).is_some_and(not_null)
    })
}

fn parse(held: &[u8]) -> Option<String> {
    let mut reader = Reader::new();
    let first = reader.push(held).into_iter().next();
    first.or_else(|| reader.finish()).map(|event| event.data)
}

fn is_usage(data: &str) -> bool {
    // Moderation results come in a chunk without choices, too.
    let Some([Some(choices), Some(_), None, None]) = members(data, ["choices", "usage", "error", "moderation"]) else { return false };
    choices.get().strip_prefix('[').is_some_and(|list| list.trim_start() == "]")
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const USAGE: &str = r#"{"id":"1","choices":[],"usage":{"prompt_tokens":1}}"#;

    fn push(hider: &mut Hider, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        hider.push(bytes, &mut out);
        out
    }

    fn hide(text: &str) -> String {
        let mut hider = Hider::new();
        let mut out = push(&mut hider, text.as_bytes());
        out.extend(hider.finish());
        let mut by_event = Hider::new();
        let mut quick = Vec::new();
        for event in text.split_inclusive("\n\n") {
            if event.ends_with("\n\n") && !event.contains("usage") {
                by_event.pass(event.as_bytes(), &mut quick);
            } else {
                by_event.push(event.as_bytes(), &mut quick);
            }
        }
        quick.extend(by_event.finish());
        assert_eq!(out, quick);
        let mut by_byte = Hider::new();
        let mut slow: Vec<u8> = text.as_bytes().iter().flat_map(|byte| push(&mut by_byte, &[*byte])).collect();
        slow.extend(by_byte.finish());
        assert_eq!(out, slow);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_the_usage_chunk_is_hidden() {
        for ending in ["\n", "\r\n", "\r"] {
            let event = |data: &str| format!("data: {data}{ending}{ending}");
            let content = event(r#"{"choices":[{"delta":{"content":"hi"}}],"usage":null}"#);
            let with_both = event(r#"{"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}"#);
            let filter = event(r#"{"choices":[],"prompt_filter_results":[]}"#);
            let broken = event(r#"{"choices":[],"usage":{"#);
            let done = event("[DONE]");
            let kept = format!("{filter}{content}{with_both}{broken}");
            assert_eq!(hide(&format!("{kept}{}{done}", event(USAGE))), format!("{kept}{done}"));
            assert_eq!(hide(&format!("{kept}{done}")), format!("{kept}{done}"));
        }
    }

    #[test]
    fn a_usage_chunk_in_any_form_is_hidden() {
        assert_eq!(hide(&format!("event: x\nid: 7\ndata:{USAGE}\n\n")), "");
        assert_eq!(hide("data: {\"choices\": [ ],\ndata: \"usage\": {}}\r\n\r\ndata: 1\n\n"), "data: 1\n\n");
        assert_eq!(hide(&format!("\u{feff}data:{USAGE}\n\n: x\n")), "\u{feff}: x\n");
        assert_eq!(hide(&format!("data: 1\n\ndata: {USAGE}\n")), "data: 1\n\n");
    }

    #[test]
    fn events_without_usage_are_not_parsed() {
        assert!(!may_tell_usage(br#"data: {"choices":[{"delta":{"content":"say \"usage\": 1"}}],"usage" : null}"#));
        assert!(may_tell_usage(USAGE.as_bytes()));
        assert!(may_tell_usage(br#"data: {"choices":[],"us\u0061ge":{}}"#));
    }

    #[test]
    fn comments_pass_as_they_come() {
        let mut hider = Hider::new();
        assert_eq!(push(&mut hider, b": pi"), b": pi");
        assert_eq!(push(&mut hider, b"ng\n\n"), b"ng\n\n");
        assert_eq!(push(&mut hider, b"data: 1\n"), b"");
        assert_eq!(push(&mut hider, b"\n"), b"data: 1\n\n");
        assert_eq!(hide(&format!("data: {USAGE}\n: mid\n\n")), ": mid\n");
    }

    #[test]
    fn a_long_event_flows_and_the_next_is_still_hidden() {
        let long = format!("data: {}\n\n", "a".repeat(MAX_HELD_BYTES));
        assert_eq!(hide(&format!("{long}data: {USAGE}\n\n{long}")), format!("{long}{long}"));
        let mut hider = Hider::new();
        assert_eq!(push(&mut hider, long.as_bytes().strip_suffix(b"a\n\n").unwrap()).len(), long.len() - 3);
    }

    #[test]
    fn half_an_event_at_the_end_is_dropped() {
        assert_eq!(hide("data: 1\n\ndata: {\"choices\":[{\"del"), "data: 1\n\n");
        assert_eq!(hide("data: 1\n\ndata: [DONE]"), "data: 1\n\ndata: [DONE]");
    }
}
