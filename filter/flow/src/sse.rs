//! The one reading of an event stream, by the rules of the WHATWG (html.spec.whatwg.org, "Server-sent events", as of 2026).
//!
//! It meters and translates; bytes that are passed through never wait for it. One rule is wider than the standard's: [`Reader::finish`]
//! gives an event whose blank line never came, because providers end a stream with `data: [DONE]` and nothing after it.

use memchr::memchr2;

/// A longer event is an error: nothing a provider sends is near it, and memory stays bounded.
pub const MAX_EVENT_BYTES: usize = 4 << 20;

/// What stands for an event over [`MAX_EVENT_BYTES`]: an error in both dialects.
const TOO_LARGE: &str =
    r#"{"type":"error","error":{"type":"api_error","message":"The provider sent an event that is too large.","code":"event_too_large"}}"#;

/// Between events a reader keeps no more memory.
const MAX_KEPT_BYTES: usize = 16 << 10;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The `event:` field; empty: none.
    pub name: String,
    /// The `data:` lines, joined by a line feed. Bytes that are no UTF-8 are U+FFFD, as in every reader.
    pub data: String,
}

/// Reads events from bytes as they come; where the bytes are split does not matter.
#[derive(Debug, Default)]
pub struct Reader {
    /// The line so far, as far as it came in bytes before; empty while its bytes are passed over.
    line: Vec<u8>,
    /// A byte of the line was seen.
    in_line: bool,
    in_comment: bool,
    /// The last byte was a carriage return: a line feed belongs to it.
    after_cr: bool,
    /// A line ended already, so that a byte order mark is none.
    begun: bool,
    /// The event is over the limit; passed over up to its end.
    too_large: bool,
    /// The event so far, or the one that was given. Its memory serves the next one.
    event: Event,
    has_data: bool,
    given: bool,
}

impl Reader {
    /// At the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes; gives the events that they end.
    pub fn push(&mut self, mut bytes: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.read(&mut bytes) {
            events.push(event.clone());
        }
        events
    }

    /// Takes bytes up to the end of the first event among them, and gives it; `None`: all are taken. A line that lies in them whole is not
    /// copied, and no event takes memory of its own.
    pub fn read(&mut self, bytes: &mut &[u8]) -> Option<&Event> {
        self.forget_given();
        while let Some((first, after_first)) = bytes.split_first() {
            if std::mem::take(&mut self.after_cr) && *first == b'\n' {
                *bytes = after_first;
                continue;
            }
            let end = memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len());
            let (piece, rest) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
            *bytes = rest;
            if self.outgrows(piece) {
                return Some(&self.event);
            }
            let Some((ending, rest)) = rest.split_first() else {
                if !self.in_comment && !self.too_large {
                    self.line.extend_from_slice(piece);
                }
                break;
            };
            *bytes = rest;
            self.after_cr = *ending == b'\r';
            let ends_event = if self.line.is_empty() {
                self.end_line(piece)
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(piece);
                let ends_event = self.end_line(&line);
                line.clear();
                self.line = line;
                ends_event
            };
            if ends_event {
                return Some(&self.event);
            }
        }
        None
    }

    /// The stream is over: the event that lacks its blank line, if there is one. It may be cut in its middle.
    pub fn finish(&mut self) -> Option<Event> {
        self.forget_given();
        if self.in_line {
            let line = std::mem::take(&mut self.line);
            self.end_line(&line);
        }
        self.dispatch().then(|| self.event.clone())
    }

    /// What comes now begins an event; the first of a stream may begin with a byte order mark and is none of these.
    #[must_use]
    pub fn between_events(&self) -> bool {
        self.begun && !self.after_cr && !self.mid_event()
    }

    /// The last event or line is not ended: whoever adds an event of their own to these bytes writes a blank line first.
    #[must_use]
    pub fn mid_event(&self) -> bool {
        self.in_line || self.has_data || self.too_large || (!self.given && !self.event.name.is_empty())
    }

    fn forget_given(&mut self) {
        if std::mem::take(&mut self.given) {
            self.event.name.clear();
            self.event.data.clear();
            self.event.data.shrink_to(MAX_KEPT_BYTES);
        }
    }

    /// A line goes on; whether its event grows over the limit by that, and is an error from now on.
    fn outgrows(&mut self, piece: &[u8]) -> bool {
        let Some(first) = piece.first() else { return false };
        if !std::mem::replace(&mut self.in_line, true) {
            self.in_comment = *first == b':';
        }
        let bytes = self.event.name.len() + self.event.data.len() + self.line.len() + piece.len();
        if self.in_comment || self.too_large || bytes <= MAX_EVENT_BYTES {
            return false;
        }
        let event = Event { name: "error".into(), data: TOO_LARGE.into() };
        *self = Self { in_line: true, begun: self.begun, too_large: true, event, given: true, ..Self::default() };
        true
    }

    /// A line ends, which is this unless it is passed over; whether an event ends with it.
    fn end_line(&mut self, line: &[u8]) -> bool {
        let begun = std::mem::replace(&mut self.begun, true);
        let blank = !std::mem::take(&mut self.in_line);
        if std::mem::take(&mut self.in_comment) {
            return false;
        }
        let line = if begun { line } else { line.strip_prefix(BOM).unwrap_or(line) };
        if blank || (!begun && line.is_empty() && !self.too_large) {
            return self.dispatch();
        }
        if !self.too_large {
            match std::str::from_utf8(line) {
                Ok(line) => self.field(line),
                Err(_) => self.field(&String::from_utf8_lossy(line)),
            }
        }
        false
    }

    fn field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            _ => {}
        }
    }

    /// Ends the event; whether there is one: it is none without a `data:` line.
    fn dispatch(&mut self) -> bool {
        self.too_large = false;
        self.given = std::mem::take(&mut self.has_data);
        if !self.given {
            self.event.name.clear();
        }
        self.given
    }
}

/// Appends an event; a name only if the dialect has one.
pub(crate) fn write(out: &mut Vec<u8>, name: Option<&str>, data: &impl serde::Serialize) {
    // Maps with string keys always serialize; half an event must not go out in any case.
    if let Ok(json) = serde_json::to_string(data) {
        write_json(out, name, &json);
    }
}

/// The same of data that is JSON already.
pub(crate) fn write_json(out: &mut Vec<u8>, name: Option<&str>, json: &str) {
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    // JSON kept as it came may span lines; outside strings, which hold no line ending, a space is as good.
    out.extend(json.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn read(bytes: &[u8]) -> Vec<Event> {
        let mut reader = Reader::new();
        let mut events = reader.push(bytes);
        events.extend(reader.finish());
        events
    }

    fn data(bytes: &[u8]) -> Vec<String> {
        read(bytes).into_iter().map(|event| event.data).collect()
    }

    #[test]
    fn every_line_ending_and_field_form_is_read() {
        for text in ["data: a\n\ndata:b\n\n", "data: a\r\n\r\ndata:b\r\n\r\n", "data: a\r\rdata:b\r\r", "data: a\r\n\ndata:b\n\r\n"] {
            assert_eq!(data(text.as_bytes()), ["a", "b"], "{text:?}");
        }
        assert_eq!(data(b"data: a\ndata:  b\ndata\n\n"), ["a\n b\n"]);
        assert_eq!(read(b"event: x\nid: 1\nretry: 5\nnonsense\ndata: a\n\n"), [Event { name: "x".into(), data: "a".into() }]);
        assert_eq!(data(b"\xef\xbb\xbfdata: a\n\n"), ["a"]);
        assert_eq!(data(b"\n\n\r\n"), Vec::<String>::new());
        assert_eq!(data(b"data:\n\n"), [""]);
    }

    #[test]
    fn a_name_without_data_is_no_event_and_does_not_stick() {
        assert_eq!(read(b"event: ping\n\ndata: a\n\n"), [Event { name: String::new(), data: "a".into() }]);
    }

    #[test]
    fn comments_are_neither_data_nor_an_end() {
        assert_eq!(data(b": hi\n\n: ping\ndata: a\n: mid\ndata: b\n\n:\n: PROCESSING\n\n"), ["a\nb"]);
    }

    #[test]
    fn a_character_may_be_split_at_any_byte() {
        let text = "data: é€😀\r\n\r\n".as_bytes();
        for at in 0..text.len() {
            let mut reader = Reader::new();
            let mut events = reader.push(&text[..at]);
            events.extend(reader.push(&text[at..]));
            assert_eq!(events, [Event { name: String::new(), data: "é€😀".into() }], "split at {at}");
        }
    }

    #[test]
    fn an_event_without_its_blank_line_is_given_at_the_end() {
        assert_eq!(data(b"data: a\n\ndata: [DONE]"), ["a", "[DONE]"]);
        assert_eq!(data(b"data: a\n\ndata: [DONE]\n"), ["a", "[DONE]"]);
    }

    #[test]
    fn a_huge_event_is_one_error_and_the_next_is_read() {
        let mut reader = Reader::new();
        let mut events = reader.push(b"event: x\ndata: ");
        for _ in 0..9 {
            events.extend(reader.push(&vec![b'a'; 1 << 20]));
            assert!(reader.line.capacity() <= 2 * MAX_EVENT_BYTES);
        }
        events.extend(reader.push(b"\ndata: more\n\ndata: b\n\n"));
        assert_eq!(events.iter().map(|event| event.name.as_str()).collect::<Vec<_>>(), ["error", ""]);
        assert_eq!(events[1].data, "b");
    }

    #[test]
    fn an_endless_comment_costs_no_memory() {
        let mut reader = Reader::new();
        reader.push(b": ");
        for _ in 0..8 {
            assert_eq!(reader.push(&vec![b'a'; 1 << 20]), []);
        }
        assert_eq!(reader.line.capacity(), 0);
    }

    #[test]
    fn a_line_or_event_in_the_middle_is_known() {
        let mut reader = Reader::new();
        for (bytes, mid) in [("data: a\n\n", false), ("data: b", true), ("\n", true), ("\n", false), (": c", true), ("\n", false)] {
            reader.push(bytes.as_bytes());
            assert_eq!(reader.mid_event(), mid, "{bytes:?}");
        }
    }
}
