//! What the mock does with a call.

use super::script::Script;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};
use std::time::Duration;

/// One way to treat a call. Starts as [`Behaviour::answer`] or another constructor, refined by the methods.
#[derive(Clone, Debug)]
pub struct Behaviour {
    pub(super) act: Act,
    pub(super) delay: Duration,
    pub(super) headers: HeaderMap,
    pub(super) gzip: bool,
}

/// What happens after the delay.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Answer(Answer),
    /// An error in the dialect of the call.
    Status(StatusCode),
    /// These bytes.
    Raw(StatusCode, Vec<u8>),
    /// 200 with an error object of the dialect.
    ErrorIn200,
    Hang,
    Reset,
    ResetMidBody,
}

/// What of an answer is scripted; the rest follows from the request.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub text: Option<String>,
    pub finish: Option<String>,
    pub usage: UsageScript,
    pub no_choices: bool,
    pub padding: usize,
    pub script: Option<Script>,
}

#[derive(Clone, Debug, Default)]
pub(super) enum UsageScript {
    /// Counted from words.
    #[default]
    Counted,
    /// Counted, this many of the input read from the provider's cache.
    Cached(u64),
    /// This object, in the dialect of the call, as it stands.
    Given(Value),
    Missing,
}

impl Behaviour {
    fn new(act: Act) -> Self {
        Self { act, delay: Duration::ZERO, headers: HeaderMap::new(), gzip: false }
    }

    fn json(status: StatusCode, body: &Value) -> Self {
        Self::raw(status.as_u16(), "application/json", body.to_string())
    }

    /// The ordinary echo answer.
    #[must_use]
    pub fn answer() -> Self {
        Self::new(Act::Answer(Answer::default()))
    }

    /// An error of the dialect with this status; a status that does not exist is 500.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self::new(Act::Status(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)))
    }

    /// Exactly these bytes.
    #[must_use]
    pub fn raw(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::new(Act::Raw(status, body.into())).header("content-type", content_type)
    }

    /// Reads the request and never answers.
    #[must_use]
    pub fn hang() -> Self {
        Self::new(Act::Hang)
    }

    /// RST before any byte of an answer.
    #[must_use]
    pub fn reset() -> Self {
        Self::new(Act::Reset)
    }

    /// Headers of a 200 and half a body, then RST.
    #[must_use]
    pub fn reset_mid_body() -> Self {
        Self::new(Act::ResetMidBody)
    }

    /// 200 without a body.
    #[must_use]
    pub fn empty() -> Self {
        Self::raw(200, "application/json", "")
    }

    /// 200 with a page for people.
    #[must_use]
    pub fn html() -> Self {
        Self::raw(200, "text/html", "<!doctype html><html><body>Please sign in to the network</body></html>")
    }

    /// 200 whose body is an error of the dialect.
    #[must_use]
    pub fn error_in_200() -> Self {
        Self::new(Act::ErrorIn200)
    }

    /// 200 that looks like an answer, with no choice (content) in it.
    #[must_use]
    pub fn no_choices() -> Self {
        Self::new(Act::Answer(Answer { no_choices: true, ..Answer::default() }))
    }

    /// An answer of at least this many bytes.
    #[must_use]
    pub fn huge(bytes: usize) -> Self {
        Self::new(Act::Answer(Answer { padding: bytes, ..Answer::default() }))
    }

    fn on_answer(mut self, change: impl FnOnce(&mut Answer)) -> Self {
        if let Act::Answer(answer) = &mut self.act {
            change(answer);
        }
        self
    }

    /// The answer's text (answers only, like the four below).
    #[must_use]
    pub fn text(self, text: &str) -> Self {
        self.on_answer(|answer| answer.text = Some(text.into()))
    }

    fn script(self, script: Script) -> Self {
        self.on_answer(|answer| answer.script = Some(script))
    }

    /// `finish_reason` / `stop_reason` as it stands.
    #[must_use]
    pub fn finish(self, reason: &str) -> Self {
        self.on_answer(|answer| answer.finish = Some(reason.into()))
    }

    /// The `usage` object as it stands, in the dialect of the call.
    #[must_use]
    pub fn usage(self, usage: Value) -> Self {
        self.on_answer(|answer| answer.usage = UsageScript::Given(usage))
    }

    /// Counted usage, with this many input tokens read from the provider's cache.
    #[must_use]
    pub fn cached(self, tokens: u64) -> Self {
        self.on_answer(|answer| answer.usage = UsageScript::Cached(tokens))
    }

    /// No `usage` at all.
    #[must_use]
    pub fn without_usage(self) -> Self {
        self.on_answer(|answer| answer.usage = UsageScript::Missing)
    }

    /// Waits first.
    #[must_use]
    pub const fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Adds a response header (`retry-after`, …); one that is not valid HTTP is left out.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            self.headers.insert(name, value);
        }
        self
    }

    /// Compresses the body when the request's `accept-encoding` allows it.
    #[must_use]
    pub const fn gzip(mut self) -> Self {
        self.gzip = true;
        self
    }

    /// What a model (or an `x-mock` header) of this name asks for; see the table of [`super`]. Any other name: the ordinary answer.
    #[must_use]
    pub fn by_name(name: &str) -> Self {
        let Some((_, script)) = name.split_once("mock-") else { return Self::answer() };
        if let Some((kind, number)) = script.rsplit_once('-').and_then(|(kind, number)| Some((kind, number.parse::<u64>().ok()?))) {
            match kind {
                "error" => {
                    let status = u16::try_from(number).unwrap_or(500);
                    let refused = Self::status(status);
                    return if status == 429 { refused.header("retry-after", "1") } else { refused };
                }
                "slow" => return Self::answer().after(Duration::from_millis(number)),
                "huge" => return Self::huge(usize::try_from(number.min(64 << 20)).unwrap_or(0)),
                "cached" => return Self::answer().cached(number),
                _ => {}
            }
        }
        match script {
            "hang" => Self::hang(),
            "reset" => Self::reset(),
            "reset-mid-body" => Self::reset_mid_body(),
            "empty" => Self::empty(),
            "html" => Self::html(),
            "200-error" => Self::error_in_200(),
            "no-choices" => Self::no_choices(),
            "no-usage" => Self::answer().without_usage(),
            "length" => Self::answer().finish("length"),
            "gzip" => Self::answer().gzip(),
            "mirror" => Self::answer().script(Script::Mirror),
            "tools" => Self::answer().script(Script::Tools),
            "thinking" => Self::answer().script(Script::Thinking),
            "not-json" => Self::raw(200, "application/json", "{\"id\": \"cut"),
            "not-object" => Self::json(StatusCode::OK, &json!([])),
            _ => Self::answer(),
        }
    }
}
