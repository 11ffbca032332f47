//! Settlements that must outlive their stream: kept until the control plane acknowledged them.
//!
//! It lives in the VM, not in a root context, so a configuration reload does not lose it; a VM that ends leaves it in Envoy's shared
//! memory, where its successors find it (both measured: see the README's decision log).
//! A settlement is idempotent by its id, so sending one twice is safe. An answer to be stored goes with the first try only: losing one
//! costs a miss.

use crate::metrics::record;
use proxium_wire::metric::SETTLE_LAG;
use proxium_wire::{SettleRequest, Settlement, settlement};
use std::collections::{HashMap, VecDeque};

/// Full: new calls are refused until it drains.
pub const MAX_SETTLEMENTS: usize = 20_000;
const BATCH: usize = 64;
/// A settlement that its own stream sent first waits so long for that acknowledgement.
const FIRST_TRY_MS: u64 = 1_000;
/// One that was sent in a batch is sent again when nothing was heard for so long.
const UNHEARD_MS: u64 = 5_000;
const FIRST_BACKOFF_MS: u64 = 200;
const MAX_BACKOFF_MS: u64 = 30_000;
const GIVE_UP_MS: u64 = 3_600_000;

struct Kept {
    settlement: Settlement,
    since_ms: u64,
    due_ms: u64,
    tries: u32,
}

/// The settlements of one VM that are not acknowledged yet.
#[derive(Default)]
pub struct Outbox {
    kept: HashMap<String, Kept>,
    /// Ids by age; those already acknowledged are passed over.
    order: VecDeque<String>,
    /// Batches on their way, by their callouts' tokens.
    flights: Vec<(u32, Vec<String>)>,
}

impl Outbox {
    /// Keeps a settlement; the next [`Outbox::batch`] has it.
    pub fn post(&mut self, settlement: Settlement, now_ms: u64) {
        self.keep(settlement, now_ms, now_ms);
    }

    /// Keeps a settlement that its stream is about to send itself.
    pub fn post_sent(&mut self, mut settlement: Settlement, now_ms: u64) {
        without_answer(&mut settlement);
        self.keep(settlement, now_ms, now_ms.saturating_add(FIRST_TRY_MS));
    }

    fn keep(&mut self, settlement: Settlement, now_ms: u64, due_ms: u64) {
        let id = settlement.id.clone();
        self.order.push_back(id.clone());
        self.kept.insert(id, Kept { settlement, since_ms: now_ms, due_ms, tries: 0 });
    }

    /// Gives away all that is kept.
    pub fn leave(&mut self) -> SettleRequest {
        let Self { kept, .. } = std::mem::take(self);
        SettleRequest { settlements: kept.into_values().map(|kept| kept.settlement).collect() }
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// This one is acknowledged.
    pub fn acknowledge(&mut self, id: &str, now_ms: u64) {
        if let Some(kept) = self.kept.remove(id) {
            record(SETTLE_LAG, &[], now_ms.saturating_sub(kept.since_ms));
        }
    }

    /// Settlements to send now, at most a batch; `None` when none is due.
    pub fn batch(&mut self, now_ms: u64) -> Option<(SettleRequest, Vec<String>)> {
        let mut ids = Vec::new();
        for _ in 0..self.order.len() {
            let Some(id) = self.order.pop_front() else { break };
            let Some(kept) = self.kept.get_mut(&id) else { continue };
            let alone = kept.tries > 3;
            if kept.due_ms <= now_ms && (ids.is_empty() || !alone) {
                kept.tries = kept.tries.saturating_add(1);
                kept.due_ms = now_ms.saturating_add(UNHEARD_MS);
                ids.push(id.clone());
            }
            self.order.push_back(id);
            // One that failed often may be what the batch fails of: it goes alone.
            if ids.len() >= BATCH || (alone && ids.len() == 1) {
                break;
            }
        }
        let mut settlements = Vec::with_capacity(ids.len());
        for id in &ids {
            if let Some(kept) = self.kept.get_mut(id) {
                settlements.push(kept.settlement.clone());
                without_answer(&mut kept.settlement);
            }
        }
        (!ids.is_empty()).then_some((SettleRequest { settlements }, ids))
    }

    /// These are on their way under this token.
    pub fn sent(&mut self, token: u32, ids: Vec<String>) {
        self.flights.push((token, ids));
    }

    /// What became of a flight; those given up after an hour are returned, to be told loudly.
    pub fn landed(&mut self, token: u32, acknowledged: bool, now_ms: u64) -> Vec<String> {
        let Some(flight) = self.flights.iter().position(|(flight, _)| *flight == token) else { return Vec::new() };
        let (_, ids) = self.flights.swap_remove(flight);
        if acknowledged {
            ids.iter().for_each(|id| self.acknowledge(id, now_ms));
            return Vec::new();
        }
        self.failed(ids, now_ms)
    }

    /// These could not be sent.
    pub fn failed(&mut self, ids: Vec<String>, now_ms: u64) -> Vec<String> {
        let mut given_up = Vec::new();
        for id in ids {
            let Some(kept) = self.kept.get_mut(&id) else { continue };
            if now_ms.saturating_sub(kept.since_ms) >= GIVE_UP_MS {
                self.kept.remove(&id);
                given_up.push(id);
            } else {
                let backoff_ms = FIRST_BACKOFF_MS.saturating_mul(1 << kept.tries.min(10)).min(MAX_BACKOFF_MS);
                kept.due_ms = now_ms.saturating_add(backoff_ms);
            }
        }
        given_up
    }
}

fn without_answer(settlement: &mut Settlement) {
    if let Some(settlement::End::Settle(settle)) = &mut settlement.end {
        settle.store = None;
    }
}
