//! HTTP as a test wants it: build a call, look at all of the answer.

use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use std::time::Duration;

/// The body of a unary chat call with one user message.
#[must_use]
pub fn chat(model: &str, text: &str) -> Value {
    crate::private::prompt(text);
    json!({"model": model, "messages": [{"role": "user", "content": text}]})
}

/// A request to be sent.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Call {
    /// Any method and path; no headers, no body.
    ///
    /// # Panics
    /// The method is not a token.
    #[must_use]
    pub fn new(method: &str, path: &str) -> Self {
        Self { method: method.parse().expect("a method"), path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    /// `POST /v1/chat/completions` with this bearer key (a [`crate::Key`] or its text).
    #[must_use]
    pub fn chat(key: impl AsRef<str>, body: &Value) -> Self {
        Self::new("POST", "/v1/chat/completions").header("authorization", &format!("Bearer {}", key.as_ref())).json(body)
    }

    /// Adds a header; the same name twice stays twice.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The body, as JSON.
    #[must_use]
    pub fn json(self, body: &Value) -> Self {
        self.header("content-type", "application/json").body(body.to_string())
    }

    /// The body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends it to `http://<host and port>`.
    ///
    /// # Errors
    /// No whole answer came.
    pub async fn send(&self, client: &reqwest::Client, base: &str) -> Result<Response, reqwest::Error> {
        let response = self.start(client, base).await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Response { status, headers, body: response.bytes().await?.to_vec() })
    }

    /// Sends it and waits for the head of the answer.
    pub(crate) async fn start(&self, client: &reqwest::Client, base: &str) -> Result<reqwest::Response, reqwest::Error> {
        let mut request = client.request(self.method.clone(), format!("{base}{}", self.path)).body(self.body.clone());
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request.send().await
    }
}

/// An answer, whole.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// A header's value; `None` when it is not there.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// It is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("not JSON ({error}): {} {}", self.status, self.text()))
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// `error.code` of a refusal; empty when there is none.
    #[must_use]
    pub fn code(&self) -> String {
        self.json().pointer("/error/code").and_then(Value::as_str).unwrap_or_default().into()
    }

    /// Fails the test, telling the whole answer, unless the status is this.
    ///
    /// # Panics
    /// See above.
    #[must_use]
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}\n{:#?}", self.text(), self.headers);
        self
    }
}

/// A client whose every call has a connection of its own: the calls spread over all workers of an Envoy.
pub(crate) fn unpooled() -> reqwest::Client {
    let client = reqwest::Client::builder().pool_max_idle_per_host(0).timeout(Duration::from_secs(120)).no_proxy();
    // Where somebody is sent is for the test to see.
    let client = client.redirect(reqwest::redirect::Policy::none());
    client.build().expect("a client")
}
