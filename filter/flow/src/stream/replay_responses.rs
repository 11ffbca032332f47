//! A whole response as the events it would have come in.

use super::responses::Events;
use crate::value::json;
use serde_json::Value;

/// The whole stream. `None`: no response.
pub(super) fn replay(unary: &str) -> Option<Vec<u8>> {
    let whole: Value = serde_json::from_str(unary).ok()?;
    let output = whole.get("output")?.as_array()?;
    let mut begun = whole.as_object()?.clone();
    for (name, value) in [("status", json!("in_progress")), ("output", json!([])), ("usage", Value::Null)] {
        begun.insert(name.into(), value);
    }
    let (mut out, mut events) = (Vec::new(), Events::default());
    events.begin(&mut out, &Value::Object(begun));
    for (at, item) in output.iter().enumerate() {
        replay_item(&mut events, &mut out, at, item);
    }
    events.end(&mut out, &whole);
    Some(out)
}

fn replay_item(events: &mut Events, out: &mut Vec<u8>, at: usize, item: &Value) {
    let with = |base: &Value, more: &[(&str, Value)]| {
        let mut members = base.as_object().cloned().unwrap_or_default();
        members.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        Value::Object(members)
    };
    let list = |name: &str| item.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let here = json!({"item_id": item.get("id"), "output_index": at});
    let mut add = |added: &[(&str, Value)]| {
        let added = with(item, added);
        events.tell(out, "response.output_item.added", json!({"output_index": at, "item": added}));
    };
    let in_progress = ("status", json!("in_progress"));
    match item.get("type").and_then(Value::as_str) {
        Some("message") => {
            add(&[in_progress, ("content", json!([]))]);
            for (place, part) in list("content").iter().enumerate() {
                let here = with(&here, &[("content_index", json!(place))]);
                let (member, kind) = match part.get("type").and_then(Value::as_str) {
                    Some("refusal") => ("refusal", "response.refusal"),
                    _ => ("text", "response.output_text"),
                };
                let text = part.get(member).cloned().unwrap_or_default();
                let logprobs = (member == "text").then(|| ("logprobs", part.get("logprobs").cloned().unwrap_or_else(|| json!([]))));
                let logprobs = logprobs.as_slice();
                let empty = with(part, &[(member, json!(""))]);
                events.tell(out, "response.content_part.added", with(&here, &[("part", empty)]));
                let delta = with(&here, &[("delta", text.clone())]);
                events.tell(out, &format!("{kind}.delta"), with(&delta, logprobs));
                let done = with(&here, &[(member, text)]);
                events.tell(out, &format!("{kind}.done"), with(&done, logprobs));
                events.tell(out, "response.content_part.done", with(&here, &[("part", part.clone())]));
            }
        }
        Some("function_call") => {
            add(&[in_progress, ("arguments", json!(""))]);
            let member = |name: &str| item.get(name).cloned().unwrap_or_default();
            let delta = [("delta", member("arguments"))];
            events.tell(out, "response.function_call_arguments.delta", with(&here, &delta));
            let done = [("arguments", member("arguments")), ("name", member("name"))];
            events.tell(out, "response.function_call_arguments.done", with(&here, &done));
        }
        Some("reasoning") => {
            add(&[("summary", json!([]))]);
            for (place, part) in list("summary").iter().enumerate() {
                let here = with(&here, &[("summary_index", json!(place))]);
                let text = part.get("text").cloned().unwrap_or_default();
                let empty = with(part, &[("text", json!(""))]);
                events.tell(out, "response.reasoning_summary_part.added", with(&here, &[("part", empty)]));
                events.tell(out, "response.reasoning_summary_text.delta", with(&here, &[("delta", text.clone())]));
                events.tell(out, "response.reasoning_summary_text.done", with(&here, &[("text", text)]));
                events.tell(out, "response.reasoning_summary_part.done", with(&here, &[("part", part.clone())]));
            }
        }
        _ => add(&[]),
    }
    events.tell(out, "response.output_item.done", json!({"output_index": at, "item": item}));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::Reader;
    use crate::stream::{First, Meter};
    use proxium_wire::Dialect;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn kinds(unary: &Value) -> Vec<String> {
        let stream = replay(&unary.to_string()).unwrap();
        let (mut reader, mut meter) = (Reader::new(), Meter::new(Dialect::Openai));
        let events = reader.push(&stream);
        for (number, event) in events.iter().enumerate() {
            meter.event(event);
            let data: Value = serde_json::from_str(&event.data).unwrap();
            assert_eq!((data["type"].as_str(), data["sequence_number"].as_u64()), (Some(event.name.as_str()), Some(number as u64)));
        }
        assert!(meter.ended() && meter.first() == First::Good && meter.response_id() == "resp_1");
        let last: Value = serde_json::from_str(&events.last().unwrap().data).unwrap();
        assert_eq!(last["response"], *unary);
        events.into_iter().map(|event| event.name.trim_start_matches("response.").to_owned()).collect()
    }

    #[test]
    fn each_item_is_added_filled_and_done_and_the_last_event_is_the_whole() {
        let text = json!({"id": "msg_1", "type": "message", "content": [{"type": "output_text", "text": "hi", "annotations": []}]});
        let call = json!({"id": "fc_1", "type": "function_call", "name": "f", "arguments": "{}"});
        let other = json!({"id": "ws_1", "type": "web_search_call"});
        assert_eq!(
            kinds(&json!({"id": "resp_1", "status": "completed", "output": [text, call, other], "usage": {"input_tokens": 1}})),
            [
                "created",
                "in_progress",
                "output_item.added",
                "content_part.added",
                "output_text.delta",
                "output_text.done",
                "content_part.done",
                "output_item.done",
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
                "output_item.added",
                "output_item.done",
                "completed"
            ]
        );
        assert_eq!(kinds(&json!({"id": "resp_1", "status": "incomplete", "output": []})), ["created", "in_progress", "incomplete"]);
    }

    #[test]
    fn what_is_no_response_is_not_replayed() {
        for body in ["{", "[]", r#"{"output":5}"#, r#"{"choices":[]}"#] {
            assert_eq!(replay(body), None);
        }
    }
}
