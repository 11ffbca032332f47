//! What all requests of a VM share. It is found again by the control plane's cluster after a configuration reload, which makes a new root
//! context in the same VM.

use crate::group::Group;
use crate::outbox::{MAX_SETTLEMENTS, Outbox};
use crate::{breakers, host, observed, upstream};
use proxium_flow::breaker::{Lane, Outcome, Permit};
use proxium_flow::config::Config;
use proxium_flow::hits::Hits;
use proxium_flow::l1::L1;
use proxium_flow::snapshot::Snapshot;
use proxium_flow::stage::outcome::Report;
use proxium_flow::told::Told;
use proxium_flow::world::{KeyHash, KnownKey, World};
use proxium_wire::{KeyRecord, Settlement, SnapshotReply, change};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// A key record serves so long without being asked for again.
const KEY_FRESH_MS: u64 = 60_000;
/// That a key is unknown is believed so long: it may just have been made.
const UNKNOWN_FRESH_MS: u64 = 5_000;
/// Without a good poll for so long, a revocation could have been missed.
const POLL_TRUSTED_MS: u64 = 5_000;
/// Half of the key records and half of the unknown keys that are remembered.
const GENERATION: usize = 8_192;
/// Bodies and answers in this VM. Envoy traps a VM near 1 GiB; copies on their way need the rest.
const BUDGET_BYTES: u64 = 384 << 20;

thread_local! {
    static VMS: RefCell<BTreeMap<String, Rc<Vm>>> = const { RefCell::new(BTreeMap::new()) };
}

/// The shared state of all requests that use one control plane.
#[derive(Default)]
pub struct Vm {
    /// Settlements not acknowledged yet.
    pub outbox: RefCell<Outbox>,
    /// What of it the gauge knows.
    pub told_pending: Cell<i64>,
    snapshot: RefCell<Option<Rc<Snapshot>>>,
    cursor: RefCell<String>,
    polled_ms: Cell<u64>,
    changed_ms: Cell<u64>,
    l1: RefCell<L1>,
    hits: RefCell<Hits>,
    known: RefCell<Generations>,
    unknown: RefCell<Generations>,
    held_bytes: Cell<u64>,
}

impl Vm {
    /// The state for the control plane behind this cluster.
    pub fn of(cluster: &str) -> Rc<Self> {
        VMS.with(|vms| vms.borrow_mut().entry(cluster.to_owned()).or_default().clone())
    }

    /// What the next poll should say is known.
    pub fn known_revision(&self) -> (String, String) {
        let revision = self.snapshot.borrow().as_ref().map(|snapshot| snapshot.revision.clone()).unwrap_or_default();
        (revision, self.cursor.borrow().clone())
    }

    /// Takes the answer of a poll.
    pub fn learn(&self, reply: SnapshotReply, now_ms: u64) {
        if let Some(catalog) = reply.catalog {
            log::info!("catalog {} is live", reply.catalog_revision.get(..12).unwrap_or(&reply.catalog_revision));
            *self.snapshot.borrow_mut() = Some(Rc::new(Snapshot::new(reply.catalog_revision, catalog)));
        }
        if reply.forget_all || !reply.changes.is_empty() {
            self.changed_ms.set(now_ms);
        }
        if reply.forget_all || reply.forget_answers {
            self.l1.borrow_mut().forget_all(now_ms);
        } else {
            self.l1.borrow_mut().forget(&reply.changes, now_ms);
        }
        let mut known = self.known.borrow_mut();
        let mut unknown = self.unknown.borrow_mut();
        if reply.forget_all {
            (*known, *unknown) = Default::default();
        }
        for change in reply.changes.into_iter().filter_map(|change| change.what) {
            match change {
                change::What::KeyHash(hash) => {
                    if let Ok(hash) = KeyHash::try_from(hash) {
                        known.remove(&hash);
                        unknown.remove(&hash);
                    }
                }
                change::What::Project(project) => known.forget_project(&project),
                change::What::Purge(_) | change::What::Answer(_) => {}
            }
        }
        *self.cursor.borrow_mut() = reply.cursor;
        self.polled_ms.set(now_ms);
    }

    /// Takes these settings.
    pub fn configure(&self, config: &Config) {
        self.l1.borrow_mut().set_max_bytes(config.l1_bytes);
    }

    /// Gives free hits that were counted to the outbox, once it is time or `at_once`.
    pub fn tell_hits(&self, now_ms: u64, at_once: bool) {
        let mut hits = self.hits.borrow_mut();
        if at_once || hits.due(now_ms) {
            let mut outbox = self.outbox.borrow_mut();
            hits.take(host::random_id).into_iter().for_each(|hits| outbox.post(hits, now_ms));
        }
    }

    /// The snapshot poll would have told of a change.
    fn hears_of_changes(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.polled_ms.get()) <= POLL_TRUSTED_MS
    }

    /// Takes `bytes` of the budget; `false` when it is used up.
    pub fn hold(&self, bytes: u64) -> bool {
        let held = self.held_bytes.get().saturating_add(bytes);
        let fits = held <= BUDGET_BYTES;
        if fits {
            self.held_bytes.set(held);
        }
        fits
    }

    /// Gives bytes of the budget back.
    pub fn free(&self, bytes: u64) {
        self.held_bytes.set(self.held_bytes.get().saturating_sub(bytes));
    }
}

#[derive(Clone)]
struct Learned {
    record: Option<Rc<KeyRecord>>,
    at_ms: u64,
}

/// A bounded memory that forgets the older half at once: no list to keep in order, no way for unknown keys to push out known ones.
#[derive(Default)]
struct Generations {
    young: HashMap<KeyHash, Learned>,
    old: HashMap<KeyHash, Learned>,
}

impl Generations {
    fn get(&self, hash: &KeyHash) -> Option<&Learned> {
        self.young.get(hash).or_else(|| self.old.get(hash))
    }

    fn insert(&mut self, hash: KeyHash, learned: Learned) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, learned);
    }

    fn remove(&mut self, hash: &KeyHash) {
        self.young.remove(hash);
        self.old.remove(hash);
    }

    fn forget_project(&mut self, project: &str) {
        for learned in [&mut self.young, &mut self.old] {
            learned.retain(|_, learned| learned.record.as_ref().is_none_or(|key| key.project != project));
        }
    }
}

/// The flow's world inside Envoy.
pub struct Host {
    /// The plugin configuration.
    pub config: Rc<Config>,
    /// The shared state.
    pub vm: Rc<Vm>,
    /// Calls of the control plane on their way.
    pub group: Group,
}

impl World for Host {
    fn now_ms(&self) -> u64 {
        host::now_ms()
    }

    fn new_id(&self) -> String {
        host::random_id()
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn snapshot(&self) -> Option<Rc<Snapshot>> {
        self.vm.snapshot.borrow().clone()
    }

    fn learn_snapshot(&self, reply: SnapshotReply) {
        self.vm.learn(reply, host::now_ms());
    }

    fn known_key(&self, hash: &KeyHash) -> Option<KnownKey> {
        let now_ms = host::now_ms();
        let polled = self.vm.hears_of_changes(now_ms);
        let age_ms = |learned: &Learned| now_ms.saturating_sub(learned.at_ms);
        if let Some(learned) = self.vm.known.borrow().get(hash) {
            return Some(KnownKey { record: learned.record.clone(), fresh: polled && age_ms(learned) <= KEY_FRESH_MS });
        }
        let unknown = self.vm.unknown.borrow();
        unknown.get(hash).map(|learned| KnownKey { record: None, fresh: polled && age_ms(learned) <= UNKNOWN_FRESH_MS })
    }

    fn learn_key(&self, hash: KeyHash, record: Option<Rc<KeyRecord>>, asked_ms: u64) {
        let learned = Learned { record, at_ms: asked_ms };
        if learned.record.is_some() && asked_ms <= self.vm.changed_ms.get() {
            self.vm.known.borrow_mut().remove(&hash);
        } else if learned.record.is_some() {
            self.vm.unknown.borrow_mut().remove(&hash);
            self.vm.known.borrow_mut().insert(hash, learned);
        } else {
            self.vm.known.borrow_mut().remove(&hash);
            self.vm.unknown.borrow_mut().insert(hash, learned);
        }
    }

    fn l1(&self) -> Option<&RefCell<L1>> {
        (self.vm.hears_of_changes(host::now_ms()) && !self.outbox_full()).then_some(&self.vm.l1)
    }

    fn count_hit(&self, hit: Settlement) {
        self.vm.hits.borrow_mut().add(hit, host::now_ms());
    }

    fn outbox_full(&self) -> bool {
        self.vm.outbox.borrow().len() >= MAX_SETTLEMENTS
    }

    fn permit(&self, lane: &Lane, claim_ms: u64) -> Permit {
        breakers::permit(lane, host::now_ms(), claim_ms)
    }

    fn attempt_report(&self, attempt: usize) -> Option<Report> {
        Report::read(&host::state(&upstream::report_key(attempt))?)
    }

    fn tell(&self, told: Told<'_>) {
        observed::told(told);
    }

    fn report(&self, lane: &Lane, outcome: Outcome, was_probe: bool) {
        if let Some(snapshot) = self.snapshot() {
            breakers::report(lane, outcome, was_probe, host::now_ms(), &snapshot.catalog.breaker);
        }
    }
}
