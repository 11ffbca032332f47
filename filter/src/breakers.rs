//! Breakers and rests in Envoy's shared memory: one for all workers, surviving a reload. Names and numbers only, no secret.

use crate::host;
use crate::metrics::count;
use proxium_flow::breaker::{Lane, Outcome, Permit, State};
use proxium_wire::metric::BREAKER;
use proxium_wire::{Breaker as Settings, OpenBreaker};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// A poll is no place for more.
const MOST_NOTED: usize = 256;

thread_local! {
    /// Credentials whose breaker this VM saw open.
    static NOTED: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
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
    if matches!(permit, Permit::Probe | Permit::Open { .. }) {
        note(lane);
    }
    if permit == Permit::Probe {
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

/// Breakers that this VM saw open and that still are not closed; the VMs of an Envoy together know all.
pub fn not_closed() -> Vec<OpenBreaker> {
    NOTED.with_borrow_mut(|noted| {
        let mut all = Vec::new();
        noted.retain(|credential| {
            let state = host::update_shared(&key_of(credential), |bytes| (bytes.map(State::from_bytes), None));
            let until_ms = state.and_then(|state| state.open_until_ms());
            all.extend(until_ms.map(|until_ms| OpenBreaker { credential: credential.clone(), until_ms }));
            until_ms.is_some()
        });
        all
    })
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

fn note(lane: &Lane) {
    NOTED.with_borrow_mut(|noted| {
        if noted.len() < MOST_NOTED {
            noted.insert(lane.credential.clone());
        }
    });
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
