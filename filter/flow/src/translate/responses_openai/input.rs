//! The items of the input as a conversation.

use crate::refusal::Refusal;
use crate::translate::members::{Dropped, Members, cannot_carry, string, wrong};
use crate::value::json;
use serde_json::Value;
use serde_json::value::RawValue;

/// The messages of `instructions` and `input`.
pub(super) fn messages(members: &mut Members<'_>, dropped: &mut Dropped) -> Result<Vec<Value>, Refusal> {
    let mut out = Vec::new();
    if let Some(instructions) = members.text("instructions")?.filter(|text| !text.is_empty()) {
        out.push(json!({"role": "system", "content": instructions}));
    }
    let input = members.take("input").ok_or_else(|| Refusal::invalid("input", "`input` is required."))?;
    if let Some(text) = string(input) {
        out.push(json!({"role": "user", "content": text}));
        return Ok(out);
    }
    let items: Vec<&RawValue> = serde_json::from_str(input.get()).map_err(|_| wrong("input", "a string or an array of items"))?;
    for (at, item) in items.into_iter().enumerate() {
        let mut item = Members::read(item.get(), format!("input[{at}]"))?;
        read(&mut item, &mut out, dropped)?;
        // Ids and states of earlier output say nothing to a model.
        for spent in ["id", "status", "phase"] {
            item.take(spent);
        }
        item.drop_rest("input.", dropped);
    }
    Ok(out)
}

fn read(item: &mut Members<'_>, out: &mut Vec<Value>, dropped: &mut Dropped) -> Result<(), Refusal> {
    let kind = item.text("type")?;
    match kind.as_deref() {
        None | Some("message") => {
            let role = item.required_text("role")?;
            let role = match role.as_ref() {
                "user" | "assistant" => role.into_owned(),
                // Servers that only speak chat know no developer.
                "system" | "developer" => "system".to_owned(),
                other => return Err(cannot_carry(&item.path("role"), &format!("the role `{other}`"))),
            };
            out.push(json!({"role": role, "content": content(item, "content", dropped)?}));
        }
        Some("function_call") => {
            let (id, name) = (item.required_text("call_id")?, item.required_text("name")?);
            let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": item.required_text("arguments")?}});
            // Calls of one turn belong to one message.
            match out.last_mut().filter(|last| last.get("role").and_then(Value::as_str) == Some("assistant")).and_then(Value::as_object_mut)
            {
                Some(last) => {
                    if let Some(calls) = last.entry("tool_calls").or_insert_with(|| json!([])).as_array_mut() {
                        calls.push(call);
                    }
                }
                None => out.push(json!({"role": "assistant", "content": null, "tool_calls": [call]})),
            }
        }
        Some("function_call_output") => {
            let id = item.required_text("call_id")?;
            let content = content(item, "output", dropped)?;
            let others = content.as_array().is_some_and(|parts| parts.iter().any(|part| part.get("text").is_none()));
            if others {
                return Err(cannot_carry(&item.path("output"), "a tool's result that is more than text"));
            }
            out.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
        }
        Some("reasoning") => {
            dropped.add("input.reasoning");
            for member in ["summary", "content", "encrypted_content"] {
                item.take(member);
            }
        }
        Some(other) => return Err(cannot_carry(&item.path("type"), &format!("an item of type `{other}`"))),
    }
    Ok(())
}

/// Text, or parts where it is more than one text.
fn content(around: &mut Members<'_>, name: &str, dropped: &mut Dropped) -> Result<Value, Refusal> {
    let path = around.path(name);
    let Some(value) = around.take(name) else { return Ok(json!("")) };
    if let Some(text) = string(value) {
        return Ok(json!(text));
    }
    let list: Vec<&RawValue> = serde_json::from_str(value.get()).map_err(|_| wrong(&path, "a string or an array of parts"))?;
    let mut parts = Vec::with_capacity(list.len());
    for (at, part) in list.into_iter().enumerate() {
        parts.push(read_part(Members::read(part.get(), format!("{path}[{at}]"))?, dropped)?);
    }
    match parts.as_slice() {
        [only] if only.get("text").is_some() => Ok(only.get("text").cloned().unwrap_or_default()),
        _ => Ok(Value::Array(parts)),
    }
}

fn read_part(mut part: Members<'_>, dropped: &mut Dropped) -> Result<Value, Refusal> {
    let kind = part.required_text("type")?;
    let read = match kind.as_ref() {
        "input_text" | "output_text" | "text" => {
            for spent in ["annotations", "logprobs"] {
                part.take(spent);
            }
            json!({"type": "text", "text": part.required_text("text")?})
        }
        "refusal" => json!({"type": "text", "text": part.required_text("refusal")?}),
        "input_image" => {
            let path = part.path("file_id");
            if part.take("file_id").is_some() {
                return Err(cannot_carry(&path, "a file that another provider keeps"));
            }
            let mut image = json!({"url": part.required_text("image_url")?});
            if let (Some(image), Some(detail)) = (image.as_object_mut(), part.text("detail")?) {
                image.insert("detail".into(), json!(detail));
            }
            json!({"type": "image_url", "image_url": image})
        }
        "input_file" => {
            let name = part.text("filename")?.unwrap_or("file".into());
            for kept in ["file_id", "file_url"] {
                let path = part.path(kept);
                if part.take(kept).is_some() {
                    return Err(cannot_carry(&path, "a file by its id or address"));
                }
            }
            json!({"type": "file", "file": {"filename": name, "file_data": part.required_text("file_data")?}})
        }
        other => return Err(cannot_carry(&part.path("type"), &format!("a part of type `{other}`"))),
    };
    part.drop_rest("input.", dropped);
    Ok(read)
}
