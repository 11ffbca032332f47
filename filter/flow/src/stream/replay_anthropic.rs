//! A message to Anthropic's events: each block started, filled and stopped, then how the message ended and what it cost.

use super::node::{Members, members};
use super::replay::{Json, write_pieces};
use crate::json::map;
use crate::sse;
use crate::value::json;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

type Object<'a> = BTreeMap<String, Json<'a>>;

/// Members of the message that only its end tells.
const OF_THE_END: [&str; 2] = ["stop_reason", "stop_sequence"];

pub(super) fn replay(unary: &str) -> Option<Vec<u8>> {
    let message = members(unary)?;
    let content: Vec<&RawValue> = serde_json::from_str(message.get("content")?.get()).ok()?;
    let usage = message.get("usage").and_then(|raw| members(raw.get())).unwrap_or_default();
    let mut out = Vec::with_capacity(unary.len() * 2);

    let mut begin = kept(&message);
    begin.insert("content".into(), Json::List(Vec::new()));
    let mut begin_usage = kept(&usage);
    begin_usage.insert("output_tokens".into(), Json::Value(0.into()));
    begin.insert("usage".into(), Json::Object(begin_usage));
    begin.extend(OF_THE_END.map(|name| (name.to_owned(), Json::Value(Value::Null))));
    write(&mut out, "message_start", [("message".to_owned(), Json::Object(begin))]);

    for (index, block) in content.into_iter().enumerate() {
        self::block(&mut out, index, &members(block.get())?)?;
    }

    let end = OF_THE_END.map(|name| (name.to_owned(), message.get(name).map_or(Json::Value(Value::Null), |raw| Json::Raw(raw))));
    let usage = Json::Object(kept(&usage));
    write(&mut out, "message_delta", [("delta".to_owned(), Json::Object(map(end))), ("usage".to_owned(), usage)]);
    write(&mut out, "message_stop", []);
    Some(out)
}

fn kept<'a>(members: &Members<'a>) -> Object<'a> {
    map(members.iter().map(|(name, raw)| (name.clone(), Json::Raw(raw))))
}

/// A block: what grows by deltas starts empty and comes in one delta, all else is there from its start.
fn block<'a>(out: &mut Vec<u8>, index: usize, block: &Members<'a>) -> Option<()> {
    let mut start = kept(block);
    let mut deltas: Vec<Object<'a>> = Vec::new();
    let mut text = None;
    let mut delta = |kind: &str, name: &str, value: Json<'a>| {
        deltas.push(map([("type".to_owned(), Json::Value(kind.into())), (name.to_owned(), value)]));
    };
    let kind: String = serde_json::from_str(block.get("type")?.get()).ok()?;
    match kind.as_str() {
        "text" => {
            let citations: Vec<&RawValue> = match block.get("citations") {
                Some(raw) if raw.get() != "null" => {
                    start.insert("citations".into(), Json::List(Vec::new()));
                    serde_json::from_str(raw.get()).ok()?
                }
                _ => Vec::new(),
            };
            start.insert("text".into(), Json::Value("".into()));
            for citation in citations {
                delta("citations_delta", "citation", Json::Raw(citation));
            }
            text = Some(block.get("text")?);
        }
        "thinking" => {
            start.insert("thinking".into(), Json::Value("".into()));
            delta("thinking_delta", "thinking", Json::Raw(block.get("thinking")?));
            if let Some(signature) = block.get("signature") {
                start.insert("signature".into(), Json::Value("".into()));
                delta("signature_delta", "signature", Json::Raw(signature));
            }
        }
        // `tool_use`, `server_tool_use`, `mcp_tool_use`.
        _ => {
            if let Some(input) = block.get("input").filter(|input| input.get().starts_with('{')) {
                start.insert("input".into(), Json::Value(json!({})));
                delta("input_json_delta", "partial_json", Json::Value(input.get().into()));
            }
        }
    }
    let at = || ("index".to_owned(), Json::Value(index.into()));
    write(out, "content_block_start", [at(), ("content_block".to_owned(), Json::Object(start))]);
    for delta in deltas {
        write(out, "content_block_delta", [at(), ("delta".to_owned(), Json::Object(delta))]);
    }
    if let Some(text) = text {
        let event = ["", "x"].map(|text| {
            let delta = json!({"type": "text_delta", "text": text});
            let mut event = Vec::new();
            write(&mut event, "content_block_delta", [at(), ("delta".to_owned(), Json::Value(delta))]);
            event
        });
        write_pieces(out, text, event);
    }
    write(out, "content_block_stop", [at()]);
    Some(())
}

fn write<'a, const N: usize>(out: &mut Vec<u8>, kind: &str, members: [(String, Json<'a>); N]) {
    let mut event = Object::from(members);
    event.insert("type".into(), Json::Value(kind.into()));
    sse::write(out, Some(kind), &event);
}
