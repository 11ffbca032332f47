//! A stream through Envoy's router: the attempts are planned ahead, and the router fails over until the first event.
//!
//! The upstream filter rewrites each attempt by its [`Hop`](crate::hop::Hop), holds a 200 until its first event, and reports what it saw. Where the router
//! cannot go on (no healthy upstream, overflow), the rest of the plan is called by callouts.

use super::attempt::{self, CLAIM_SLACK_MS, Permitted, TIMER_SLACK_MS, credential_refused, permitted};
use super::call::Call;
use super::outcome::{ByStatus, Miss, by_status};
use super::record;
use super::stream::Streaming;
use crate::breaker::{Lane, Outcome};
use crate::config::Streams;
use crate::deadline::Share;
use crate::flow::{Effect, Stage, Turn};
use crate::hop::{SHARED_HEADERS, credential_header};
use crate::message::{Answer, Failure, Headers, Route};
use crate::refusal::Refusal;
use crate::snapshot::Entry;
use crate::world::World;
use proxium_wire::Settlement;
use std::rc::Rc;

/// A stream that waits for its first event.
#[derive(Debug)]
pub struct Routing {
    call: Box<Call>,
    hops: Vec<Planned>,
    share: Share,
    sent_ms: u64,
    /// The answer's body is being read: it is the answer of the hop of this number.
    returns: Option<(usize, Answer)>,
}

/// An attempt of the router.
#[derive(Debug)]
struct Planned {
    /// Its place in the call's plan.
    at: usize,
    entry: Rc<Entry>,
    lane: Lane,
    is_probe: bool,
    dropped: Vec<String>,
}

/// Whether the call goes this way: a stream, a render with routes, and every entry's cluster with the upstream filter.
pub fn applies(call: &Call, world: &impl World) -> bool {
    call.request.stream
        && world.config().streams == Streams::Router
        && call.plan.iter().all(|entry| !entry.provider.stream_cluster.is_empty())
}

/// Plans the attempts and lets the request on to the router.
pub fn enter(mut call: Box<Call>, world: &impl World) -> Turn {
    let now_ms = world.now_ms();
    let first_byte_ms = call.plan.iter().map(|entry| entry.model.first_byte_timeout_ms).max().unwrap_or_default();
    let Some(share) = call.deadline.share(now_ms, first_byte_ms, call.plan.len() > 1) else {
        return attempt::run(call, 0, world);
    };
    let (mut hops, mut state) = (Vec::new(), Vec::new());
    for (at, entry) in call.plan.clone().into_iter().enumerate() {
        let hop = call.hop(&entry).and_then(|hop| Ok((hop.dropped(&call.body)?, hop)));
        let (dropped, hop) = match hop {
            Ok(hop) => hop,
            Err(refusal) => {
                call.skip(&entry, "cannot_carry", None, world);
                call.cannot_carry = Some(refusal);
                continue;
            }
        };
        let Some(Permitted { lane, secret, is_probe }) = permitted(&mut call, &entry, share.timeout_ms + CLAIM_SLACK_MS, world) else {
            continue;
        };
        if is_probe && !hops.is_empty() {
            // Whether a later hop is reached is not known now, and a probe must be made.
            world.report(&lane, Outcome::Nothing, true);
            call.skip(&entry, "breaker_open", None, world);
            continue;
        }
        let number = hops.len();
        state.push((format!("proxium.cluster{number}"), entry.provider.stream_cluster.clone()));
        state.push((format!("proxium.hop{number}"), serde_json::to_string(&hop).unwrap_or_default()));
        if let Some(secret) = secret {
            let (name, value) = credential_header(entry.provider.dialect(), &secret);
            state.push((format!("proxium.credential{number}"), format!("{name}: {value}")));
        }
        hops.push(Planned { at, entry, lane, is_probe, dropped });
    }
    if hops.is_empty() {
        return attempt::finish(&mut call, world);
    }
    let mut headers = Headers::new();
    headers.copy_allowed(&call.head.headers, SHARED_HEADERS);
    headers.set("accept-encoding", "identity");
    headers.add("x-envoy-max-retries", (hops.len() - 1).to_string());
    headers.add("x-envoy-upstream-rq-per-try-timeout-ms", share.timeout_ms.to_string());
    headers.add("x-envoy-upstream-rq-timeout-ms", call.deadline.left_ms(now_ms).to_string());
    let body = call.body_was_changed().then(|| call.body.text.clone().into_bytes());
    let routing = Routing { call, hops, share, sent_ms: now_ms, returns: None };
    Turn::wait(Stage::Routing(Box::new(routing)), Effect::Route(Route { state, headers, body }))
}

impl Routing {
    /// Takes the head of what the router has: the first event of a stream, or the last attempt's failure, or Envoy's own.
    pub fn head(mut self, answer: Answer, world: &impl World) -> Turn {
        // The last attempt that began; none if Envoy could not even try.
        let last = (0..self.hops.len()).rev().find(|number| world.attempt_report(*number).is_some());
        let mut loud = Vec::new();
        for number in 0..last.unwrap_or_default() {
            let miss = self.miss(number, None, world);
            loud.extend(self.note(number, &miss.word, miss.outcome, miss.retry_after_ms, world));
        }
        let Some(last) = last else { return self.go_on(0, loud, world) };
        if answer.status == 200 && answer.headers.get("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let mut turn = self.stream(last, &answer, world);
            turn.effects.extend(loud);
            return turn;
        }
        // Another status is Envoy's own: after this hop it could not reach the next.
        let status = world.attempt_report(last).and_then(|report| report.status).filter(|status| *status == answer.status);
        match status.map(|status| by_status(status, None)) {
            Some(ByStatus::NotFound | ByStatus::Return) => {
                self.returns = Some((last, answer));
                let mut turn = Turn::wait(Stage::Routing(Box::new(self)), Effect::ReadAnswer);
                turn.effects.extend(loud);
                turn
            }
            _ => {
                let miss = self.miss(last, Some(answer.status), world);
                if miss.word == Failure::Timeout.name() && self.share.cut_by_caller {
                    self.call.cut_by_caller = self.hops.get(last).map(|hop| hop.entry.clone());
                }
                loud.extend(self.note(last, &miss.word, miss.outcome, miss.retry_after_ms, world));
                self.go_on(last + 1, loud, world)
            }
        }
    }

    /// Takes the body of an answer that is the caller's own fault, or of a 404.
    pub fn body(mut self, body: Vec<u8>, world: &impl World) -> Turn {
        let Some((number, answer)) = self.returns.take() else { return Turn::done(Vec::new()) };
        let status = answer.status;
        self.note(number, &format!("status_{status}"), Outcome::Nothing, None, world);
        let answer = Answer { body, ..answer };
        match self.hops.get(number) {
            Some(hop) if status == 404 && number + 1 < self.call.plan.len() => {
                self.call.not_found = Some(self.call.error_in_the_clients_words(&hop.entry, answer));
                self.go_on(number + 1, Vec::new(), world)
            }
            Some(hop) => attempt::hand_back(&self.call, &hop.entry, answer, world),
            None => Turn::done(Vec::new()),
        }
    }

    /// The client left before the first event: what was sent is charged by its input, if anything was.
    pub fn abandon(mut self, world: &impl World) -> Option<Settlement> {
        let reached = (0..self.hops.len()).rev().find(|number| world.attempt_report(*number).is_some());
        self.give_probes_back(0, world);
        match reached.and_then(|number| self.hops.get(number)).map(|hop| hop.entry.clone()) {
            Some(entry) => {
                let ms = world.now_ms().saturating_sub(self.sent_ms);
                self.call.attempted(&entry, "abandoned", ms, world);
                record::abandoned(&self.call, &entry, world.now_ms())
            }
            None => self.call.release(),
        }
    }

    fn stream(self, number: usize, answer: &Answer, world: &impl World) -> Turn {
        let began_ms = world.attempt_report(number).map_or(self.sent_ms, |report| report.began_ms);
        self.give_probes_back(number + 1, world);
        match self.hops.into_iter().nth(number) {
            Some(Planned { entry, lane, is_probe, dropped, .. }) => {
                Streaming::begin(self.call, entry, lane, is_probe, began_ms, answer, &dropped)
            }
            None => Turn::done(Vec::new()),
        }
    }

    /// Why a hop is not the answer: by its report, else by how Envoy's own answer says or how long it took.
    fn miss(&self, number: usize, envoys_status: Option<u16>, world: &impl World) -> Miss {
        let Some(report) = world.attempt_report(number) else { return Miss::failure(Failure::Connect.name()) };
        if let Some(word) = &report.word {
            return Miss::failure(word);
        }
        match report.status.map(|status| by_status(status, report.retry_after_ms)) {
            Some(ByStatus::Next(miss)) => return miss,
            Some(ByStatus::NotFound) => return Miss { outcome: Outcome::Nothing, ..Miss::failure("status_404") },
            // No status, or a good one that no event followed.
            Some(ByStatus::Good | ByStatus::Return) | None => {}
        }
        let ended_ms = world.attempt_report(number + 1).map_or_else(|| world.now_ms(), |next| next.began_ms);
        if envoys_status == Some(504) || ended_ms.saturating_sub(report.began_ms) + TIMER_SLACK_MS >= self.share.timeout_ms {
            let own_ms = self.hops.get(number).map_or(0, |hop| hop.entry.model.first_byte_timeout_ms);
            return Miss::timeout(self.share, own_ms);
        }
        Miss::failure(if report.status.is_some() { Failure::Reset } else { Failure::Connect }.name())
    }

    /// Notes what came of a hop, for the ledger, the breaker and, when its credential was refused, the operator.
    fn note(&mut self, number: usize, word: &str, outcome: Outcome, wait_ms: Option<u64>, world: &impl World) -> Option<Effect> {
        let hop = self.hops.get(number)?;
        let began_ms = world.attempt_report(number).map_or(self.sent_ms, |report| report.began_ms);
        let ended_ms = world.attempt_report(number + 1).map_or_else(|| world.now_ms(), |next| next.began_ms);
        world.report(&hop.lane, outcome, hop.is_probe);
        self.call.attempted(&hop.entry, word, ended_ms.saturating_sub(began_ms), world);
        self.call.name_wait(wait_ms);
        credential_refused(&hop.lane, word)
    }

    /// Calls the rest of the plan, from hop `number` on, by callouts.
    fn go_on(self, number: usize, loud: Vec<Effect>, world: &impl World) -> Turn {
        self.give_probes_back(number, world);
        let at = self.hops.get(number).map_or(self.call.plan.len(), |hop| hop.at);
        let mut turn = attempt::run(self.call, at, world);
        turn.effects.extend(loud);
        turn
    }

    /// Hops from `number` on were not reached.
    fn give_probes_back(&self, number: usize, world: &impl World) {
        for hop in self.hops.iter().skip(number).filter(|hop| hop.is_probe) {
            world.report(&hop.lane, Outcome::Nothing, true);
        }
    }

    /// Refuses the call whose answer could not be read for lack of memory.
    pub fn overloaded(self, world: &impl World) -> Turn {
        self.give_probes_back(0, world);
        self.call.refuse_after(&Refusal::Overloaded, self.call.release())
    }
}
