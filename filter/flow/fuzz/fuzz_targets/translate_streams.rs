//! Any bytes: no panic, and what comes out are whole events of the client's dialect; Anthropic's blocks are well nested.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxium_flow::sse::{Event, Reader};
use proxium_flow::translate::{anthropic_openai_stream, openai_anthropic_stream};
use serde_json::Value;

fn read(bytes: &[u8]) -> Vec<Event> {
    let mut reader = Reader::new();
    let mut events = reader.push(bytes);
    assert!(!reader.mid_event());
    events.extend(reader.finish());
    events
}

fuzz_target!(|bytes: &[u8]| {
    let mut reader = Reader::new();
    let mut events = reader.push(bytes);
    events.extend(reader.finish());

    let mut openai = openai_anthropic_stream::Translator::new("m", "chatcmpl-1", 1, true);
    let mut anthropic = anthropic_openai_stream::Translator::new("m", "msg_1", 1, true);
    let (mut to_openai, mut to_anthropic) = (Vec::new(), Vec::new());
    for event in &events {
        openai.event(event, &mut to_openai);
        anthropic.event(event, &mut to_anthropic);
    }
    openai.finish(&mut to_openai);
    anthropic.finish(&mut to_anthropic);

    let chunks = read(&to_openai);
    let last = chunks.len().saturating_sub(1);
    for (at, event) in chunks.iter().enumerate() {
        let done = event.data == "[DONE]";
        let data: Value = if done { Value::Null } else { serde_json::from_str(&event.data).expect("JSON") };
        assert_eq!(at == last, done || data.get("error").is_some(), "one end, and last: {event:?}");
    }

    let (mut open, mut next) = (None, 0);
    let events = read(&to_anthropic);
    let last = events.len().saturating_sub(1);
    for (at, event) in events.iter().enumerate() {
        let data: Value = serde_json::from_str(&event.data).expect("JSON");
        let index = data["index"].as_u64();
        match event.name.as_str() {
            "content_block_start" => {
                assert_eq!((open, index), (None, Some(next)));
                (open, next) = (index, next + 1);
            }
            "content_block_delta" => assert!(open.is_some() && open == index),
            "content_block_stop" => assert!(open.is_some() && open.take() == index),
            "message_delta" => assert_eq!(open, None),
            _ => {}
        }
        assert_eq!(at == last, matches!(event.name.as_str(), "message_stop" | "error"), "one end, and last: {event:?}");
    }
});
