//! The calls to providers: for each entry of the plan the deadline, the credential and the breaker are checked before it is called.

use super::call::Call;
use super::outcome::{Miss, Verdict, judge};
use super::record;
use crate::breaker::{Lane, Outcome, Permit};
use crate::deadline::Share;
use crate::flow::{Effect, Stage, Turn};
use crate::hop::{Hop, SHARED_HEADERS, credential_header};
use crate::message::{Answer, Callout, Failure, Headers, Reply, Response};
use crate::refusal::{ProvidersFailed, Refusal};
use crate::snapshot::Entry;
use crate::speaks::Speaks;
use crate::told::Told;
use crate::translate;
use crate::world::World;
use proxium_wire::{Attempt, Settlement};
use std::rc::Rc;

/// Headers of a provider that go on to the client; the rest tells of the operator's account.
pub(super) const TO_CLIENT: &[&str] = &["content-type", "retry-after", "x-request-id", "request-id"];

/// A probe's claim outlives its attempt by this.
pub(super) const CLAIM_SLACK_MS: u64 = 1_000;

/// A timer and the wall clock may differ by this at the end of an attempt's time or of the deadline.
pub(super) const TIMER_SLACK_MS: u64 = 10;

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
    /// Parameters that this entry's dialect could not carry.
    dropped: Vec<String>,
}

/// Calls the first entry from `at` on that may be called; ends the call when there is none.
pub fn run(mut call: Box<Call>, mut at: usize, world: &impl World) -> Turn {
    while let Some(entry) = call.plan.get(at).cloned() {
        if counts_here(&call, &entry) {
            return record::counted(&call, &entry);
        }
        let now_ms = world.now_ms();
        let Some(share) = call.deadline.share(now_ms, entry.model.timeout_ms, at + 1 < call.plan.len()) else {
            return give_up(&call, &Refusal::DeadlineExceeded, world);
        };
        if let Some(Permitted { lane, secret, is_probe }) = permitted(&mut call, &entry, share.timeout_ms + CLAIM_SLACK_MS, world) {
            match callout(&call, &entry, secret.as_deref(), share) {
                Ok((callout, dropped)) => {
                    let attempting = Attempting { call, at, entry, lane, is_probe, share, sent_ms: now_ms, dropped };
                    return Turn::wait(Stage::Attempting(Box::new(attempting)), Effect::Call(callout));
                }
                Err(refusal) => {
                    world.report(&lane, Outcome::Nothing, is_probe);
                    call.skip(&entry, "cannot_carry", None, world);
                    call.cannot_carry = Some(refusal);
                }
            }
        }
        at += 1;
    }
    finish(&mut call, world)
}

/// Whether the tokens are estimated here: by a provider that cannot count, or with a project's own credential, which only comes with an
/// admission.
fn counts_here(call: &Call, entry: &Entry) -> bool {
    let route = &call.head.route;
    !route.reserves() && ((route.path)(Speaks::of(&entry.provider, route)).is_none() || credential(call, entry).is_none())
}

/// An entry that may be called.
pub(super) struct Permitted {
    pub lane: Lane,
    pub secret: Option<String>,
    pub is_probe: bool,
}

/// Checks an entry's credential and breaker; an entry that may not be called is noted as skipped.
pub(super) fn permitted(call: &mut Call, entry: &Entry, claim_ms: u64, world: &impl World) -> Option<Permitted> {
    let Some((lane, secret)) = credential(call, entry) else {
        call.skip(entry, "no_credential", None, world);
        return None;
    };
    match world.permit(&lane, claim_ms) {
        Permit::Open { wait_ms } => call.skip(entry, "breaker_open", Some(wait_ms), world),
        Permit::Resting { wait_ms } => call.skip(entry, "resting", Some(wait_ms), world),
        permit @ (Permit::Call | Permit::Probe) => return Some(Permitted { lane, secret, is_probe: permit == Permit::Probe }),
    }
    None
}

impl Attempting {
    /// Takes the provider's answer.
    pub fn reply(mut self, reply: Reply, world: &impl World) -> Turn {
        let now_ms = world.now_ms();
        let timed_out = matches!(reply, Reply::Failed(Failure::Timeout));
        let verdict = match judge(reply, self.share, &self.entry, &self.call.head.route, now_ms) {
            Verdict::Answered(answer, read) => match self.in_the_clients_words(answer, now_ms) {
                Some(answer) => Verdict::Answered(answer, read),
                None => Verdict::Next(Miss::failure("not_translatable")),
            },
            verdict => verdict,
        };
        let (word, outcome) = match &verdict {
            Verdict::Answered(..) => ("ok".to_owned(), Outcome::Success),
            Verdict::Next(miss) => (miss.word.clone(), miss.outcome),
            Verdict::NotFound(_) => ("status_404".to_owned(), Outcome::Nothing),
            Verdict::Return(answer) => (format!("status_{}", answer.status), Outcome::Nothing),
        };
        world.report(&self.lane, outcome, self.is_probe);
        let loud = credential_refused(&self.lane, &word);
        self.call.attempted(&self.entry, &word, now_ms.saturating_sub(self.sent_ms), world);
        let mut turn = match verdict {
            Verdict::Answered(answer, read) => record::answered(&self.call, &self.entry, answer, &read, &self.dropped, world),
            Verdict::Return(answer) => hand_back(&self.call, &self.entry, answer, world),
            Verdict::NotFound(answer) => {
                self.call.not_found = Some(self.call.error_in_the_clients_words(&self.entry, answer));
                run(self.call, self.at + 1, world)
            }
            Verdict::Next(miss) => {
                self.call.not_found = None;
                self.call.name_wait(miss.retry_after_ms);
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
        self.call.refuse_after(&Refusal::Overloaded, self.call.release())
    }

    /// The client left while the provider worked: the call slot stays, and the input is settled at this attempt's model.
    pub fn abandon(mut self, world: &impl World) -> Option<Settlement> {
        world.report(&self.lane, Outcome::Nothing, self.is_probe);
        let ms = world.now_ms().saturating_sub(self.sent_ms);
        self.call.attempted(&self.entry, "abandoned", ms, world);
        record::abandoned(&self.call, &self.entry, world.now_ms())
    }

    fn in_the_clients_words(&self, answer: Answer, now_ms: u64) -> Option<Answer> {
        let body = translate::answer(&self.call.between(&self.entry), &self.call.body, answer.body, now_ms / 1_000)?;
        Some(Answer { body, ..answer })
    }
}

impl Call {
    /// The attempt of an entry. Objects that a provider keeps are only reached on an account of the project's own.
    pub(super) fn hop(&self, entry: &Entry) -> Result<Hop, Refusal> {
        match &self.request.stored_reference {
            Some(at) if !self.owns_credential(&entry.provider.name) => Err(Refusal::invalid(
                at,
                format!(
                    "`{at}` names an object that the provider keeps, on an account that others share. Send its content, or register the project's \
                     own credential for this provider."
                ),
            )),
            _ => Hop::new(&self.head, entry),
        }
    }

    /// The project's own credential is used for this provider.
    pub(super) fn owns_credential(&self, provider: &str) -> bool {
        self.admitted.iter().flat_map(|admitted| &admitted.credentials).any(|credential| credential.provider == provider)
    }

    /// Notes what came of an entry.
    pub(super) fn attempted(&mut self, entry: &Entry, outcome: &str, ms: u64, world: &impl World) {
        world.tell(Told::Attempt { entry, outcome, ms });
        self.attempts.push(Attempt { model: entry.model.name.clone(), outcome: outcome.into(), ms });
    }

    pub(super) fn skip(&mut self, entry: &Entry, word: &str, wait_ms: Option<u64>, world: &impl World) {
        self.attempted(entry, word, 0, world);
        self.name_wait(wait_ms);
    }

    /// Remembers a wait if it is the smallest.
    pub(super) fn name_wait(&mut self, wait_ms: Option<u64>) {
        self.retry_after_ms = self.retry_after_ms.into_iter().chain(wait_ms).min();
    }

    pub(super) fn error_in_the_clients_words(&self, entry: &Entry, answer: Answer) -> Answer {
        let body = translate::refusal(self.head.route.dialect, entry.provider.dialect(), answer.status, answer.body, &self.head.request_id);
        Answer { body, ..answer }
    }
}

/// The operator is told when a provider refuses a credential.
pub(super) fn credential_refused(lane: &Lane, word: &str) -> Option<Effect> {
    let status = match word {
        "status_401" => 401,
        "status_403" => 403,
        _ => return None,
    };
    Some(Effect::CredentialRefused { credential: lane.credential.clone(), status })
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

/// The call of an entry, and the parameters it could not carry. A callout's answer is always unary; a stream is replayed from it.
fn callout(call: &Call, entry: &Entry, secret: Option<&str>, share: Share) -> Result<(Callout, Vec<String>), Refusal> {
    let hop = call.hop(entry)?;
    let outgoing = hop.body(&call.body, false)?;
    let mut headers = Headers::new();
    headers.add(":method", "POST");
    headers.add(":path", hop.path);
    headers.add(":authority", hop.authority);
    headers.copy_allowed(&call.head.headers, SHARED_HEADERS);
    if headers.get("content-type").is_none() {
        headers.add("content-type", "application/json");
    }
    // The bytes are read here: a compressed answer would hide its usage.
    headers.add("accept-encoding", "identity");
    for (name, value) in hop.headers {
        headers.add(name, value);
    }
    if let Some(secret) = secret {
        let (name, value) = credential_header(entry.provider.dialect(), secret);
        headers.add(name, value);
    }
    let callout =
        Callout { cluster: entry.provider.cluster.clone(), headers, body: outgoing.body, timeout_ms: share.timeout_ms, groups: false };
    Ok((callout, outgoing.dropped))
}

/// Returns a provider's own refusal, in the client's dialect.
pub(super) fn hand_back(call: &Call, entry: &Entry, answer: Answer, world: &impl World) -> Turn {
    returned(call, call.error_in_the_clients_words(entry, answer), world)
}

fn returned(call: &Call, answer: Answer, world: &impl World) -> Turn {
    let model = call.attempts.last().map(|attempt| attempt.model.as_str()).unwrap_or_default();
    let mut headers = call.answer_headers(model, call.cache_label());
    headers.copy_allowed(&answer.headers, TO_CLIENT);
    let response = Response { status: answer.status, headers, body: answer.body, code: None };
    Turn::done(owed(call, world).map(Effect::Post).into_iter().chain([Effect::Respond(response)]).collect())
}

/// Ends a call whose plan is used up.
pub(super) fn finish(call: &mut Call, world: &impl World) -> Turn {
    if let Some(answer) = call.not_found.take() {
        return returned(call, answer, world);
    }
    if let Some(refusal) = call.cannot_carry.take().filter(|_| call.attempts.iter().all(|attempt| attempt.outcome == "cannot_carry")) {
        return call.refuse_after(&refusal, call.release());
    }
    if call.deadline.left_ms(world.now_ms()) <= TIMER_SLACK_MS {
        return give_up(call, &Refusal::DeadlineExceeded, world);
    }
    give_up(call, &Refusal::ProvidersFailed(Box::new(failed(call))), world)
}

/// Ends a call that no entry answered.
fn give_up(call: &Call, refusal: &Refusal, world: &impl World) -> Turn {
    call.refuse_after(refusal, owed(call, world))
}

/// What a call owes that has no answer: nothing, unless the caller's own deadline ended an attempt that was sent.
fn owed(call: &Call, world: &impl World) -> Option<Settlement> {
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
