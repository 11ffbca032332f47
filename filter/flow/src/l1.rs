//! Answers kept in the worker: a hot exact hit needs no word to anybody.
//!
//! An entry comes from a free hit in Redis, ends with it at the latest, and is asked for again after a minute whatever happens. The
//! snapshot poll tells which to forget before that. The look-up compares the whole key material; its hash is keyed with random bytes, so
//! that no client can choose what collides.

use proxium_wire::{Change, Hit, Purge, StoredAnswer, change::What};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// An entry serves so long without Redis being asked again.
const FRESH_MS: u64 = 60_000;
/// No entry may take more than this part of the room.
const LARGEST_PART: usize = 8;
/// About what an entry takes beside its texts.
const OVERHEAD: usize = 256;

struct Entry {
    project: String,
    /// The exact key in Redis.
    cache_key: [u8; 32],
    answer: Rc<StoredAnswer>,
    until_ms: u64,
}

#[derive(Default)]
struct Generation {
    entries: HashMap<Box<[u8]>, Entry>,
    bytes: usize,
}

impl Generation {
    fn take(&mut self, material: &[u8]) -> Option<Entry> {
        let entry = self.entries.remove(material)?;
        self.bytes = self.bytes.saturating_sub(size(material, &entry.answer));
        Some(entry)
    }

    fn forget(&mut self, matches: impl Fn(&Entry) -> bool) {
        let bytes = &mut self.bytes;
        self.entries.retain(|material, entry| {
            let stays = !matches(entry);
            if !stays {
                *bytes = bytes.saturating_sub(size(material, &entry.answer));
            }
            stays
        });
    }
}

fn size(material: &[u8], answer: &StoredAnswer) -> usize {
    material.len() + answer.body.len() + OVERHEAD
}

/// The answers of one worker. They are kept in two generations, of which the older is forgotten at once: what is used moves to the younger.
#[derive(Default)]
pub struct L1 {
    max_bytes: usize,
    young: Generation,
    old: Generation,
    changed_ms: u64,
}

impl L1 {
    /// Room for so much; 0: keeps nothing.
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
        if self.young.bytes + self.old.bytes > max_bytes {
            (self.young, self.old) = Default::default();
        }
    }

    /// The answer of this key material.
    pub fn find(&mut self, material: &[u8], now_ms: u64) -> Option<Rc<StoredAnswer>> {
        if let Some(entry) = self.young.entries.get(material) {
            return (now_ms < entry.until_ms).then(|| entry.answer.clone());
        }
        let entry = self.old.take(material).filter(|entry| now_ms < entry.until_ms)?;
        let answer = entry.answer.clone();
        self.insert(material.into(), entry);
        Some(answer)
    }

    /// Keeps a hit that was asked for at `asked_ms`; not if anything changed since, for the hit may be older than the change.
    pub fn keep(&mut self, material: Vec<u8>, project: &str, cache_key: [u8; 32], hit: &Hit, asked_ms: u64) {
        let free = hit.charged_nano_usd == 0 && hit.rate_limit.is_none();
        if !free || hit.expires_in_ms == 0 || asked_ms <= self.changed_ms || size(&material, &hit.answer) > self.max_bytes / LARGEST_PART {
            return;
        }
        let until_ms = asked_ms.saturating_add(hit.expires_in_ms.min(FRESH_MS));
        let entry = Entry { project: project.to_owned(), cache_key, answer: Rc::new(hit.answer.clone()), until_ms };
        self.insert(material.into(), entry);
    }

    fn insert(&mut self, material: Box<[u8]>, entry: Entry) {
        self.old.take(&material);
        self.young.take(&material);
        let bytes = size(&material, &entry.answer);
        if self.young.bytes + bytes > self.max_bytes / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.bytes += bytes;
        self.young.entries.insert(material, entry);
    }

    /// Forgets what changed, as the poll at `now_ms` told.
    pub fn forget(&mut self, changes: &[Change], now_ms: u64) {
        let (mut projects, mut purges, mut keys) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
        for change in changes.iter().filter_map(|change| change.what.as_ref()) {
            match change {
                What::KeyHash(_) => {}
                What::Project(project) => _ = projects.insert(project.as_bytes()),
                What::Purge(purge) => purges.push(purge),
                What::Answer(key) => _ = keys.insert(key.as_slice()),
            }
        }
        if projects.is_empty() && purges.is_empty() && keys.is_empty() {
            return;
        }
        self.changed_ms = now_ms;
        let goes = |entry: &Entry| {
            projects.contains(entry.project.as_bytes())
                || keys.contains(entry.cache_key.as_slice())
                || purges.iter().any(|purge| takes(purge, entry))
        };
        self.young.forget(goes);
        self.old.forget(goes);
    }

    /// Forgets everything.
    pub fn forget_all(&mut self, now_ms: u64) {
        self.changed_ms = now_ms;
        (self.young, self.old) = Default::default();
    }
}

fn takes(purge: &Purge, entry: &Entry) -> bool {
    let any_or = |wanted: &str, is: &str| wanted.is_empty() || wanted == is;
    purge.project == entry.project && any_or(&purge.model, &entry.answer.model) && any_or(&purge.request_id, &entry.answer.request_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const NOW_MS: u64 = 1_000_000;

    fn hit(model: &str, request_id: &str, bytes: usize) -> Hit {
        let answer = StoredAnswer { body: vec![b'x'; bytes], model: model.into(), cost_nano_usd: 1, request_id: request_id.into() };
        Hit { answer, expires_in_ms: 10_000, ..Hit::default() }
    }

    /// Keeps `material` as the answer of model `m` to call `r`, both numbered by its first byte.
    fn keep(l1: &mut L1, project: &str, material: u8, hit: &Hit, asked_ms: u64) {
        l1.keep(vec![material], project, [material; 32], hit, asked_ms);
    }

    fn filled() -> L1 {
        let mut l1 = L1::default();
        l1.set_max_bytes(1 << 20);
        for (project, material, model, id) in [("p", 1, "m1", "r1"), ("p", 2, "m2", "r2"), ("q", 3, "m1", "r3"), ("q", 4, "m2", "r1")] {
            keep(&mut l1, project, material, &hit(model, id, 10), NOW_MS);
        }
        l1
    }

    fn kept(l1: &mut L1) -> Vec<u8> {
        (0..=9).filter(|material| l1.find(&[*material], NOW_MS + 1).is_some()).collect()
    }

    #[test]
    fn an_entry_ends_with_its_time_in_redis_and_after_a_minute_at_the_latest() {
        let mut l1 = filled();
        assert!(l1.find(&[1], NOW_MS + 9_999).is_some());
        assert!(l1.find(&[1], NOW_MS + 10_000).is_none());
        keep(&mut l1, "p", 5, &Hit { expires_in_ms: 3_600_000, ..hit("m", "r", 1) }, NOW_MS);
        assert!(l1.find(&[5], NOW_MS + 59_999).is_some());
        assert!(l1.find(&[5], NOW_MS + 60_000).is_none());
    }

    #[test]
    fn a_charged_hit_and_one_of_unknown_end_are_not_kept() {
        let mut l1 = filled();
        keep(&mut l1, "p", 5, &Hit { charged_nano_usd: 1, ..hit("m", "r", 1) }, NOW_MS);
        keep(&mut l1, "p", 6, &Hit { rate_limit: Some(proxium_wire::RateLimit::default()), ..hit("m", "r", 1) }, NOW_MS);
        keep(&mut l1, "p", 7, &Hit { expires_in_ms: 0, ..hit("m", "r", 1) }, NOW_MS);
        assert_eq!(kept(&mut l1), [1, 2, 3, 4]);
    }

    #[test]
    fn a_purge_takes_what_it_names_and_nothing_else() {
        let purge = |project: &str, model: &str, request_id: &str| {
            What::Purge(Purge { project: project.into(), model: model.into(), request_id: request_id.into() })
        };
        for (what, left) in [
            (purge("p", "", ""), &[3, 4][..]),
            (purge("q", "m1", ""), &[1, 2, 4]),
            (purge("p", "", "r1"), &[2, 3, 4]),
            (purge("x", "", ""), &[1, 2, 3, 4]),
            (What::Project("q".into()), &[1, 2]),
            (What::Answer(vec![2; 32]), &[1, 3, 4]),
            (What::KeyHash(vec![2; 32]), &[1, 2, 3, 4]),
        ] {
            let mut l1 = filled();
            l1.forget(&[Change { what: Some(what.clone()) }], NOW_MS + 1);
            assert_eq!(kept(&mut l1), left, "{what:?}");
        }
        let mut l1 = filled();
        l1.forget_all(NOW_MS + 1);
        assert!(kept(&mut l1).is_empty());
    }

    #[test]
    fn a_hit_that_was_asked_for_before_a_purge_was_told_is_not_kept() {
        let mut l1 = filled();
        l1.forget(&[Change { what: Some(What::Answer(vec![5; 32])) }], NOW_MS + 5);
        keep(&mut l1, "p", 5, &hit("m", "r", 1), NOW_MS + 5);
        assert!(l1.find(&[5], NOW_MS + 6).is_none());
        keep(&mut l1, "p", 5, &hit("m", "r", 1), NOW_MS + 6);
        assert!(l1.find(&[5], NOW_MS + 6).is_some());
    }

    #[test]
    fn it_never_outgrows_its_room_and_keeps_what_is_used() {
        let mut l1 = L1::default();
        l1.set_max_bytes(100_000);
        keep(&mut l1, "p", 1, &hit("m", "r", 1_000), NOW_MS);
        for number in 0..1_000_u32 {
            l1.keep(number.to_be_bytes().to_vec(), "p", [0; 32], &hit("m", "r", 1_000), NOW_MS);
            assert!(l1.find(&[1], NOW_MS).is_some(), "{number}");
            assert!(l1.young.bytes + l1.old.bytes <= 100_000);
            let entries = l1.young.entries.iter().chain(&l1.old.entries);
            assert_eq!(entries.map(|(material, entry)| size(material, &entry.answer)).sum::<usize>(), l1.young.bytes + l1.old.bytes);
        }
        assert!(l1.find(&0_u32.to_be_bytes(), NOW_MS).is_none());
        keep(&mut l1, "p", 2, &hit("m", "r", 20_000), NOW_MS);
        assert!(l1.find(&[2], NOW_MS).is_none(), "too large");
        l1.set_max_bytes(0);
        assert!(l1.find(&[1], NOW_MS).is_none());
    }
}
