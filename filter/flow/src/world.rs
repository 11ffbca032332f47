//! What the flow asks of the world and is told at once. What takes time is an [`crate::Effect`] instead.

use crate::breaker::{Lane, Outcome, Permit};
use crate::config::Config;
use crate::l1::L1;
use crate::snapshot::Snapshot;
use crate::stage::outcome::Report;
use crate::told::Told;
use proxium_wire::{KeyRecord, Settlement};
use std::cell::RefCell;
use std::rc::Rc;

/// SHA-256 of a key.
pub type KeyHash = [u8; 32];

/// What is remembered of a key.
#[derive(Clone, Debug)]
pub struct KnownKey {
    /// The record; `None`: the control plane did not know the key.
    pub record: Option<Rc<KeyRecord>>,
    /// Young enough, and the snapshot poll would have told of a change. A stale record serves only without a control plane.
    pub fresh: bool,
}

/// The host of the flow; a test has its own.
pub trait World {
    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;
    /// A new id, never given before: 32 hexadecimal digits.
    fn new_id(&self) -> String;
    /// The plugin configuration.
    fn config(&self) -> &Config;
    /// The newest catalog, when there is one.
    fn snapshot(&self) -> Option<Rc<Snapshot>>;
    /// What the answer to the snapshot poll brought.
    fn learn_snapshot(&self, reply: proxium_wire::SnapshotReply);
    /// What is remembered of this key.
    fn known_key(&self, hash: &KeyHash) -> Option<KnownKey>;
    /// Remembers a key as it was at `asked_ms`; not if anything changed since, for the record may be older than the change.
    fn learn_key(&self, hash: KeyHash, record: Option<Rc<KeyRecord>>, asked_ms: u64);
    /// No settlement more can be kept: take no new call.
    fn outbox_full(&self) -> bool;
    /// May this credential be called for this model now? A probe's claim ends by itself after `claim_ms`.
    fn permit(&self, lane: &Lane, claim_ms: u64) -> Permit;
    /// What the upstream filter told of an attempt of the router, from 0.
    fn attempt_report(&self, attempt: usize) -> Option<Report>;
    /// What came of a permitted call.
    fn report(&self, lane: &Lane, outcome: Outcome, was_probe: bool);
    /// The answers kept in this worker; `None` when it must not be trusted: changes may have been missed, or hits could not be told.
    fn l1(&self) -> Option<&RefCell<L1>> {
        None
    }
    /// Counts a free hit that the control plane does not hear of otherwise; see [`crate::hits`].
    fn count_hit(&self, _hit: Settlement) {}
    /// For the operator; the flow does not depend on it.
    fn tell(&self, _told: Told<'_>) {}
}
