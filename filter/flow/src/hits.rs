//! Free hits that were answered without a word to the control plane, counted until they are told in batches.

use prost::Message;
use proxium_wire::{Settlement, settlement::End};
use std::collections::BTreeMap;

/// A batch is told after so long.
const TOLD_AFTER_MS: u64 = 1_000;
/// Or as soon as it has so many kinds: senders and end users are named by clients.
const MAX_KINDS: usize = 1_000;

/// The hits since the last batch, by everything the ledger tells of them.
#[derive(Default)]
pub struct Hits {
    kinds: BTreeMap<Vec<u8>, Settlement>,
    since_ms: u64,
}

impl Hits {
    /// Counts one more; `hit` without an id, its count 1.
    pub fn add(&mut self, mut hit: Settlement, now_ms: u64) {
        let Some(End::Hits(of)) = &mut hit.end else { return };
        let started_at_ms = std::mem::take(&mut of.call.started_at_ms);
        let kind = hit.encode_to_vec();
        if self.kinds.is_empty() {
            self.since_ms = now_ms;
        }
        if let Some(End::Hits(known)) = self.kinds.get_mut(&kind).and_then(|known| known.end.as_mut()) {
            known.count = known.count.saturating_add(1);
            return;
        }
        if let Some(End::Hits(of)) = &mut hit.end {
            of.call.started_at_ms = started_at_ms;
        }
        self.kinds.insert(kind, hit);
    }

    /// It is time to tell them.
    #[must_use]
    pub fn due(&self, now_ms: u64) -> bool {
        !self.kinds.is_empty() && (self.kinds.len() >= MAX_KINDS || now_ms.saturating_sub(self.since_ms) >= TOLD_AFTER_MS)
    }

    /// Gives them away, each kind under an id of its own.
    pub fn take(&mut self, mut new_id: impl FnMut() -> String) -> Vec<Settlement> {
        let kinds = std::mem::take(&mut self.kinds);
        kinds.into_values().map(|hits| Settlement { id: format!("hits_{}", new_id()), ..hits }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxium_wire::Call;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn hit(key_id: &str, started_at_ms: u64) -> Settlement {
        let call = Call { started_at_ms, ..Call::default() };
        let end = End::Hits(proxium_wire::Hits { call, model: "m".into(), count: 1 });
        Settlement { key_id: key_id.into(), end: Some(end), ..Settlement::default() }
    }

    #[test]
    fn hits_that_are_alike_are_told_as_one_each_batch_under_ids_of_its_own() {
        let mut hits = Hits::default();
        assert!(!hits.due(9_999));
        for (key, at) in [("a", 5), ("b", 6), ("a", 7)] {
            hits.add(hit(key, at), at);
        }
        assert!(!hits.due(1_004));
        assert!(hits.due(1_005));
        let mut ids = 0..;
        let told = hits.take(|| ids.next().unwrap().to_string());
        let of = |settlement: &Settlement| match &settlement.end {
            Some(End::Hits(hits)) => (settlement.id.clone(), settlement.key_id.clone(), hits.count, hits.call.started_at_ms),
            _ => panic!(),
        };
        assert_eq!(told.iter().map(of).collect::<Vec<_>>(), [("hits_0".into(), "a".into(), 2, 5), ("hits_1".into(), "b".into(), 1, 6)]);
        assert!(hits.take(String::new).is_empty());
    }

    #[test]
    fn many_kinds_are_told_at_once() {
        let mut hits = Hits::default();
        (0..1_000).for_each(|key| hits.add(hit(&key.to_string(), 1), 1));
        assert!(hits.due(1));
    }
}
