//! A paid call beside the call itself: an embedding, or a classification. It holds money only, and what it cost is recorded once the call
//! itself is let in: of a call that is refused, nothing is. It may fail in any way; the call goes on without it.

use super::attempt::CLAIM_SLACK_MS;
use super::call::Call;
use super::outcome::{ByStatus, Miss, by_status, retry_after_ms, timeout_outcome};
use super::{attempt, classify, near, rank};
use crate::breaker::{Lane, Outcome, Permit};
use crate::control_plane;
use crate::flow::{Effect, Stage, Turn};
use crate::hop::credential_header;
use crate::message::{Callout, Failure, Headers, Reply};
use crate::price;
use crate::snapshot::Entry;
use crate::told::Told;
use crate::world::World;
use proxium_wire::settlement::End;
use proxium_wire::{
    AdmitRequest, Admitted, Alternative, Attempt, Dialect, Endpoint, HOLD_GRACE_MS, Hold, OwnCredential, Release, Settle, Settlement,
    Usage, path,
};
use std::rc::Rc;

/// What a side call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The vector of the question.
    Embed,
    /// The tier of `auto`.
    Classify,
    /// The vectors by which memories are chosen.
    Rank,
}

impl Purpose {
    /// In the ids of reservations and the names of breakers.
    const fn name(self) -> &'static str {
        match self {
            Self::Embed => "embedding",
            Self::Classify => "classifier",
            Self::Rank => "memories",
        }
    }

    const fn endpoint(self) -> Endpoint {
        match self {
            Self::Embed | Self::Rank => Endpoint::Embeddings,
            Self::Classify => Endpoint::Chat,
        }
    }

    /// Goes on without an outcome.
    fn without(self, call: Box<Call>, world: &impl World) -> Turn {
        match self {
            Self::Embed => near::embedded(call, None, world),
            Self::Classify => classify::classified(call, None, world),
            Self::Rank => rank::embedded(call, None, world),
        }
    }
}

/// What is sent and how its answer is read.
pub struct Ask {
    /// Who is asked.
    pub entry: Rc<Entry>,
    /// Behind the provider's prefix.
    pub path: &'static str,
    /// The body.
    pub body: Vec<u8>,
    /// The input, estimated.
    pub input_tokens: u64,
    /// The longest it may take.
    pub timeout_ms: u64,
    /// The same where no caller is in a hurry: who is must not open the breaker for others.
    pub own_timeout_ms: u64,
}

/// The money that an ask may cost.
#[must_use]
pub fn hold(entry: &Entry, input_tokens: u64, output_tokens: u64) -> Hold {
    Hold { nano_usd: price::worst(input_tokens, output_tokens, 0, &entry.model.prices).0, ..Hold::default() }
}

/// The reservation of a call's side call.
#[must_use]
pub fn id(call: &Call, purpose: Purpose) -> String {
    format!("{}_{}", call.head.request_id, purpose.name())
}

/// Asks for the money of an ask that is made before the call's own admission; `beside` it, the call's own hold must fit, too.
pub fn admission(
    call: &Call,
    purpose: Purpose,
    entry: &Entry,
    normal: Alternative,
    beside: Option<Hold>,
    left_ms: u64,
    world: &impl World,
) -> Effect {
    let request = AdmitRequest {
        id: id(call, purpose),
        project: call.key.project.clone(),
        key_id: call.key.key_id.clone(),
        source: call.controls.source.clone(),
        call: proxium_wire::Call { resolved_model: entry.model.name.clone(), ..call.facts() },
        normal,
        hold_ms: left_ms + HOLD_GRACE_MS,
        side_call: true,
        beside,
        ..AdmitRequest::default()
    };
    let timeout_ms = left_ms.min(control_plane::TIMEOUT_MS);
    let traceparent = call.head.headers.get("traceparent");
    Effect::Call(control_plane::callout(world.config(), path::ADMIT, traceparent, &request, timeout_ms))
}

/// A side call that waits for its provider.
#[derive(Debug)]
pub struct Side {
    call: Box<Call>,
    purpose: Purpose,
    entry: Rc<Entry>,
    lane: Lane,
    is_probe: bool,
    input_tokens: u64,
    timeout_ms: u64,
    own_timeout_ms: u64,
    sent_ms: u64,
}

/// Makes a side call whose money is held; without it if nobody may be asked.
pub fn start(call: Box<Call>, purpose: Purpose, ask: Option<Ask>, admitted: &Admitted, world: &impl World) -> Turn {
    let Some(Ask { entry, path, body, input_tokens, timeout_ms, own_timeout_ms }) = ask else { return unmade(call, purpose, world) };
    let provider = &entry.provider.name;
    let own = admitted.credentials.iter().find(|credential| credential.provider == *provider);
    let secret = match own {
        Some(OwnCredential { secret, .. }) => Some(secret),
        None => entry.provider.credential.as_ref(),
    };
    // A breaker of its own: its short timeouts say nothing of the provider to others.
    let whose = own.map(|_| format!("{}/", call.key.project)).unwrap_or_default();
    let lane = Lane { credential: format!("{}/{whose}{provider}", purpose.name()), model: entry.model.name.clone() };
    let is_probe = match world.permit(&lane, timeout_ms + CLAIM_SLACK_MS) {
        Permit::Open { .. } | Permit::Resting { .. } => return unmade(call, purpose, world),
        permit => permit == Permit::Probe,
    };
    let mut headers = Headers::new();
    headers.add(":method", "POST");
    headers.add(":path", format!("{}{path}", entry.provider.path_prefix));
    headers.add(":authority", entry.provider.authority.as_str());
    headers.copy_allowed(&call.head.headers, &["traceparent", "tracestate"]);
    headers.add("content-type", "application/json");
    headers.add("accept-encoding", "identity");
    let dialect = entry.provider.dialect();
    if dialect == Dialect::Anthropic {
        headers.add("anthropic-version", crate::hop::ANTHROPIC_VERSION);
    }
    if let Some(secret) = secret {
        let (name, value) = credential_header(dialect, secret);
        headers.add(name, value);
    }
    let callout = Callout { cluster: entry.provider.cluster.clone(), headers, body, timeout_ms, groups: false };
    let side = Side { call, purpose, entry, lane, is_probe, input_tokens, timeout_ms, own_timeout_ms, sent_ms: world.now_ms() };
    Turn::wait(Stage::Siding(Box::new(side)), Effect::Call(callout))
}

fn unmade(call: Box<Call>, purpose: Purpose, world: &impl World) -> Turn {
    let release = release(&call, purpose);
    purpose.without(call, world).and(Effect::PostSide(release))
}

/// Gives the money of a side call back, whether or not it was ever held.
#[must_use]
pub fn release(call: &Call, purpose: Purpose) -> Settlement {
    settlement(call, purpose, End::Release(Release {}))
}

fn settlement(call: &Call, purpose: Purpose, end: End) -> Settlement {
    Settlement {
        id: id(call, purpose),
        project: call.key.project.clone(),
        key_id: call.key.key_id.clone(),
        source: call.controls.source.clone(),
        end: Some(end),
        side_call: true,
    }
}

impl Side {
    /// Takes the provider's answer.
    pub fn reply(self, reply: Reply, world: &impl World) -> Turn {
        match reply {
            Reply::Failed(Failure::Timeout) => {
                let outcome = timeout_outcome(self.timeout_ms, self.own_timeout_ms);
                self.failed(Miss { outcome, ..Miss::failure(Failure::Timeout.name()) }, world)
            }
            Reply::Failed(failure) => self.failed(Miss::failure(failure.name()), world),
            Reply::Answer(answer) => match by_status(answer.status, retry_after_ms(&answer.headers, world.now_ms())) {
                ByStatus::Good => self.answered(&answer.body, world),
                ByStatus::Next(miss) => self.failed(miss, world),
                ByStatus::NotFound | ByStatus::Return => {
                    let word = format!("status_{}", answer.status);
                    self.failed(Miss { outcome: Outcome::Nothing, ..Miss::failure(&word) }, world)
                }
            },
        }
    }

    fn answered(self, body: &[u8], world: &impl World) -> Turn {
        match self.purpose {
            Purpose::Embed => match near::read(body, 1) {
                Some((vectors, usage)) => {
                    let call = self.paid(usage, "ok", world);
                    near::embedded(call, vectors.into_iter().next(), world)
                }
                None => self.failed(Miss::failure("no_vector"), world),
            },
            Purpose::Rank => match near::read(body, 1 + self.call.choice.as_ref().map_or(0, |choice| choice.unembedded.len())) {
                Some((vectors, usage)) => {
                    let call = self.paid(usage, "ok", world);
                    rank::embedded(call, Some(vectors), world)
                }
                None => self.failed(Miss::failure("no_vector"), world),
            },
            Purpose::Classify => match classify::read(self.entry.provider.dialect(), body) {
                Some((text, usage)) => {
                    let call = self.paid(usage, "ok", world);
                    classify::classified(call, Some(text), world)
                }
                None => self.failed(Miss::failure("no_answer"), world),
            },
        }
    }

    /// The call goes on without it, and nothing is charged.
    fn failed(self, miss: Miss, world: &impl World) -> Turn {
        self.told(&miss.word, miss.outcome, world);
        let loud = attempt::credential_refused(&self.lane, &miss.word);
        let turn = unmade(self.call, self.purpose, world);
        loud.into_iter().fold(turn, Turn::and)
    }

    /// What it cost, to be recorded with the call.
    fn paid(self, usage: Option<Usage>, word: &str, world: &impl World) -> Box<Call> {
        self.told(word, Outcome::Success, world);
        let settlement = self.settled(usage, word, world);
        let mut call = self.call;
        call.side_calls.push(settlement);
        call
    }

    fn told(&self, word: &str, outcome: Outcome, world: &impl World) {
        world.report(&self.lane, outcome, self.is_probe);
        world.tell(Told::Attempt { entry: &self.entry, outcome: word, ms: world.now_ms().saturating_sub(self.sent_ms) });
    }

    fn settled(&self, usage: Option<Usage>, word: &str, world: &impl World) -> Settlement {
        let estimated = usage.is_none();
        let usage = usage.unwrap_or(Usage { input: self.input_tokens, ..Usage::default() });
        let (model, ms) = (self.entry.model.name.clone(), world.now_ms().saturating_sub(self.sent_ms));
        let facts = proxium_wire::Call {
            endpoint: self.purpose.endpoint().into(),
            requested_model: model.clone(),
            resolved_model: model.clone(),
            ..self.call.facts()
        };
        let settle = Settle {
            call: facts,
            model: model.clone(),
            provider: self.entry.provider.name.clone(),
            usage,
            cost_nano_usd: price::cost(&usage, &self.entry.model.prices).0,
            estimated,
            abandoned: word == "abandoned",
            attempts: vec![Attempt { model, outcome: word.into(), ms }],
            latency_ms: ms,
            ..Settle::default()
        };
        settlement(&self.call, self.purpose, End::Settle(Box::new(settle)))
    }

    /// The answer is there and cannot be taken: our fault, so nothing is charged.
    pub fn overloaded(self, world: &impl World) -> Turn {
        self.told("overloaded", Outcome::Nothing, world);
        unmade(self.call, self.purpose, world)
    }

    /// The client left meanwhile: what was sent is charged by its input.
    pub fn abandon(mut self, world: &impl World) -> Vec<Settlement> {
        self.told("abandoned", Outcome::Nothing, world);
        let settlement = self.settled(None, "abandoned", world);
        let mut paid = std::mem::take(&mut self.call.side_calls);
        paid.push(settlement);
        paid
    }
}
