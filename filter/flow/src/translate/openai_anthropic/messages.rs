//! The conversation.

use super::request::text_block;
use crate::refusal::Refusal;
use crate::translate::members::{Dropped, Members, cannot_carry, object_text, string, wrong};
use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Text, or blocks where there is more than one text.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Content<'a> {
    Text(Cow<'a, str>),
    Blocks(Vec<Block<'a>>),
}

impl<'a> Content<'a> {
    /// `None` for no block.
    pub(super) fn of(mut blocks: Vec<Block<'a>>) -> Option<Self> {
        match (blocks.pop(), blocks.is_empty()) {
            (None, _) => None,
            (Some(Block::Text { text }), true) => Some(Self::Text(text)),
            (Some(last), _) => {
                blocks.push(last);
                Some(Self::Blocks(blocks))
            }
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block<'a> {
    Text {
        text: Cow<'a, str>,
    },
    Image {
        source: Source<'a>,
    },
    Document {
        source: Source<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<Cow<'a, str>>,
    },
    ToolUse {
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        input: Box<RawValue>,
    },
    ToolResult {
        tool_use_id: Cow<'a, str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<Content<'a>>,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Source<'a> {
    Url { url: Cow<'a, str> },
    Base64 { media_type: String, data: Cow<'a, str> },
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    User,
    Assistant,
}

#[derive(Serialize)]
pub(super) struct Turn<'a> {
    role: Role,
    content: Content<'a>,
}

pub(super) struct Conversation<'a> {
    pub(super) system: Vec<Block<'a>>,
    pub(super) turns: Vec<Turn<'a>>,
}

impl Conversation<'_> {
    /// The model is to go on from what its tools gave.
    pub(super) fn ends_with_tool_result(&self) -> bool {
        match self.turns.last().map(|turn| &turn.content) {
            Some(Content::Blocks(blocks)) => blocks.iter().any(|block| matches!(block, Block::ToolResult { .. })),
            _ => false,
        }
    }
}

/// Which parts a message may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    Text,
    TextAndImages,
    Any,
}

pub(super) fn read<'a>(messages: &[&'a RawValue], dropped: &mut Dropped) -> Result<Conversation<'a>, Refusal> {
    let mut system = Vec::new();
    let mut turns: Vec<(Role, Vec<Block<'a>>)> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let mut message = Members::read(message.get(), format!("messages[{at}]"))?;
        let role = message.required_text("role")?;
        let (role, blocks) = match role.as_ref() {
            "system" | "developer" => {
                system.extend(content(&mut message, Parts::Text, dropped)?);
                message.drop_rest("messages.", dropped);
                continue;
            }
            "user" => (Role::User, content(&mut message, Parts::Any, dropped)?),
            "assistant" => (Role::Assistant, assistant(&mut message, dropped)?),
            "tool" => (Role::User, vec![tool_result(&mut message, dropped)?]),
            other => return Err(cannot_carry(&message.path("role"), &format!("the role `{other}`"))),
        };
        message.drop_rest("messages.", dropped);
        match turns.last_mut() {
            Some((last, joined)) if *last == role => joined.extend(blocks),
            _ if blocks.is_empty() => {}
            _ => turns.push((role, blocks)),
        }
    }
    let turn = |(role, blocks): (Role, Vec<Block<'a>>)| {
        // Anthropic wants the results first; the order is otherwise kept.
        let (mut blocks, others): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| matches!(block, Block::ToolResult { .. }));
        blocks.extend(others);
        Content::of(blocks).map(|content| Turn { role, content })
    };
    let turns: Vec<Turn<'a>> = turns.into_iter().filter_map(turn).collect();
    if turns.is_empty() {
        return Err(Refusal::invalid("messages", "`messages` has no text, image, file or tool result of a user. Add one."));
    }
    Ok(Conversation { system, turns })
}

/// The blocks of `content`: a string, or parts. Empty texts are left out.
fn content<'a>(message: &mut Members<'a>, allowed: Parts, dropped: &mut Dropped) -> Result<Vec<Block<'a>>, Refusal> {
    let path = message.path("content");
    let Some(value) = message.take("content") else { return Ok(Vec::new()) };
    if let Some(text) = string(value) {
        return Ok(text_block(text).into_iter().collect());
    }
    let parts: Vec<&'a RawValue> = serde_json::from_str(value.get()).map_err(|_| wrong(&path, "a string or an array of parts"))?;
    let mut blocks = Vec::with_capacity(parts.len());
    for (at, part) in parts.into_iter().enumerate() {
        blocks.extend(block(Members::read(part.get(), format!("{path}[{at}]"))?, allowed, dropped)?);
    }
    Ok(blocks)
}

fn block<'a>(mut part: Members<'a>, allowed: Parts, dropped: &mut Dropped) -> Result<Option<Block<'a>>, Refusal> {
    let kind = part.required_text("type")?;
    let block = match (kind.as_ref(), allowed) {
        ("text", _) => text_block(part.required_text("text")?),
        ("refusal", Parts::Text) => text_block(part.required_text("refusal")?),
        ("image_url", Parts::TextAndImages | Parts::Any) => Some(Block::Image { source: image(&mut part, dropped)? }),
        ("file", Parts::Any) => Some(file(&mut part)?),
        (other, _) => return Err(cannot_carry(&part.path("type"), &format!("a part of type `{other}` here"))),
    };
    part.drop_rest("", dropped);
    Ok(block)
}

fn image<'a>(part: &mut Members<'a>, dropped: &mut Dropped) -> Result<Source<'a>, Refusal> {
    let path = part.path("image_url");
    let mut image = part.object("image_url")?.ok_or_else(|| wrong(&path, "an object"))?;
    let url = image.required_text("url")?;
    if image.text("detail")?.is_some_and(|detail| detail != "auto") {
        dropped.add("image_url.detail");
    }
    image.drop_rest("image_url.", dropped);
    let path = format!("{path}.url");
    if starts_with_ignoring_case(&url, "http://") || starts_with_ignoring_case(&url, "https://") {
        return Ok(Source::Url { url });
    }
    let (media_type, data) = data_url(url).ok_or_else(|| wrong(&path, "an http(s) address or `data:<media type>;base64,<data>`"))?;
    Ok(Source::Base64 { media_type, data })
}

fn file<'a>(part: &mut Members<'a>) -> Result<Block<'a>, Refusal> {
    let path = part.path("file");
    let mut file = part.object("file")?.ok_or_else(|| wrong(&path, "an object"))?;
    if file.take("file_id").is_some() {
        return Err(cannot_carry(&format!("{path}.file_id"), "a file kept at another provider (`file_data` can be)"));
    }
    let data = file.required_text("file_data")?;
    match data_url(data) {
        Some((media_type, data)) if media_type == "application/pdf" => {
            Ok(Block::Document { source: Source::Base64 { media_type, data }, title: file.text("filename")? })
        }
        Some((media_type, _)) => Err(cannot_carry(&format!("{path}.file_data"), &format!("a file of type `{media_type}` (a PDF can be)"))),
        None => Err(wrong(&format!("{path}.file_data"), "`data:<media type>;base64,<data>`")),
    }
}

/// The media type, lower-case and without parameters, and the base64 data.
fn data_url(url: Cow<'_, str>) -> Option<(String, Cow<'_, str>)> {
    if !starts_with_ignoring_case(&url, "data:") {
        return None;
    }
    let comma = url.find(',')?;
    let head = url.get("data:".len()..comma)?;
    let (media_type, encoding) = head.rsplit_once(';')?;
    if !encoding.eq_ignore_ascii_case("base64") {
        return None;
    }
    let media_type = media_type.split(';').next().unwrap_or_default().to_ascii_lowercase();
    let data = match url {
        Cow::Borrowed(url) => Cow::Borrowed(url.get(comma + 1..)?),
        Cow::Owned(url) => Cow::Owned(url.get(comma + 1..)?.to_owned()),
    };
    (!media_type.is_empty()).then_some((media_type, data))
}

fn starts_with_ignoring_case(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

fn assistant<'a>(message: &mut Members<'a>, dropped: &mut Dropped) -> Result<Vec<Block<'a>>, Refusal> {
    for (name, what) in [("function_call", "a deprecated function call (`tool_calls` can be)"), ("audio", "audio")] {
        if message.take(name).is_some() {
            return Err(cannot_carry(&message.path(name), what));
        }
    }
    let mut blocks = content(message, Parts::Text, dropped)?;
    blocks.extend(message.text("refusal")?.and_then(text_block));
    let path = message.path("tool_calls");
    for (at, call) in message.list("tool_calls")?.into_iter().enumerate() {
        blocks.push(tool_use(Members::read(call.get(), format!("{path}[{at}]"))?)?);
    }
    Ok(blocks)
}

fn tool_use(mut call: Members<'_>) -> Result<Block<'_>, Refusal> {
    if let Some(kind) = call.text("type")?.filter(|kind| kind != "function") {
        return Err(cannot_carry(&call.path("type"), &format!("a tool call of type `{kind}`")));
    }
    let id = call.required_text("id")?;
    let path = call.path("function");
    let mut function = call.object("function")?.ok_or_else(|| wrong(&path, "an object"))?;
    let name = function.required_text("name")?;
    let arguments = function.text("arguments")?.unwrap_or_default();
    let input = input(&arguments).ok_or_else(|| {
        Refusal::invalid(
            &format!("{path}.arguments"),
            format!("`{path}.arguments` is not a JSON object in a string. Send what the model gave."),
        )
    })?;
    Ok(Block::ToolUse { id: tool_id(id), name, input })
}

/// Arguments as an object: what a model without arguments gives is an empty one.
fn input(arguments: &str) -> Option<Box<RawValue>> {
    object_text(if matches!(arguments.trim(), "" | "null") { "{}" } else { arguments })
}

fn tool_result<'a>(message: &mut Members<'a>, dropped: &mut Dropped) -> Result<Block<'a>, Refusal> {
    let tool_use_id = tool_id(message.required_text("tool_call_id")?);
    Ok(Block::ToolResult { tool_use_id, content: Content::of(content(message, Parts::TextAndImages, dropped)?) })
}

/// Anthropic takes letters, digits, `_` and `-`; other providers' ids have more, and the call and its result change alike.
fn tool_id(id: Cow<'_, str>) -> Cow<'_, str> {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if id.chars().all(is_safe) { id } else { Cow::Owned(id.chars().map(|c| if is_safe(c) { c } else { '_' }).collect()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_data_url_is_taken_apart_whatever_its_case_and_parameters() {
        let read = |url: &'static str| data_url(Cow::Borrowed(url)).map(|(media_type, data)| (media_type, data.into_owned()));
        let png = || Some(("image/png".to_owned(), "AA==".to_owned()));
        assert_eq!(read("data:image/png;base64,AA=="), png());
        assert_eq!(read("DATA:image/PNG;charset=x;BASE64,AA=="), png());
        for broken in ["data:image/png,AA", "data:;base64,AA", "data:image/png;base64", "https://x/y.png", "dat", "é"] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }

    #[test]
    fn arguments_are_an_object_or_nothing() {
        let read = |arguments: &str| input(arguments).map(|input| input.get().to_owned());
        assert_eq!(read(r#"{"a":1.0}"#).as_deref(), Some(r#"{"a":1.0}"#));
        assert_eq!(read("").as_deref(), Some("{}"));
        assert_eq!(read("  ").as_deref(), Some("{}"));
        assert_eq!(read("null").as_deref(), Some("{}"));
        for broken in ["{", "[1]", "5", r#""x""#, r#"{"a":1}x"#] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }
}
