//! One attempt of Envoy's router, in the upstream filter chain of a stream cluster.
//!
//! It holds no catalog: what the attempt is comes from filter state, set by the listener's filter. Envoy runs it anew for each attempt, but
//! changes to the request's head persist to the next one (`shared/envoy-facts.md` B), so every header is set or removed on every attempt. A
//! 200 is held until its first event: with that the head goes on, and until then the router can still fail over.

use crate::host::{self, RequestLines};
use proxium_flow::hop::{HOP_HEADERS, Hop};
use proxium_flow::message::Response;
use proxium_flow::refusal::Refusal;
use proxium_flow::sse::Reader;
use proxium_flow::stage::outcome::{Report, retry_after_ms};
use proxium_flow::stream::{First, Meter};
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

/// Headers that Envoy's router adds and no provider needs. `x-envoy-attempt-count` stays: the route of the next attempt follows it.
const ENVOYS_HEADERS: [&str; 3] = ["x-envoy-expected-rq-timeout-ms", "x-forwarded-proto", "x-request-id"];

/// Where the report of an attempt, from 0, stands in filter state.
pub fn report_key(attempt: usize) -> String {
    format!("proxium.report{attempt}")
}

/// One attempt; an idle one for calls that are none of the router's.
#[derive(Default)]
pub struct Upstream {
    attempt: usize,
    hop: Option<Hop>,
    report: Report,
    first: Option<Box<FirstEvent>>,
}

/// A stream whose first event is not here yet.
struct FirstEvent {
    reader: Reader,
    meter: Meter,
    /// Bytes already read.
    seen: usize,
}

impl Upstream {
    fn tell(&self) {
        host::set_state(&report_key(self.attempt), &serde_json::to_string(&self.report).unwrap_or_default());
    }

    /// Makes the router take this answer for a failure.
    fn fail(&mut self, word: &str) {
        self.report.word = Some(word.into());
        self.tell();
        host::set_response_status(503);
    }

    fn set_head(&self, hop: &Hop, lines: &RequestLines) {
        let credential = host::state(&format!("proxium.credential{}", self.attempt));
        let credential = credential.as_deref().and_then(|line| line.split_once(": "));
        let given = hop.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let given = given.filter(|(name, _)| credential.is_none_or(|(header, _)| header != *name)).chain(credential);
        let typed = lines.get("content-type").map_or(Some(("content-type", "application/json")), |_| None);
        let own = [(":path", hop.path.as_str()), (":authority", hop.authority.as_str())];
        let goes = |name: &str| matches!(name, ":path" | ":authority") || HOP_HEADERS.contains(&name) || ENVOYS_HEADERS.contains(&name);
        lines.replace(goes, own.into_iter().chain(given).chain(typed));
    }
}

impl Context for Upstream {}

impl HttpContext for Upstream {
    fn on_http_request_headers(&mut self, _num_headers: usize, _end_of_stream: bool) -> Action {
        host::awake();
        let lines = host::request_lines();
        let attempt = lines.get("x-envoy-attempt-count").and_then(|count| count.parse::<usize>().ok()?.checked_sub(1));
        let Some(attempt) = attempt else {
            // A callout, on a cluster that streams use too.
            for name in ["x-envoy-internal"].iter().chain(&ENVOYS_HEADERS) {
                host::set_request_header(name, None);
            }
            return Action::Continue;
        };
        self.attempt = attempt;
        self.hop = host::state(&format!("proxium.hop{attempt}")).and_then(|hop| Hop::read(&hop));
        let Some(hop) = &self.hop else { return Action::Continue };
        self.set_head(hop, &lines);
        self.report.began_ms = host::now_ms();
        self.tell();
        Action::Pause
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        let Some(hop) = &self.hop else { return Action::Continue };
        if !end_of_stream {
            return Action::Pause;
        }
        match hop.body_of(host::request_body(size)) {
            Ok(outgoing) => {
                host::replace_request_body(size, &outgoing.body);
                host::set_request_header("content-length", Some(&outgoing.body.len().to_string()));
                Action::Continue
            }
            Err(refusal) => {
                // The listener's filter read and translated this body before it let it on.
                log::error!("a planned request cannot be sent: {refusal:?}");
                let response: Response = Refusal::Overloaded.response(hop.client(), "");
                host::respond(&response);
                Action::Pause
            }
        }
    }

    fn on_http_response_headers(&mut self, _num_headers: usize, end_of_stream: bool) -> Action {
        let Some(hop) = &self.hop else { return Action::Continue };
        host::awake();
        let head = host::response_head();
        self.report.status = Some(head.status);
        self.report.retry_after_ms = retry_after_ms(&head.headers, host::now_ms());
        match head.status {
            200..=299 if end_of_stream => self.fail("empty_stream"),
            200..=299 if !head.headers.get("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) => {
                self.fail("not_a_stream")
            }
            200..=299 => {
                self.first = Some(Box::new(FirstEvent { reader: Reader::new(), meter: Meter::new(hop.provider()), seen: 0 }));
                self.tell();
                return Action::Pause;
            }
            // The router would take these for an answer.
            100..=399 => self.fail(&format!("status_{}", head.status)),
            _ => self.tell(),
        }
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        let Some(waiting) = &mut self.first else { return Action::Continue };
        let bytes = host::response_body(size);
        for event in waiting.reader.push(bytes.get(waiting.seen..).unwrap_or_default()) {
            waiting.meter.event(&event);
        }
        waiting.seen = bytes.len();
        if end_of_stream {
            if let Some(event) = waiting.reader.finish() {
                waiting.meter.event(&event);
            }
            waiting.meter.finish();
        }
        match waiting.meter.first() {
            First::Pending => return Action::Pause,
            First::Good => {}
            First::Error(word) => self.fail(word),
        }
        self.first = None;
        Action::Continue
    }
}
