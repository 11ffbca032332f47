//! A message to Anthropic's events: each block started, filled and stopped, then how the message ended and what it cost.

use super::node::{Members, members};
use super::replay::{Object, write_pieces};
use crate::sse;
use crate::value::quoted;
use serde_json::value::RawValue;

/// Members of the message that only its end tells.
const OF_THE_END: [&str; 2] = ["stop_reason", "stop_sequence"];

pub(super) fn replay(unary: &str) -> Option<Vec<u8>> {
    let message = members(unary)?;
    let content: Vec<&RawValue> = serde_json::from_str(message.get("content")?.get()).ok()?;
    let usage = Object::of(&message.get("usage").and_then(|raw| members(raw.get())).unwrap_or_default());
    let mut out = Vec::with_capacity(unary.len() * 2);

    let begin_usage = usage.clone().with("output_tokens", "0").text();
    let begin = Object::of(&message).with("content", "[]").with("usage", begin_usage);
    let begin = OF_THE_END.iter().fold(begin, |begin, name| begin.with(name, "null"));
    write(&mut out, "message_start", Object::default().with("message", begin.text()));

    for (index, block) in content.into_iter().enumerate() {
        self::block(&mut out, index, &members(block.get())?)?;
    }

    let told = |name: &str| message.get(name).map_or("null", |raw| raw.get());
    let end = OF_THE_END.iter().fold(Object::default(), |end, name| end.with(name, told(name)));
    write(&mut out, "message_delta", Object::default().with("delta", end.text()).with("usage", usage.text()));
    write(&mut out, "message_stop", Object::default());
    Some(out)
}

/// A block: what grows by deltas starts empty and comes in one delta, all else is there from its start.
fn block(out: &mut Vec<u8>, index: usize, block: &Members<'_>) -> Option<()> {
    let mut start = Object::of(block);
    let mut deltas: Vec<Object> = Vec::new();
    let mut text = None;
    let delta = |kind: &str, name: &str, json: &str| Object::default().with("type", quoted(kind)).with(name, json);
    let kind: String = serde_json::from_str(block.get("type")?.get()).ok()?;
    match kind.as_str() {
        "text" => {
            if let Some(raw) = block.get("citations").filter(|raw| raw.get() != "null") {
                start = start.with("citations", "[]");
                let citations: Vec<&RawValue> = serde_json::from_str(raw.get()).ok()?;
                deltas.extend(citations.into_iter().map(|citation| delta("citations_delta", "citation", citation.get())));
            }
            start = start.with("text", "\"\"");
            text = Some(block.get("text")?);
        }
        "thinking" => {
            start = start.with("thinking", "\"\"");
            deltas.push(delta("thinking_delta", "thinking", block.get("thinking")?.get()));
            if let Some(signature) = block.get("signature") {
                start = start.with("signature", "\"\"");
                deltas.push(delta("signature_delta", "signature", signature.get()));
            }
        }
        // `tool_use`, `server_tool_use`, `mcp_tool_use`.
        _ => {
            if let Some(input) = block.get("input").filter(|input| input.get().starts_with('{')) {
                start = start.with("input", "{}");
                deltas.push(delta("input_json_delta", "partial_json", &quoted(input.get())));
            }
        }
    }
    let here = Object::default().with("index", index.to_string());
    let grow = |out: &mut Vec<u8>, delta: &Object| write(out, "content_block_delta", here.clone().with("delta", delta.text()));
    write(out, "content_block_start", here.clone().with("content_block", start.text()));
    deltas.iter().for_each(|delta| grow(out, delta));
    if let Some(text) = text {
        let event = ["\"\"", "\"x\""].map(|text| {
            let mut event = Vec::new();
            grow(&mut event, &delta("text_delta", "text", text));
            event
        });
        write_pieces(out, text, event);
    }
    write(out, "content_block_stop", here);
    Some(())
}

fn write(out: &mut Vec<u8>, kind: &str, event: Object) {
    sse::write_json(out, Some(kind), &event.with("type", quoted(kind)).text());
}
