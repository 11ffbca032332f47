//! Most events of a stream differ from the one before by the text they carry alone: on the wire such an event is known without being read.

use crate::sse::Event;
use memchr::memchr2;
use serde_json::value::RawValue;

/// Texts in the data of an event that only added to the answer: JSON strings, and whether their bytes count as generated.
pub(super) type Texts<'a> = Vec<(&'a RawValue, bool)>;

/// What events that are alike share: all their bytes but the insides of those strings.
#[derive(Debug, Default)]
pub(super) struct Alike {
    /// What stands before each text, its quote included, and whether the text counts; empty: no event is known.
    before: Vec<(Vec<u8>, bool)>,
    /// What stands after the last.
    end: Vec<u8>,
}

impl Alike {
    /// Steps over an event that is like the one learned: the bytes it generated, and what comes after it. `None`: it must be read.
    pub(super) fn skip<'a>(&self, bytes: &'a [u8]) -> Option<(u64, &'a [u8])> {
        let (mut rest, mut generated) = (bytes, 0);
        for (before, counts) in &self.before {
            rest = strip(rest, before)?;
            let (text, after) = rest.split_at_checked(text_length(rest)?)?;
            generated += if *counts { text.len() as u64 } else { 0 };
            rest = after;
        }
        if self.before.is_empty() { None } else { Some((generated, strip(rest, &self.end)?)) }
    }

    /// Remembers this event in the place of the one before, by its texts in any order; without texts none is known.
    pub(super) fn learn(&mut self, event: &Event, texts: Texts<'_>) {
        *self = Self::of(event, texts).unwrap_or_default();
    }

    fn of(event: &Event, mut texts: Texts<'_>) -> Option<Self> {
        let place = |raw: &RawValue| raw.get().as_ptr().addr().checked_sub(event.data.as_ptr().addr());
        let data = event.data.as_bytes();
        let name = if event.name.is_empty() { String::new() } else { format!("event: {}\n", event.name) };
        let (mut before, mut at, mut start_of_event) = (Vec::with_capacity(texts.len()), 0, format!("{name}data: "));
        // A sort would be more code than they are worth: they are few.
        while let Some((next, _)) = texts.iter().enumerate().min_by_key(|(_, (raw, _))| raw.get().as_ptr()) {
            let (raw, counts) = texts.swap_remove(next);
            let start = place(raw)?;
            before.push(([std::mem::take(&mut start_of_event).as_bytes(), data.get(at..=start)?].concat(), counts));
            at = (start + raw.get().len()).checked_sub(1)?;
        }
        Some(Self { before, end: [data.get(at..)?, b"\n\n"].concat() })
    }
}

/// What comes after `start`. It compares words: the comparison that comes with wasm goes byte by byte.
fn strip<'a>(bytes: &'a [u8], start: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(start.len())?;
    let ((words, last), (start_words, start_last)) = (head.as_chunks::<8>(), start.as_chunks::<8>());
    let same = words.iter().zip(start_words).all(|(word, start)| u64::from_ne_bytes(*word) == u64::from_ne_bytes(*start));
    (same && last == start_last).then_some(rest)
}

/// The length of the inside of a JSON string; `None` if it makes none, or only by numbered escapes.
fn text_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes.get(at) == Some(&b'"') {
            let text = std::str::from_utf8(bytes.get(..at)?).ok()?;
            return text.bytes().all(|byte| byte >= b' ').then_some(at);
        }
        if !br#""\/bfnrt"#.contains(bytes.get(at + 1)?) {
            return None;
        }
        at += 2;
    }
}

/// The raw value, if it is a string.
pub(super) fn string(raw: Option<&RawValue>) -> Option<&RawValue> {
    raw.filter(|raw| raw.get().starts_with('"'))
}

#[cfg(test)]
mod tests {
    use super::super::Meter;
    use super::*;
    use crate::sse::Reader;
    use proxium_wire::Dialect;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn event(data: &str) -> Event {
        Event { name: String::new(), data: data.into() }
    }

    fn openai(delta: &str, after: &str) -> String {
        format!(r#"{{"id":"1","choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]{after}}}"#)
    }

    /// Meters all of a stream by its bytes, and every event by itself.
    fn metered(dialect: Dialect, events: &[String]) -> (String, String) {
        let told = |meter: &Meter| (meter.generated_bytes(), meter.first(), meter.failed(), meter.odd, meter.ended(), meter.usage());
        let (mut by_bytes, mut by_events) = (Meter::new(dialect), Meter::new(dialect));
        for data in events {
            let bytes = format!("data: {data}\n\n");
            for event in Reader::new().push(by_bytes.skip(bytes.as_bytes())) {
                by_bytes.event(&event);
            }
            Reader::new().push(bytes.as_bytes()).iter().for_each(|event| by_events.event(event));
        }
        (format!("{:?}", told(&by_bytes)), format!("{:?}", told(&by_events)))
    }

    /// After `before`, no byte of `data` needs to be read.
    fn is_known(dialect: Dialect, before: &str, data: &str) -> bool {
        let mut meter = Meter::new(dialect);
        meter.event(&event(before));
        meter.skip(format!("data: {data}\n\n").as_bytes()).is_empty()
    }

    #[test]
    fn an_event_that_only_brings_more_text_is_known() {
        let anthropic =
            |text: &str| format!(r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{text}"}}}}"#);
        assert!(is_known(Dialect::Anthropic, &anthropic("a"), &anthropic(r#"é\n and \"more\""#)));
        let text =
            |text: &str, noise: &str| openai(&format!(r#"{{"content":"{text}"}}"#), &format!(r#","usage":null,"obfuscation":"{noise}""#));
        assert!(is_known(Dialect::Openai, &text("a", "xyz"), &text("", "x")));
        let call = |json: &str| openai(&format!(r#"{{"tool_calls":[{{"index":0,"function":{{"arguments":"{json}"}}}}]}}"#), "");
        assert!(is_known(Dialect::Openai, &call("{"), &call("12")));
        let (by_bytes, by_events) = metered(Dialect::Openai, &[text("a", "x"), text(r"\n", "y"), text("", ""), text("é", "z")]);
        assert_eq!(by_bytes, by_events);
    }

    #[test]
    fn whatever_else_differs_is_read() {
        let text = |text: &str| openai(&format!(r#"{{"content":"{text}"}}"#), "");
        for other in [
            text(r"\u0041"),
            text(r"\x"),
            text("a\ttab"),
            text("a\ndata: b"),
            text(r#""},"finish_reason":"stop","x":{"y":""#),
            text("a").replace("null", r#""stop""#),
            text("a").replace(r#""index":0"#, r#""index":1"#),
            text("a").replace(r#""id""#, r#""error""#),
            format!("{} ", text("a")),
            openai(r#"{"content":"a"}"#, r#","usage":{"prompt_tokens":1}"#),
            "[DONE]".into(),
        ] {
            assert!(!is_known(Dialect::Openai, &text("a"), &other), "{other}");
            let (by_bytes, by_events) = metered(Dialect::Openai, &[text("a"), text("b"), other.clone(), text("c"), other.clone(), other]);
            assert_eq!(by_bytes, by_events);
        }
        let mut meter = Meter::new(Dialect::Openai);
        meter.event(&event(&text("a")));
        for bytes in [&b"data: "[..], b"", b"data:{", b"event: x\ndata: {", b"\n"] {
            assert_eq!(meter.skip(bytes), bytes);
        }
        let not_utf8 = [b"data: ", text("?").as_bytes(), b"\n\n"].concat().into_iter().map(|byte| if byte == b'?' { 0xff } else { byte });
        let not_utf8: Vec<u8> = not_utf8.collect();
        assert_eq!(meter.skip(&not_utf8), not_utf8);
    }

    #[test]
    fn an_event_that_says_more_than_text_teaches_nothing() {
        let text = |after: &str| openai(r#"{"content":"a"}"#, after);
        for event in [
            text(r#","usage":{"prompt_tokens":1}"#),
            text("").replace("null", r#""stop""#),
            openai(r#"{"reasoning":"ab","reasoning_content":"ab"}"#, ""),
            openai(r#"{"reasoning":"","reasoning_content":"ab"}"#, ""),
            openai(r#"{"role":"assistant"}"#, ""),
            r#"{"type":"response.output_text.delta","delta":"hello"}"#.into(),
        ] {
            assert!(!is_known(Dialect::Openai, &event, &event), "{event}");
        }
    }

    #[test]
    fn an_event_with_a_name_is_known_by_it_too() {
        let named = Event { name: "x".into(), data: openai(r#"{"content":"a"}"#, "") };
        let mut meter = Meter::new(Dialect::Openai);
        meter.event(&named);
        let wire = |name: &str| format!("event: {name}\ndata: {}\n\n", named.data);
        assert!(meter.skip(wire("x").as_bytes()).is_empty());
        assert!(!meter.skip(wire("error").as_bytes()).is_empty());
    }
}
