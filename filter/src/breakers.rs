//! Breakers and rests in Envoy's shared memory: one for all workers, surviving a reload. Names and numbers only, no secret.

use crate::host;
use crate::metrics::{count, set};
use proxium_flow::breaker::{Lane, Outcome, Permit, State};
use proxium_wire::metric::{BREAKER, BREAKER_STATE};
use proxium_wire::{Breaker as Settings, OpenBreaker};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// The credentials whose breaker is not closed, one a line: all workers, and those that a new filter brings, know the same.
const NOT_CLOSED: &str = "breakers";
/// A poll is no place for more; the oldest go.
const MOST_NOTED: usize = 256;
/// Whose breaker: the platform's credential, projects' own, calls for an embedding or a tier.
const WHOSE: [&str; 3] = ["platform", "projects", "side"];

thread_local! {
    /// Providers with a gauge.
    static TOLD: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// May this credential be called for this model now?
pub fn permit(lane: &Lane, now_ms: u64, claim_ms: u64) -> Permit {
    let rests_until_ms = host::update_shared(&rest_key(lane), |bytes| (instant(bytes), None));
    if rests_until_ms > now_ms {
        return Permit::Resting { wait_ms: rests_until_ms - now_ms };
    }
    let permit = host::update_shared(&breaker_key(lane), |bytes| {
        let Some(bytes) = bytes else { return (Permit::Call, None) };
        let mut state = State::from_bytes(bytes);
        let permit = state.permit(now_ms, claim_ms);
        (permit, (permit == Permit::Probe).then(|| state.to_bytes()))
    });
    if permit == Permit::Probe {
        note(lane);
        changed(lane, "half_open");
    }
    permit
}

/// Counts what came of a call.
pub fn report(lane: &Lane, outcome: Outcome, was_probe: bool, now_ms: u64, settings: &Settings) {
    if let Outcome::Rest(ms) = outcome {
        host::update_shared(&rest_key(lane), |bytes| {
            let until_ms = now_ms.saturating_add(ms);
            ((), (until_ms > instant(bytes)).then(|| until_ms.to_le_bytes().to_vec()))
        });
    }
    let change = host::update_shared(&breaker_key(lane), |bytes| {
        let before = bytes.map_or_else(State::default, State::from_bytes);
        let mut state = before;
        state.report(outcome, was_probe, now_ms, settings);
        (state.change(&before), (state != before).then(|| state.to_bytes()))
    });
    if let Some(change) = change {
        note(lane);
        changed(lane, change);
    }
}

/// All that are not closed.
pub fn not_closed() -> Vec<OpenBreaker> {
    host::update_shared(NOT_CLOSED, |bytes| {
        let noted = lines(bytes);
        let state = |credential: &String| host::update_shared(&key_of(credential), |bytes| (bytes.map(State::from_bytes), None));
        let open = |credential: &String| {
            let until_ms = state(credential)?.open_until_ms()?;
            Some(OpenBreaker { credential: credential.clone(), until_ms })
        };
        let all: Vec<OpenBreaker> = noted.iter().filter_map(open).collect();
        let write = (all.len() < noted.len()).then(|| text(all.iter().map(|breaker| breaker.credential.as_str())));
        (all, write)
    })
}

/// Sets the gauges: 0 closed, 1 half-open, 2 open; of several, the worst. Each worker does so each second by what all of them share, so that
/// one who told of what is over is put right.
pub fn tell<'a>(providers: impl Iterator<Item = &'a str>, now_ms: u64) {
    let open = not_closed();
    let worst = |whose: &str, provider: &str| {
        let of_both = open.iter().filter(|breaker| self::whose(&breaker.credential) == (whose, provider));
        of_both.map(|breaker| if breaker.until_ms > now_ms { 2 } else { 1 }).max().unwrap_or_default()
    };
    // Not collected: that sorts first, by code of its own.
    let mut now = BTreeSet::new();
    now.extend(providers.map(str::to_owned));
    let told = TOLD.take();
    for whose in WHOSE {
        let gauge = |provider: &str, state| set(BREAKER_STATE, &[("breaker", whose), ("provider", provider)], state);
        now.iter().for_each(|provider| gauge(provider, worst(whose, provider)));
        // Envoy never forgets a statistic.
        told.iter().filter(|provider| !now.contains(*provider)).for_each(|provider| gauge(provider, 0));
    }
    TOLD.set(now);
}

fn whose(credential: &str) -> (&'static str, &str) {
    match credential.rsplit_once('/') {
        None => ("platform", credential),
        Some((before, provider)) if matches!(before.split('/').next(), Some("embedding" | "classifier")) => ("side", provider),
        Some((_, provider)) => ("projects", provider),
    }
}

/// What this Envoy calls itself towards the control plane: the same in all its VMs, another after each start.
pub fn envoy_id() -> String {
    host::update_shared("envoy", |known| match known {
        Some(id) => (String::from_utf8_lossy(id).into_owned(), None),
        None => {
            let id = host::random_id();
            (id.clone(), Some(id.into_bytes()))
        }
    })
}

/// After its state is written. It writes in any case: a worker that is about to take the credential away has to look again.
fn note(lane: &Lane) {
    host::update_shared(NOT_CLOSED, |bytes| {
        let mut noted = lines(bytes);
        noted.retain(|credential| *credential != lane.credential);
        noted.push(lane.credential.clone());
        let oldest = noted.len().saturating_sub(MOST_NOTED);
        ((), Some(text(noted.iter().skip(oldest).map(String::as_str))))
    });
}

fn lines(bytes: Option<&[u8]>) -> Vec<String> {
    String::from_utf8_lossy(bytes.unwrap_or_default()).lines().map(str::to_owned).collect()
}

fn text<'a>(credentials: impl Iterator<Item = &'a str>) -> Vec<u8> {
    credentials.flat_map(|credential| [credential, "\n"]).collect::<String>().into_bytes()
}

/// By provider, not by credential: projects come and go.
fn changed(lane: &Lane, state: &str) {
    count(BREAKER, &[("state", state), ("provider", lane.provider())]);
}

fn instant(bytes: Option<&[u8]>) -> u64 {
    bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn breaker_key(lane: &Lane) -> String {
    key_of(&lane.credential)
}

fn key_of(credential: &str) -> String {
    format!("breaker:{credential}")
}

fn rest_key(lane: &Lane) -> String {
    format!("rest:{}:{}", lane.credential, lane.model)
}
