//! HTTP messages as the flow sees them.

use std::borrow::Cow;

/// Header lines in order; names are lower-case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Cow<'static, str>, String)>);

impl Headers {
    /// No line.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// One line more.
    pub fn add(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// One line of this name, and no other.
    pub fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.0.retain(|(line, _)| line != name);
        self.add(name, value);
    }

    /// The first line of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(line, _)| *line == name).map(|(_, value)| value)
    }

    /// Every line of this name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.iter().filter(move |(line, _)| *line == name).map(|(_, value)| value)
    }

    /// Every line.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), value.as_str()))
    }

    /// Copies the lines of these names, and no other: what crosses a trust boundary is on an allow-list.
    pub fn copy_allowed(&mut self, from: &Headers, names: &[&'static str]) {
        for name in names {
            for value in from.all(name) {
                self.add(*name, value);
            }
        }
    }
}

impl<N: Into<Cow<'static, str>>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(lines: T) -> Self {
        Self(lines.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// An answer to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The header lines.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
    /// proxium's own code, if it refuses.
    pub code: Option<&'static str>,
}

/// A request let on to Envoy's router, with its attempts planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Filter state by key: for attempt `n`, from 0, `proxium.cluster<n>`, `proxium.hop<n>` and, if there is one, `proxium.credential<n>`,
    /// a header line. The last is in no log format.
    pub state: Vec<(String, String)>,
    /// The request's header lines from here on, pseudo-headers and framing left aside.
    pub headers: Headers,
    /// Goes in the place of the request's body; `None`: it is as the client sent it.
    pub body: Option<Vec<u8>>,
}

/// A call to somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callout {
    /// Envoy's cluster.
    pub cluster: String,
    /// Pseudo-headers first.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
    /// The longest it may take.
    pub timeout_ms: u64,
    /// It may travel with others of its path and its patience, and wait for the slowest of them.
    pub groups: bool,
}

/// How a [`Callout`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Somebody answered.
    Answer(Answer),
    /// Nobody did.
    Failed(Failure),
}

/// An answer from a provider or from the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The header lines, pseudo-headers left out.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Not in time.
    Timeout,
    /// No connection: refused, no healthy host, unknown cluster, DNS, Envoy's own limits. Nothing was sent.
    Connect,
    /// The connection broke, or the answer was larger than Envoy keeps. Something may have been sent.
    Reset,
}

impl Failure {
    /// The word for the ledger and the error message.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Connect => "connect_error",
            Self::Reset => "reset",
        }
    }
}
