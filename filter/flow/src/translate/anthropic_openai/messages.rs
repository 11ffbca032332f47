//! The conversation.

use crate::refusal::Refusal;
use crate::translate::members::{Dropped, Members, cannot_carry, string, wrong};
use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub(super) enum Message<'a> {
    System {
        content: Content<'a>,
    },
    User {
        content: Content<'a>,
    },
    Assistant {
        content: Option<Content<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall<'a>>,
    },
    Tool {
        tool_call_id: Cow<'a, str>,
        content: Content<'a>,
    },
}

/// Text, or parts where there is more than one text.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Content<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Part<'a>>),
}

impl<'a> Content<'a> {
    /// `None` for no part.
    fn of(mut parts: Vec<Part<'a>>) -> Option<Self> {
        match (parts.pop(), parts.is_empty()) {
            (None, _) => None,
            (Some(Part::Text { text }), true) => Some(Self::Text(text)),
            (Some(last), _) => {
                parts.push(last);
                Some(Self::Parts(parts))
            }
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Part<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: ImageUrl<'a> },
    File { file: File<'a> },
}

#[derive(Serialize)]
pub(super) struct ImageUrl<'a> {
    url: Cow<'a, str>,
}

#[derive(Serialize)]
pub(super) struct File<'a> {
    filename: Cow<'a, str>,
    file_data: String,
}

#[derive(Serialize)]
pub(super) struct ToolCall<'a> {
    id: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: Cow<'a, str>,
    arguments: &'a str,
}

/// The `system` member as the first message.
pub(super) fn system<'a>(members: &mut Members<'a>, dropped: &mut Dropped) -> Result<Vec<Message<'a>>, Refusal> {
    Ok(Content::of(texts(members, "system", dropped)?).map(|content| Message::System { content }).into_iter().collect())
}

pub(super) fn read<'a>(messages: &[&'a RawValue], out: &mut Vec<Message<'a>>, dropped: &mut Dropped) -> Result<(), Refusal> {
    let before = out.len();
    for (at, message) in messages.iter().enumerate() {
        let mut message = Members::read(message.get(), format!("messages[{at}]"))?;
        match message.required_text("role")?.as_ref() {
            "user" => user(&mut message, out, dropped)?,
            "assistant" => assistant(&mut message, out, dropped)?,
            "system" => {
                out.extend(Content::of(texts(&mut message, "content", dropped)?).map(|content| Message::System { content }));
            }
            other => return Err(cannot_carry(&message.path("role"), &format!("the role `{other}`"))),
        }
        message.drop_rest("messages.", dropped);
    }
    if out.len() == before {
        return Err(Refusal::invalid("messages", "`messages` has no text, image, document or tool result. Add one."));
    }
    Ok(())
}

/// A string as one text, or blocks as they are.
enum Blocks<'a> {
    Text(Cow<'a, str>),
    List(Vec<Members<'a>>),
}

fn blocks<'a>(around: &mut Members<'a>, name: &str) -> Result<Blocks<'a>, Refusal> {
    let path = around.path(name);
    let Some(value) = around.take(name) else { return Ok(Blocks::List(Vec::new())) };
    if let Some(text) = string(value) {
        return Ok(Blocks::Text(text));
    }
    let list: Vec<&'a RawValue> = serde_json::from_str(value.get()).map_err(|_| wrong(&path, "a string or an array of blocks"))?;
    let list = list.into_iter().enumerate().map(|(at, block)| Members::read(block.get(), format!("{path}[{at}]")));
    Ok(Blocks::List(list.collect::<Result<_, _>>()?))
}

/// Text blocks alone; empty ones are left out.
fn texts<'a>(around: &mut Members<'a>, name: &str, dropped: &mut Dropped) -> Result<Vec<Part<'a>>, Refusal> {
    match blocks(around, name)? {
        Blocks::Text(text) => Ok(text_part(text).into_iter().collect()),
        Blocks::List(list) => {
            let mut parts = Vec::with_capacity(list.len());
            for mut block in list {
                let kind = block.required_text("type")?;
                if kind != "text" {
                    return Err(cannot_carry(&block.path("type"), &format!("a block of type `{kind}` here")));
                }
                parts.extend(text_part(block.required_text("text")?));
                block.drop_rest("", dropped);
            }
            Ok(parts)
        }
    }
}

fn text_part(text: Cow<'_, str>) -> Option<Part<'_>> {
    (!text.is_empty()).then_some(Part::Text { text })
}

fn user<'a>(message: &mut Members<'a>, out: &mut Vec<Message<'a>>, dropped: &mut Dropped) -> Result<(), Refusal> {
    let list = match blocks(message, "content")? {
        Blocks::Text(text) => {
            out.extend(Content::of(text_part(text).into_iter().collect()).map(|content| Message::User { content }));
            return Ok(());
        }
        Blocks::List(list) => list,
    };
    // What the tools gave comes first: OpenAI wants it straight after the calls.
    let mut parts = Vec::new();
    let mut from_tools = Vec::new();
    for mut block in list {
        let kind = block.required_text("type")?;
        if kind == "tool_result" {
            out.push(tool_result(&mut block, &mut from_tools, dropped)?);
        } else {
            parts.extend(part(&kind, &mut block, dropped)?);
        }
        block.drop_rest("", dropped);
    }
    from_tools.append(&mut parts);
    out.extend(Content::of(from_tools).map(|content| Message::User { content }));
    Ok(())
}

fn part<'a>(kind: &str, block: &mut Members<'a>, dropped: &mut Dropped) -> Result<Option<Part<'a>>, Refusal> {
    match kind {
        "text" => Ok(text_part(block.required_text("text")?)),
        "image" => image(block).map(Some),
        "document" => document(block, dropped),
        other => Err(cannot_carry(&block.path("type"), &format!("a block of type `{other}` here"))),
    }
}

fn source<'a>(block: &mut Members<'a>) -> Result<Members<'a>, Refusal> {
    let path = block.path("source");
    block.object("source")?.ok_or_else(|| wrong(&path, "an object"))
}

fn image<'a>(block: &mut Members<'a>) -> Result<Part<'a>, Refusal> {
    let mut source = source(block)?;
    let url = match source.required_text("type")?.as_ref() {
        "url" => source.required_text("url")?,
        "base64" => Cow::Owned(data_url(&source.required_text("media_type")?, &source.required_text("data")?)),
        other => return Err(cannot_carry(&source.path("type"), &format!("an image by `{other}` (`url` and `base64` can be)"))),
    };
    Ok(Part::ImageUrl { image_url: ImageUrl { url } })
}

fn data_url(media_type: &str, data: &str) -> String {
    ["data:", media_type, ";base64,", data].concat()
}

/// A PDF as a file, a plain text as text with its title and context before it.
fn document<'a>(block: &mut Members<'a>, dropped: &mut Dropped) -> Result<Option<Part<'a>>, Refusal> {
    let mut source = source(block)?;
    let title = block.text("title")?.filter(|title| !title.is_empty());
    let kind = source.required_text("type")?;
    match kind.as_ref() {
        "base64" => {
            let media_type = source.required_text("media_type")?;
            if block.take("context").is_some() {
                dropped.add("document.context");
            }
            let filename = title.unwrap_or(Cow::Borrowed("document.pdf"));
            Ok(Some(Part::File { file: File { filename, file_data: data_url(&media_type, &source.required_text("data")?) } }))
        }
        "text" => {
            let data = source.required_text("data")?;
            let head: Vec<Cow<'a, str>> = title.into_iter().chain(block.text("context")?).collect();
            if head.is_empty() { Ok(text_part(data)) } else { Ok(text_part(Cow::Owned(format!("{}\n\n{data}", head.join("\n"))))) }
        }
        other => Err(cannot_carry(&source.path("type"), &format!("a document by `{other}` (`base64` and `text` can be)"))),
    }
}

/// The `tool` message of a result. What such a message cannot hold goes to `after`, which the user's next message begins with.
fn tool_result<'a>(block: &mut Members<'a>, after: &mut Vec<Part<'a>>, dropped: &mut Dropped) -> Result<Message<'a>, Refusal> {
    let tool_call_id = block.required_text("tool_use_id")?;
    let is_error = block.typed::<bool>("is_error", "a boolean")?.unwrap_or_default();
    let mut texts = Vec::new();
    let mut others = Vec::new();
    match blocks(block, "content")? {
        Blocks::Text(text) => texts.extend(text_part(text)),
        Blocks::List(list) => {
            for mut inner in list {
                let kind = inner.required_text("type")?;
                match part(&kind, &mut inner, dropped)? {
                    Some(text @ Part::Text { .. }) => texts.push(text),
                    other => others.extend(other),
                }
                inner.drop_rest("", dropped);
            }
        }
    }
    if is_error {
        match texts.first_mut() {
            Some(Part::Text { text }) => *text = Cow::Owned(format!("Error: {text}")),
            _ => texts.push(Part::Text { text: Cow::Borrowed("Error: the tool failed.") }),
        }
    }
    if !others.is_empty() {
        after.push(Part::Text { text: Cow::Owned(format!("Result of tool call {tool_call_id}:")) });
        after.append(&mut others);
        if texts.is_empty() {
            texts.push(Part::Text { text: Cow::Borrowed("The result is in the next user message.") });
        }
    }
    let content = Content::of(texts).unwrap_or(Content::Text(Cow::Borrowed("")));
    Ok(Message::Tool { tool_call_id, content })
}

fn assistant<'a>(message: &mut Members<'a>, out: &mut Vec<Message<'a>>, dropped: &mut Dropped) -> Result<(), Refusal> {
    let mut parts = Vec::new();
    let mut tool_calls = Vec::new();
    match blocks(message, "content")? {
        Blocks::Text(text) => parts.extend(text_part(text)),
        Blocks::List(list) => {
            for mut block in list {
                let kind = block.required_text("type")?;
                match kind.as_ref() {
                    "text" => parts.extend(text_part(block.required_text("text")?)),
                    "tool_use" => tool_calls.push(tool_call(&mut block)?),
                    "thinking" | "redacted_thinking" => {
                        dropped.add("messages.thinking");
                        continue;
                    }
                    other => return Err(cannot_carry(&block.path("type"), &format!("a block of type `{other}` here"))),
                }
                block.drop_rest("", dropped);
            }
        }
    }
    if !parts.is_empty() || !tool_calls.is_empty() {
        out.push(Message::Assistant { content: Content::of(parts), tool_calls });
    }
    Ok(())
}

fn tool_call<'a>(block: &mut Members<'a>) -> Result<ToolCall<'a>, Refusal> {
    let path = block.path("input");
    let id = block.required_text("id")?;
    let name = block.required_text("name")?;
    // Who called it: always the model itself where it is a tool of the client's.
    block.take("caller");
    let arguments = block.take("input").map_or("{}", RawValue::get);
    if !arguments.starts_with('{') {
        return Err(wrong(&path, "an object"));
    }
    Ok(ToolCall { id, kind: "function", function: Function { name, arguments } })
}
