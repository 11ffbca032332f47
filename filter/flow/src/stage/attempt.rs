//! The calls to providers: for each entry of the plan the deadline, the credential and the breaker are checked before it is called.

use super::call::Call;
use super::outcome::{Verdict, judge};
use super::record;
use crate::breaker::{Lane, Outcome, Permit};
use crate::deadline::Share;
use crate::flow::{Effect, Stage, Turn};
use crate::message::{Answer, Callout, Headers, Reply, Response};
use crate::refusal::{ProvidersFailed, Refusal};
use crate::snapshot::Entry;
use crate::world::World;
use proxium_wire::{Attempt, Dialect, Settlement};
use std::rc::Rc;

/// Headers of the client that go on to a provider of the same dialect.
const TO_PROVIDER: &[&str] =
    &["content-type", "accept", "user-agent", "traceparent", "tracestate", "anthropic-version", "anthropic-beta", "openai-beta"];
/// Headers of a provider that go on to the client; the rest tells of the operator's account.
pub(super) const TO_CLIENT: &[&str] = &["content-type", "retry-after", "x-request-id", "request-id"];

/// A probe's claim outlives its attempt by this.
const CLAIM_SLACK_MS: u64 = 1_000;

/// A timer and the wall clock may differ by this when the last attempt ends with the deadline.
const TIMER_SLACK_MS: u64 = 10;

/// A call that waits for a provider.
#[derive(Debug)]
pub struct Attempting {
    call: Box<Call>,
    at: usize,
    entry: Rc<Entry>,
    lane: Lane,
    is_probe: bool,
    share: Share,
    sent_ms: u64,
}

/// Calls the first entry from `at` on that may be called; ends the call when there is none.
pub fn run(mut call: Box<Call>, mut at: usize, world: &impl World) -> Turn {
    while let Some(entry) = call.plan.get(at).cloned() {
        let now_ms = world.now_ms();
        let Some(share) = call.deadline.share(now_ms, entry.model.timeout_ms, at + 1 < call.plan.len()) else {
            return give_up(&call, &Refusal::DeadlineExceeded, world);
        };
        let (skipped, wait_ms) = match credential(&call, &entry) {
            None => ("no_credential", None),
            Some((lane, secret)) => match world.permit(&lane, share.timeout_ms + CLAIM_SLACK_MS) {
                Permit::Open { wait_ms } => ("breaker_open", Some(wait_ms)),
                Permit::Resting { wait_ms } => ("resting", Some(wait_ms)),
                permit @ (Permit::Call | Permit::Probe) => {
                    let callout = callout(&call, &entry, secret.as_deref(), share);
                    let is_probe = permit == Permit::Probe;
                    return Turn::wait(
                        Stage::Attempting(Box::new(Attempting { call, at, entry, lane, is_probe, share, sent_ms: now_ms })),
                        Effect::Call(callout),
                    );
                }
            },
        };
        call.attempts.push(Attempt { model: entry.model.name.clone(), outcome: skipped.into(), ms: 0 });
        call.retry_after_ms = call.retry_after_ms.into_iter().chain(wait_ms).min();
        at += 1;
    }
    if let Some(answer) = call.not_found.take() {
        return hand_back(&call, answer, world);
    }
    if call.deadline.left_ms(world.now_ms()) <= TIMER_SLACK_MS {
        return give_up(&call, &Refusal::DeadlineExceeded, world);
    }
    give_up(&call, &Refusal::ProvidersFailed(failed(&call)), world)
}

impl Attempting {
    /// Takes the provider's answer.
    pub fn reply(mut self, reply: Reply, world: &impl World) -> Turn {
        let now_ms = world.now_ms();
        let timed_out = matches!(reply, Reply::Failed(crate::message::Failure::Timeout));
        let verdict = judge(reply, self.share, &self.entry, now_ms);
        let (word, outcome) = match &verdict {
            Verdict::Answered(..) => ("ok".to_owned(), Outcome::Success),
            Verdict::Next { word, outcome, .. } => (word.clone(), *outcome),
            Verdict::NotFound(_) => ("status_404".to_owned(), Outcome::Nothing),
            Verdict::Return(answer) => (format!("status_{}", answer.status), Outcome::Nothing),
        };
        world.report(&self.lane, outcome, self.is_probe);
        let mut loud = None;
        if word == "status_401" || word == "status_403" {
            loud =
                Some(Effect::CredentialRefused { credential: self.lane.credential, status: if word == "status_401" { 401 } else { 403 } });
        }
        self.call.attempts.push(Attempt { model: self.entry.model.name.clone(), outcome: word, ms: now_ms.saturating_sub(self.sent_ms) });
        let mut turn = match verdict {
            Verdict::Answered(answer, read) => record::answered(&self.call, &self.entry, answer, &read, world),
            Verdict::Return(answer) => hand_back(&self.call, answer, world),
            Verdict::NotFound(answer) => {
                self.call.not_found = Some(answer);
                run(self.call, self.at + 1, world)
            }
            Verdict::Next { retry_after_ms, .. } => {
                self.call.not_found = None;
                self.call.retry_after_ms = self.call.retry_after_ms.into_iter().chain(retry_after_ms).min();
                if timed_out && self.share.cut_by_caller {
                    self.call.cut_by_caller = Some(self.entry);
                }
                run(self.call, self.at + 1, world)
            }
        };
        turn.effects.extend(loud);
        turn
    }

    /// The answer is there and cannot be taken: our fault, so nothing is charged.
    pub fn overloaded(self, world: &impl World) -> Turn {
        world.report(&self.lane, Outcome::Nothing, self.is_probe);
        self.call.refuse_after(&Refusal::Overloaded, Some(self.call.release()))
    }

    /// The client left while the provider worked: the call slot stays, and the input is settled at this attempt's model.
    pub fn abandon(mut self, world: &impl World) -> Settlement {
        world.report(&self.lane, Outcome::Nothing, self.is_probe);
        let ms = world.now_ms().saturating_sub(self.sent_ms);
        self.call.attempts.push(Attempt { model: self.entry.model.name.clone(), outcome: "abandoned".into(), ms });
        record::abandoned(&self.call, &self.entry, world.now_ms())
    }
}

/// The credential for an entry: the project's own, which never falls back to the platform's; else the platform's, if the provider has
/// one. `None`: the project has its own and it is not at hand.
fn credential(call: &Call, entry: &Entry) -> Option<(Lane, Option<String>)> {
    let provider = &entry.provider.name;
    let own =
        |secret: Option<String>| (Lane { credential: format!("{}/{provider}", call.key.project), model: entry.model.name.clone() }, secret);
    let platforms = || (Lane { credential: provider.clone(), model: entry.model.name.clone() }, entry.provider.credential.clone());
    match &call.admitted {
        Some(admitted) => match admitted.credentials.iter().find(|credential| credential.provider == *provider) {
            Some(credential) => Some(own(Some(credential.secret.clone()))),
            None => Some(platforms()),
        },
        None if call.key.project_record.own_credentials.contains(provider) => None,
        None => Some(platforms()),
    }
}

fn callout(call: &Call, entry: &Entry, secret: Option<&str>, share: Share) -> Callout {
    let provider = &entry.provider;
    let query = call.head.query.as_deref().map(|query| format!("?{query}")).unwrap_or_default();
    let mut headers = Headers::new();
    headers.add(":method", "POST");
    headers.add(":path", format!("{}{}{query}", provider.path_prefix, call.head.route.upstream_path));
    headers.add(":authority", provider.authority.as_str());
    headers.copy_allowed(&call.head.headers, TO_PROVIDER);
    if headers.get("content-type").is_none() {
        headers.add("content-type", "application/json");
    }
    // The bytes are read here: a compressed answer would hide its usage.
    headers.add("accept-encoding", "identity");
    if let Some(secret) = secret {
        match provider.dialect() {
            Dialect::Openai => headers.add("authorization", format!("Bearer {secret}")),
            Dialect::Anthropic => headers.add("x-api-key", secret),
        }
    }
    Callout { cluster: provider.cluster.clone(), headers, body: body(call, entry), timeout_ms: share.timeout_ms }
}

/// The client's own bytes, with the provider's name of the model.
fn body(call: &Call, entry: &Entry) -> Vec<u8> {
    let text = call.body.text.as_str();
    let parts = call.body.span("model").and_then(|span| Some((text.get(..span.start)?, text.get(span.end..)?)));
    match parts {
        Some((before, after)) if entry.model.upstream != call.request.model => {
            let name = serde_json::Value::from(entry.model.upstream.as_str()).to_string();
            [before, &name, after].concat().into_bytes()
        }
        _ => text.as_bytes().to_vec(),
    }
}

/// Returns a provider's own refusal unchanged.
fn hand_back(call: &Call, answer: Answer, world: &impl World) -> Turn {
    let model = call.attempts.last().map(|attempt| attempt.model.as_str()).unwrap_or_default();
    let mut headers = call.answer_headers(model, call.cache_label());
    headers.copy_allowed(&answer.headers, TO_CLIENT);
    let response = Response { status: answer.status, headers, body: answer.body };
    Turn::done(vec![Effect::Post(owed(call, world)), Effect::Respond(response)])
}

/// Ends a call that no entry answered.
fn give_up(call: &Call, refusal: &Refusal, world: &impl World) -> Turn {
    call.refuse_after(refusal, Some(owed(call, world)))
}

/// What a call owes that has no answer: nothing, unless the caller's own deadline ended an attempt that was sent.
fn owed(call: &Call, world: &impl World) -> Settlement {
    match &call.cut_by_caller {
        Some(entry) => record::abandoned(call, entry, world.now_ms()),
        None => call.release(),
    }
}

fn failed(call: &Call) -> ProvidersFailed {
    let words = || call.attempts.iter().map(|attempt| attempt.outcome.as_str());
    let busy = |word: &str| word == "status_429" || word == "resting";
    let status = if words().all(|word| word == "resting" || word == "breaker_open") {
        503
    } else if words().all(busy) {
        429
    } else {
        502
    };
    ProvidersFailed {
        status,
        attempts: call.attempts.iter().map(|attempt| (attempt.model.clone(), attempt.outcome.clone())).collect(),
        retry_after_ms: call.retry_after_ms,
    }
}
