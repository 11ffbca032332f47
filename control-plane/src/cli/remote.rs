//! The admin API of a running control plane.

use super::output::Output;
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use ureq::http::{Method, Request, Response, header};
use ureq::{Agent, Body};

/// What came back; `None`: done, nothing to tell.
pub type Answer = Option<Value>;

/// Which control plane, and as whom.
#[derive(clap::Args)]
pub struct Remote {
    /// The admin port of a control plane.
    #[arg(long, global = true, value_name = "URL", env = "PROXIUM_ADMIN_URL", default_value = "http://127.0.0.1:10001")]
    admin_url: String,
    /// A file that holds the admin token alone; without it PROXIUM_ADMIN_TOKEN is sent.
    #[arg(long, global = true, value_name = "FILE", env = "PROXIUM_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<PathBuf>,
    /// How to print what comes back.
    #[arg(long, short, global = true, value_enum, default_value = "json")]
    pub output: Output,
    /// Print this field of the answer alone, bare: for scripts.
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "output")]
    pub field: Option<String>,
}

/// Why a command was not done.
#[derive(Debug)]
pub enum Fault {
    /// Wrong on this side: arguments, files.
    Here(String),
    /// The control plane says no.
    Refused(String),
    /// It cannot be reached, or cannot answer.
    Unavailable(String),
}

impl Fault {
    /// The exit code.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Here(_) | Self::Refused(_) => 1,
            Self::Unavailable(_) => 3,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Here(text) | Self::Refused(text) | Self::Unavailable(text)) = self;
        f.write_str(text)
    }
}

impl Remote {
    /// Looks.
    pub fn get(&self, path: &str) -> Result<Answer, Fault> {
        self.call(Method::GET, path, None)
    }

    /// Takes away.
    pub fn delete(&self, path: &str) -> Result<Answer, Fault> {
        self.call(Method::DELETE, path, None)
    }

    /// Sends a document.
    pub fn send(&self, method: Method, path: &str, document: &Value) -> Result<Answer, Fault> {
        self.call(method, path, Some(document.to_string()))
    }

    fn call(&self, method: Method, path: &str, body: Option<String>) -> Result<Answer, Fault> {
        let url = format!("{}/admin/v1/{path}", self.admin_url.trim_end_matches('/'));
        let token = self.token()?;
        let request = Request::builder()
            .method(method)
            .uri(&url)
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header(header::CONTENT_TYPE, "application/json");
        let wrong = |error: ureq::http::Error| Fault::Here(format!("cannot ask {url}: {error}"));
        let agent: Agent = Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(30))).build().into();
        let answer = match body {
            Some(body) => agent.run(request.body(body).map_err(wrong)?),
            None => agent.run(request.body(()).map_err(wrong)?),
        };
        let unreachable = |error: ureq::Error| {
            let hint = "is `proxium serve` running there? --admin-url or PROXIUM_ADMIN_URL names another";
            Fault::Unavailable(format!("cannot reach {}: {error}; {hint}", self.admin_url))
        };
        read(answer.map_err(unreachable)?)
    }

    fn token(&self) -> Result<String, Fault> {
        let token = match &self.admin_token_file {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|error| Fault::Here(format!("cannot read the admin token from {}: {error}", path.display())))?,
            None => std::env::var("PROXIUM_ADMIN_TOKEN")
                .map_err(|_| Fault::Here("set PROXIUM_ADMIN_TOKEN, or name a file with --admin-token-file".to_owned()))?,
        };
        Ok(token.trim().to_owned())
    }
}

fn read(mut answer: Response<Body>) -> Result<Answer, Fault> {
    let status = answer.status();
    let text = answer.body_mut().read_to_string().map_err(|error| Fault::Unavailable(format!("the answer broke off: {error}")))?;
    let value = serde_json::from_str::<Value>(&text).ok();
    if status.is_success() {
        return Ok(value);
    }
    let message = value.as_ref().and_then(|value| value.pointer("/error/message")).and_then(Value::as_str);
    let message = format!("{}: {}", status.as_u16(), message.unwrap_or("this is not the answer of a proxium control plane"));
    Err(if status.is_server_error() { Fault::Unavailable(message) } else { Fault::Refused(message) })
}

/// A path of these segments, each of which may hold anything.
pub fn path<const N: usize>(segments: [&str; N]) -> String {
    segments.map(encoded).join("/")
}

/// With all but letters, digits and `-._~` as `%XX`.
pub fn encoded(text: &str) -> String {
    let letter = |byte: u8| match byte {
        b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_cannot_leave_its_place() {
        assert_eq!(path(["projects", "a-1", "senders", "team a/../ä?"]), "projects/a-1/senders/team%20a%2F..%2F%C3%A4%3F");
    }
}
