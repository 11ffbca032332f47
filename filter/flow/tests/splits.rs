//! Where the bytes of a stream are split does not matter, whatever the bytes are.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // test support: a surprise is a failed test

use proptest::prelude::*;
use proxium_flow::sse::{Event, Reader};
use proxium_flow::stream::{Fold, Hider, Meter};
use proxium_flow::translate::{anthropic_openai_stream, openai_anthropic_stream};
use proxium_wire::Dialect;

/// All there is to see of a stream.
#[derive(Debug, PartialEq)]
struct Seen {
    events: Vec<Event>,
    meters: Vec<String>,
    folded: Vec<Option<Vec<u8>>>,
    hidden: Vec<u8>,
    to_openai: Vec<u8>,
    to_anthropic: Vec<u8>,
}

fn see<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Seen {
    let dialects = [Dialect::Openai, Dialect::Anthropic];
    let mut reader = Reader::new();
    let mut hider = Hider::new();
    let (mut events, mut hidden, mut mid) = (Vec::new(), Vec::new(), false);
    for piece in pieces {
        events.extend(reader.push(piece));
        hider.push(piece, &mut hidden);
        mid = reader.mid_event();
    }
    events.extend(reader.finish());
    hidden.extend(hider.finish());

    let mut meters = vec![mid.to_string()];
    let mut folded = Vec::new();
    for dialect in dialects {
        let (mut meter, mut fold) = (Meter::new(dialect), Fold::new(dialect, 1 << 16));
        for event in &events {
            meter.event(event);
            fold.event(event);
        }
        meter.finish();
        meters.push(format!("{meter:?} {:?} {} {}", meter.usage(), meter.complete(), meter.failed()));
        folded.push(fold.finish());
    }
    let mut openai = openai_anthropic_stream::Translator::new("m", "chatcmpl-1", 1, true);
    let mut anthropic = anthropic_openai_stream::Translator::new("m", "msg_1", 1, true);
    let (mut to_openai, mut to_anthropic) = (Vec::new(), Vec::new());
    for event in &events {
        openai.event(event, &mut to_openai);
        anthropic.event(event, &mut to_anthropic);
    }
    openai.finish(&mut to_openai);
    anthropic.finish(&mut to_anthropic);
    Seen { events, meters, folded, hidden, to_openai, to_anthropic }
}

fn split<'a>(bytes: &'a [u8], sizes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let (mut at, mut sizes) = (0, sizes.iter().cycle());
    std::iter::from_fn(move || {
        let end = (at + sizes.next()?).min(bytes.len());
        let piece = (at < bytes.len()).then(|| &bytes[at..end]);
        at = end;
        piece
    })
}

fn read(bytes: &[u8]) -> Vec<Event> {
    let mut reader = Reader::new();
    let mut events = reader.push(bytes);
    events.extend(reader.finish());
    events
}

fn is_usage_chunk(event: &Event) -> bool {
    serde_json::from_str::<serde_json::Value>(&event.data)
        .is_ok_and(|data| data["choices"].as_array().is_some_and(Vec::is_empty) && !data["usage"].is_null() && data["error"].is_null())
}

/// The providers' streams of the golden files.
fn streams() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/streams");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut streams: Vec<_> = files.filter(|path| path.to_str().unwrap().ends_with(".in.sse")).collect();
    streams.sort();
    streams.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// A real stream with one of the line endings.
fn real() -> impl Strategy<Value = Vec<u8>> {
    (prop::sample::select(streams()), prop::sample::select(vec!["\n", "\r\n", "\r"]), any::<bool>()).prop_map(|(stream, ending, bom)| {
        let text = String::from_utf8(stream).unwrap().replace('\n', ending);
        format!("{}{text}", if bom { "\u{feff}" } else { "" }).into_bytes()
    })
}

/// Pieces of streams in any order, among them what is no stream at all.
fn strange() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::sample::select(
            [
                "data: ", "data:", "data", "event: error", "event: message_stop", ": c", "id: 1", "\n", "\n\n", "\r\n\r\n", "\r", "\u{feff}", "é€😀", "[DONE]",
                r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
                r#"{"choices":[{"index":0,"delta":{"content":"hé"},"finish_reason":"stop"}]}"#,
                r#"{"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]}}]}"#,
                r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}},{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}]}}]}"#,
                r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}],"reasoning":"r","refusal":"n","x":{"y":[1]}}}]}"#,
                r#"{"error":{"message":"x"}}"#, r#"{"a":1,"a":2}"#, "{", "null", "[]",
                r#"{"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":1}}}"#,
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{}"}}"#,
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"t"}}"#,
                r#"{"type":"content_block_stop","index":0}"#,
                r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}"#,
                r#"{"type":"message_stop"}"#,
            ]
            .map(|text| text.as_bytes().to_vec())
            .to_vec()
        ),
        prop::collection::vec(any::<u8>(), 1..4),
    ];
    prop::collection::vec((piece, prop::sample::select(vec!["", "\n", "\n\ndata: ", "\r\n\r\ndata:"])), 0..24)
        .prop_map(|pieces| pieces.into_iter().flat_map(|(piece, glue)| [piece, glue.as_bytes().to_vec()].concat()).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_real_stream_is_the_same_split_anywhere(bytes in real(), sizes in prop::collection::vec(1_usize..40, 1..12)) {
        prop_assert_eq!(see(std::iter::once(bytes.as_slice())), see(split(&bytes, &sizes)));
    }

    #[test]
    fn strange_bytes_are_the_same_split_anywhere(bytes in strange(), sizes in prop::collection::vec(1_usize..40, 1..12)) {
        prop_assert_eq!(see(std::iter::once(bytes.as_slice())), see(split(&bytes, &sizes)));
    }

    #[test]
    fn nothing_but_usage_chunks_is_hidden(bytes in prop_oneof![real(), strange()]) {
        // Half an event at the end is dropped, and is of no interest here.
        let bytes = [bytes.as_slice(), b"\n\n"].concat();
        let mut hider = Hider::new();
        let mut hidden = Vec::new();
        hider.push(&bytes, &mut hidden);
        let expected: Vec<Event> = read(&bytes).into_iter().filter(|event| !is_usage_chunk(event)).collect();
        if expected.len() == read(&bytes).len() {
            prop_assert_eq!(&hidden, &bytes);
        }
        prop_assert_eq!(read(&hidden), expected);
    }
}

#[test]
fn every_byte_alone_is_the_same() {
    for stream in streams() {
        assert_eq!(see(std::iter::once(stream.as_slice())), see(stream.chunks(1)));
    }
}

#[test]
fn a_translated_stream_folds_to_the_same_text_split_anywhere() {
    let stream = streams().into_iter().find(|stream| String::from_utf8_lossy(stream).contains("keep-alive")).unwrap();
    let seen = see(stream.chunks(1));
    let text: String = read(&seen.to_anthropic)
        .iter()
        .filter_map(|event| serde_json::from_str::<serde_json::Value>(&event.data).ok()?["delta"]["text"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(text, "Grüße, 世界 😀");
}
