//! Event streams as a client reads them, event by event.

use crate::{BOUND, Call, Caller, Response, Stack};
use proxium_flow::sse::{Event, Reader};
use reqwest::header::HeaderMap;
use serde_json::Value;
use std::collections::VecDeque;

/// A stream that is being read; dropping it is a hang-up.
#[derive(Debug)]
pub struct Stream {
    /// The status.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    response: reqwest::Response,
    reader: Reader,
    ready: VecDeque<Event>,
    seen: Vec<u8>,
    end: Option<End>,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The body is whole, as HTTP has it.
    Whole,
    /// The connection broke before the body's end.
    Incomplete,
}

/// A stream that was read to its end.
#[derive(Clone, Debug)]
pub struct Streamed {
    /// The status.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    /// All bytes.
    pub body: Vec<u8>,
    /// All events.
    pub events: Vec<Event>,
    /// How it ended.
    pub end: End,
}

/// The piece of text that an event of either dialect carries.
#[must_use]
pub fn text_of(event: &Event) -> String {
    let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
    let text = data.pointer("/choices/0/delta/content").or_else(|| data.pointer("/delta/text"));
    text.and_then(Value::as_str).unwrap_or_default().into()
}

/// The same body, asking for a stream.
///
/// # Panics
/// It is no object.
#[must_use]
pub fn streamed(mut body: Value) -> Value {
    body.as_object_mut().expect("an object").insert("stream".into(), true.into());
    body
}

impl Call {
    /// `POST /v1/messages` with this bearer key.
    #[must_use]
    pub fn messages(key: impl AsRef<str>, body: &Value) -> Self {
        Self::new("POST", "/v1/messages").header("authorization", &format!("Bearer {}", key.as_ref())).json(body)
    }
}

impl Caller {
    /// Makes a call and waits for the head of its answer.
    ///
    /// # Panics
    /// None came.
    pub async fn stream(&self, call: &Call) -> Stream {
        self.try_stream(call).await.expect("the head of an answer")
    }

    /// The same where none may come.
    ///
    /// # Errors
    /// None came.
    pub async fn try_stream(&self, call: &Call) -> Result<Stream, reqwest::Error> {
        Ok(Stream::of(call.start(&self.client, &self.base).await?))
    }
}

impl Stack {
    /// Makes a call through the first Envoy and waits for the head of its answer.
    pub async fn stream(&self, call: &Call) -> Stream {
        self.envoys[0].caller().stream(call).await
    }

    /// The same, read to its end.
    pub async fn streamed(&self, call: &Call) -> Streamed {
        self.stream(call).await.rest().await
    }
}

impl Stream {
    fn of(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self { status, headers, response, reader: Reader::new(), ready: VecDeque::new(), seen: Vec::new(), end: None }
    }

    /// The next event; `None` at the end.
    ///
    /// # Panics
    /// Nothing came within the bound.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.end.is_some() {
                return None;
            }
            match tokio::time::timeout(BOUND, self.response.chunk()).await.expect("an event within the bound") {
                Ok(Some(bytes)) => {
                    self.seen.extend_from_slice(&bytes);
                    self.ready.extend(self.reader.push(&bytes));
                }
                ended => {
                    self.ready.extend(self.reader.finish());
                    self.end = Some(if ended.is_ok() { End::Whole } else { End::Incomplete });
                }
            }
        }
    }

    /// Reads until the text so far ends with this.
    ///
    /// # Panics
    /// It ends before that.
    pub async fn until_text(&mut self, wanted: &str) {
        let mut text = String::new();
        while !text.ends_with(wanted) {
            let event = self.next().await.unwrap_or_else(|| panic!("ended before {wanted:?}: {}", String::from_utf8_lossy(&self.seen)));
            text += &text_of(&event);
        }
    }

    /// Reads to the end.
    pub async fn rest(mut self) -> Streamed {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        let end = self.end.unwrap_or(End::Incomplete);
        Streamed { status: self.status, headers: self.headers, body: self.seen, events, end }
    }
}

impl Streamed {
    /// A header's value; `None` when it is not there.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// All bytes as text.
    #[must_use]
    pub fn raw(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The generated text.
    #[must_use]
    pub fn text(&self) -> String {
        self.events.iter().map(text_of).collect()
    }

    /// The data of the events that are JSON.
    #[must_use]
    pub fn json(&self) -> Vec<Value> {
        self.events.iter().filter_map(|event| serde_json::from_str(&event.data).ok()).collect()
    }

    /// It has its dialect's terminator.
    #[must_use]
    pub fn is_terminated(&self) -> bool {
        self.events.iter().any(|event| event.data == "[DONE]" || event.name == "message_stop")
    }

    /// The `error` object of its last event.
    #[must_use]
    pub fn error(&self) -> Option<Value> {
        self.json().last()?.get("error").cloned()
    }

    /// As an answer, for what takes one.
    #[must_use]
    pub fn answer(&self) -> Response {
        Response { status: self.status, headers: self.headers.clone(), body: self.body.clone() }
    }

    /// Fails the test, telling the whole answer, unless it is a stream with its terminator.
    ///
    /// # Panics
    /// See above.
    #[must_use]
    #[track_caller]
    pub fn whole(self) -> Self {
        assert_eq!(self.status, 200, "{}\n{:#?}", self.raw(), self.headers);
        assert_eq!(self.header("content-type").map(|kind| kind.starts_with("text/event-stream")), Some(true), "{:#?}", self.headers);
        assert!(self.is_terminated() && self.end == End::Whole, "{:?}\n{}", self.end, self.raw());
        self
    }

    /// Fails the test unless it is JSON with this status.
    ///
    /// # Panics
    /// See above.
    #[must_use]
    #[track_caller]
    pub fn json_answer(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}\n{:#?}", self.raw(), self.headers);
        assert_eq!(self.header("content-type"), Some("application/json"), "{}", self.raw());
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.raw()))
    }
}

/// Where a stream is asked for, and so in which dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/messages`
    Messages,
}

/// Both endpoints.
pub const BOTH: [Ask; 2] = [Ask::Chat, Ask::Messages];

impl Ask {
    /// A body with one user message that asks for no stream.
    #[must_use]
    pub fn body(self, model: &str, text: &str) -> Value {
        let mut body = crate::chat(model, text);
        if self == Self::Messages {
            body["max_tokens"] = 500.into();
        }
        body
    }

    /// A call with this body.
    #[must_use]
    pub fn call(self, key: impl AsRef<str>, body: &Value) -> Call {
        match self {
            Self::Chat => Call::chat(key, body),
            Self::Messages => Call::messages(key, body),
        }
    }

    /// A call that asks for a stream.
    #[must_use]
    pub fn stream(self, key: impl AsRef<str>, model: &str, text: &str) -> Call {
        self.call(key, &streamed(self.body(model, text)))
    }

    /// Fails the test unless this is an error of the dialect with this code.
    ///
    /// # Panics
    /// See above.
    #[track_caller]
    pub fn is_error(self, error: &Value, code: &str) {
        assert_eq!(error.pointer("/error/code").and_then(Value::as_str), Some(code), "{error}");
        assert!(error.pointer("/error/message").is_some_and(Value::is_string), "{error}");
        assert_eq!(error["type"] == "error", self == Self::Messages, "{error}");
    }
}
