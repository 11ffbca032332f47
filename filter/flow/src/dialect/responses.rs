//! OpenAI's `/v1/responses`. Shapes: platform.openai.com/docs/api-reference/responses and the types of openai-python 3.57, as of 2026.

use super::{Answer, Request, model, typed};
use crate::json::Document;
use crate::object::{body_members, optional};
use crate::refusal::Refusal;
use crate::stream::usage::OpenaiUsage;
use serde_json::Value;

/// Members that name an object which the provider keeps, wherever they stand in the input or in a tool.
const STORED: [&str; 5] = ["file_id", "file_ids", "vector_store_ids", "container_id", "skill_id"];

/// Reads what proxium acts on in a request.
///
/// # Errors
/// A 400 that names the member.
pub fn request(body: &Document) -> Result<Request, Refusal> {
    let model = model(body)?;
    if body.member("input").is_some_and(|input| !input.starts_with(['"', '['])) {
        return Err(Refusal::invalid("input", "`input` must be a string or an array of items."));
    }
    if typed::<bool>(body, "background", "a boolean")? == Some(true) {
        let why = "`background` cannot be used: a call is answered, and paid for, before it ends. Leave it out, or use `stream`.";
        return Err(Refusal::invalid("background", why));
    }
    let previous: Option<String> = typed(body, "previous_response_id", "a string")?;
    if previous.as_ref().is_some_and(|id| id.is_empty() || id.len() > 256) {
        return Err(Refusal::invalid("previous_response_id", "`previous_response_id` must be 1 to 256 bytes long."));
    }
    let stream: Option<bool> = typed(body, "stream", "a boolean")?;
    let user: Option<String> = typed(body, "user", "a string")?;
    Ok(Request {
        model,
        choices: 1,
        max_output_tokens: typed(body, "max_output_tokens", "a whole number")?,
        user: user.unwrap_or_default(),
        stream: stream.unwrap_or_default(),
        include_usage: true,
        stored_reference: stored_reference(body),
        previous_response_id: previous.unwrap_or_default(),
        ..Request::default()
    })
}

/// The first member that names an object which the provider keeps for its account, but for a previous response.
fn stored_reference(body: &Document) -> Option<String> {
    if let Some(member) = ["conversation", "prompt"].into_iter().find(|member| body.member(member).is_some()) {
        return Some(member.into());
    }
    ["input", "tools"].into_iter().find_map(|list| {
        // Most requests name none: the tree is only made for those that might.
        let text = body.member(list).filter(|text| text.starts_with('[') && may_refer(text))?;
        let items: Vec<Value> = serde_json::from_str(text).ok()?;
        items.iter().enumerate().find_map(|(at, item)| refers(item, &format!("{list}[{at}]")))
    })
}

/// An escape may hide any word.
fn may_refer(text: &str) -> bool {
    text.contains("\\u") || STORED.iter().chain(&["\"container\"", "_reference\"", "\"id\""]).any(|word| text.contains(word))
}

fn refers(value: &Value, at: &str) -> Option<String> {
    match value {
        Value::Array(list) => list.iter().enumerate().find_map(|(place, value)| refers(value, &format!("{at}[{place}]"))),
        Value::Object(members) => {
            let kind = members.get("type").and_then(Value::as_str);
            let bare = kind.is_none() && members.contains_key("id") && !members.contains_key("role");
            if bare || kind.is_some_and(|kind| kind.ends_with("_reference")) {
                return Some(at.into());
            }
            members.iter().find_map(|(name, value)| match value {
                Value::Null => None,
                _ if STORED.contains(&name.as_str()) => Some(format!("{at}.{name}")),
                Value::String(_) if name == "container" => Some(format!("{at}.{name}")),
                // A function's own parameters may bear any name.
                _ if name == "parameters" => None,
                value => refers(value, &format!("{at}.{name}")),
            })
        }
        _ => None,
    }
}

/// Reads the body of a 2xx.
///
/// # Errors
/// `empty_body`, `not_json`, `error_in_200` (also a response that failed), or `no_output`.
pub fn answer(body: &[u8]) -> Result<Answer, &'static str> {
    if body.trim_ascii().is_empty() {
        return Err("empty_body");
    }
    let [id, error, status, output, usage] = body_members(body, ["id", "error", "status", "output", "usage"]).ok_or("not_json")?;
    let id: Option<String> = optional(id).ok_or("not_json")?;
    let status: Option<String> = optional(status).ok_or("not_json")?;
    let status = status.as_deref();
    if error.is_some() || status == Some("failed") {
        return Err("error_in_200");
    }
    let output = output.filter(|output| output.get().starts_with('[')).ok_or("no_output")?;
    Ok(Answer {
        usage: OpenaiUsage::of(usage),
        complete: status == Some("completed"),
        message_bytes: output.get().len() as u64,
        response_id: id.unwrap_or_default(),
        ..Answer::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxium_wire::Usage;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn read(more: &str) -> Result<Request, Refusal> {
        request(&Document::read(format!(r#"{{"model":"m"{more}}}"#).into_bytes(), &[]).unwrap())
    }

    #[test]
    fn what_names_a_stored_object_is_found_and_named() {
        for (more, at) in [
            (r#","conversation":"conv_1""#, "conversation"),
            (r#","prompt":{"id":"pmpt_1"}"#, "prompt"),
            (r#","input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]"#, "input[0].content[0].file_id"),
            (r#","input":[{"role":"user","content":[{"type":"input_image","file\u005fid":"f"}]}]"#, "input[0].content[0].file_id"),
            (r#","input":[{"type":"item_reference","id":"msg_1"}]"#, "input[0]"),
            (r#","input":["x",{"id":"msg_1"}]"#, "input[1]"),
            (r#","tools":[{"type":"file_search","vector_store_ids":["v"]}]"#, "tools[0].vector_store_ids"),
            (r#","tools":[{"type":"code_interpreter","container":"cntr_1"}]"#, "tools[0].container"),
            (r#","tools":[{"type":"code_interpreter","container":{"type":"auto","file_ids":["f"]}}]"#, "tools[0].container.file_ids"),
        ] {
            assert_eq!(read(more).unwrap().stored_reference.as_deref(), Some(at), "{more}");
        }
        for more in [
            r#","input":"about a file_id","conversation":null"#,
            r#","input":[{"role":"user","content":"file_id"},{"type":"function_call_output","id":"fc_1","call_id":"c","output":"{}"}]"#,
            r#","input":[{"id":"msg_1","type":"message","role":"assistant","content":[]}]"#,
            r#","input":[{"role":"user","content":[{"type":"input_file","file_id":null,"file_data":"x"}]}]"#,
            r#","tools":[{"type":"function","name":"f","parameters":{"properties":{"file_id":{"type":"string"}}}}]"#,
            r#","tools":[{"type":"code_interpreter","container":{"type":"auto"}}]"#,
        ] {
            assert_eq!(read(more).unwrap().stored_reference, None, "{more}");
        }
    }

    #[test]
    fn wrong_types_are_refused_by_name() {
        for (more, name) in [
            (r#","input":5"#, "input"),
            (r#","background":true"#, "background"),
            (r#","stream":"yes""#, "stream"),
            (r#","max_output_tokens":-1"#, "max_output_tokens"),
            (r#","previous_response_id":"""#, "previous_response_id"),
        ] {
            match read(more) {
                Err(Refusal::InvalidRequest { param, .. }) => assert_eq!(param.as_deref(), Some(name)),
                other => panic!("{more} gave {other:?}"),
            }
        }
    }

    #[test]
    fn an_answer_tells_its_usage_and_its_id() {
        let body = br#"{"id":"resp_1","status":"completed","error":null,"output":[],"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":1}}}"#;
        let read = answer(body).unwrap();
        assert_eq!(read.usage, Some(Usage { input: 5, cached_input: 4, output: 3, reasoning: 1, ..Usage::default() }));
        assert_eq!((read.response_id.as_str(), read.complete), ("resp_1", true));
        for (body, word) in [
            ("", "empty_body"),
            ("<html>", "not_json"),
            (r#"{"status":"failed","output":[]}"#, "error_in_200"),
            (r#"{"error":{"message":"x"},"output":[]}"#, "error_in_200"),
            (r#"{"choices":[]}"#, "no_output"),
        ] {
            assert_eq!(answer(body.as_bytes()), Err(word));
        }
    }
}
