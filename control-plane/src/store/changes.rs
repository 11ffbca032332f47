//! What filters must forget: a stream of changes, tailed into memory, so that the poll of a filter costs Redis nothing.
//!
//! A cursor is the id of an entry. It is known only if that very entry is in memory, and memory holds an unbroken piece of the stream up
//! to the last read. So a Redis that came back empty, a fail-over that lost entries and a cursor that is too old all end the same way:
//! the asker forgets everything it cached.

use super::{StoreError, name};
use fred::prelude::*;
use fred::types::scripts::Script;
use prost::Message;
use proxium_wire::{Change, Purge, change::What};
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// About this many entries are kept in Redis, and twice as many in memory.
const KEPT: i64 = 10_000;
const KEPT_IN_MEMORY: usize = 20_000;
/// An asker that missed more than this forgets everything instead.
const TOLD_AT_MOST: usize = 1_000;
const PAGE: usize = 1_000;
/// How often the stream is read.
const EVERY: Duration = Duration::from_millis(250);
/// Memory older than this tells nothing.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// The stream is never empty, so that there is always a cursor to give, and a different one after Redis lost everything.
static TAIL: LazyLock<Script> = LazyLock::new(|| {
    Script::from_lua(
        "-- KEYS: stream. ARGV: first id, count
        if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('XADD', KEYS[1], '*', 'made', '1') end
        return redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])",
    )
});

/// Tells filters to forget one key. Done after the record was written; may be repeated.
///
/// # Errors
/// Redis cannot answer.
pub async fn key_changed(redis: &Client, hash: &str) -> Result<(), StoreError> {
    add(redis, "key_hash", hash).await
}

/// Tells filters to forget every key and every answer of a project. Done after the record was written; may be repeated.
///
/// # Errors
/// Redis cannot answer.
pub async fn project_changed(redis: &Client, project: &str) -> Result<(), StoreError> {
    add(redis, "project", project).await
}

/// Tells filters to forget answers that were purged. Done after they are gone; may be repeated.
///
/// # Errors
/// Redis cannot answer.
pub async fn purged(redis: &Client, purge: &Purge) -> Result<(), StoreError> {
    add(redis, "purge", &hex::encode(purge.encode_to_vec())).await
}

/// Tells filters to forget the answer under this exact key (hex). Done after it is gone or another; may be repeated.
///
/// # Errors
/// Redis cannot answer.
pub async fn answer_changed(redis: &Client, cache_key: &str) -> Result<(), StoreError> {
    add(redis, "answer", cache_key).await
}

async fn add(redis: &Client, field: &str, value: &str) -> Result<(), StoreError> {
    Ok(redis.xadd(name::CHANGES, false, ("MAXLEN", "~", KEPT), "*", vec![(field, value)]).await?)
}

/// The id of an entry: milliseconds and a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Id(u64, u64);

impl Id {
    fn parse(text: &str) -> Option<Self> {
        let (ms, number) = text.split_once('-')?;
        Some(Self(ms.parse().ok()?, number.parse().ok()?))
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

/// What changed since a cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// To ask with next time.
    pub cursor: String,
    /// The changes, oldest first.
    pub changes: Vec<Change>,
    /// The cursor is too old or unknown: forget everything.
    pub forget_all: bool,
    /// Too many answers changed to tell: forget all answers.
    pub forget_answers: bool,
}

impl Since {
    fn forget_all(cursor: Id) -> Self {
        Self { cursor: cursor.to_string(), changes: Vec::new(), forget_all: true, forget_answers: false }
    }
}

#[derive(Default)]
struct Memory {
    entries: VecDeque<(Id, Option<What>)>,
    /// When the last read that came to the end of the stream began.
    read_at: Option<Instant>,
}

enum Look {
    Found(Since),
    /// The cursor is younger than all that is known here: another control plane may have read further.
    Ahead,
    Stale,
}

impl Memory {
    fn last(&self) -> Id {
        self.entries.back().map_or_else(Id::default, |(id, _)| *id)
    }

    /// Takes a page that began at [`Memory::last`]; answers whether it was the last page.
    fn take(&mut self, page: Vec<(Id, Option<What>)>) -> bool {
        let complete = page.len() < PAGE;
        let last = self.last();
        if self.entries.is_empty() || page.first().is_some_and(|(id, _)| *id == last) {
            let known = usize::from(!self.entries.is_empty());
            self.entries.extend(page.into_iter().skip(known));
            let surplus = self.entries.len().saturating_sub(KEPT_IN_MEMORY);
            self.entries.drain(..surplus);
            return complete;
        }
        // The entry is gone: this is not the stream it was. Begin anew.
        self.entries.clear();
        false
    }

    fn look(&self, cursor: &str, now: Instant) -> Look {
        let last = self.last();
        if self.read_at.is_none_or(|at| now.duration_since(at) > GOOD_FOR) {
            return Look::Stale;
        }
        let forget_all = || Look::Found(Since::forget_all(last));
        let Some(cursor) = Id::parse(cursor) else { return forget_all() };
        if cursor > last {
            return Look::Ahead;
        }
        let Ok(at) = self.entries.binary_search_by_key(&cursor, |(id, _)| *id) else { return forget_all() };
        let missed = || self.entries.range(at + 1..).filter_map(|(_, what)| what.as_ref());
        // Answers change with calls, by anybody's will; keys and projects by an operator's. The ones must not hide the others.
        let of_answers = |what: &&What| matches!(what, What::Purge(_) | What::Answer(_));
        let forget_answers = missed().count() > TOLD_AT_MOST;
        let told = missed().filter(|what| !(forget_answers && of_answers(what)));
        if told.clone().count() > TOLD_AT_MOST {
            return forget_all();
        }
        let changes = told.map(|what| Change { what: Some(what.clone()) }).collect();
        Look::Found(Since { cursor: last.to_string(), changes, forget_all: false, forget_answers })
    }
}

struct Shared {
    redis: Client,
    memory: Mutex<Memory>,
    /// Only one read at a time: a page is taken where the one before ended.
    reading: tokio::sync::Mutex<()>,
}

/// The changes in memory. Cheap to clone.
#[derive(Clone)]
pub struct Changes(Arc<Shared>);

impl Changes {
    /// Begins to tail the stream, until the last clone is dropped.
    #[must_use]
    pub fn start(redis: Client) -> Self {
        let shared = Arc::new(Shared { redis, memory: Mutex::default(), reading: tokio::sync::Mutex::default() });
        let tailed = Arc::downgrade(&shared);
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(EVERY);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut failing = false;
            loop {
                tick.tick().await;
                let Some(shared) = tailed.upgrade() else { return };
                let outcome = shared.read().await;
                match &outcome {
                    Err(error) if !failing => tracing::warn!(%error, "changes cannot be read; filters stop trusting their caches"),
                    Ok(()) if failing => tracing::info!("changes can be read again"),
                    _ => {}
                }
                failing = outcome.is_err();
            }
        });
        Self(shared)
    }

    /// What changed since `cursor`; `None` when the stream could not be read lately: nothing can be said.
    pub async fn since(&self, cursor: &str) -> Option<Since> {
        match self.0.memory().look(cursor, Instant::now()) {
            Look::Found(since) => return Some(since),
            Look::Stale => return None,
            Look::Ahead => {}
        }
        self.0.read().await.ok()?;
        let memory = self.0.memory();
        match memory.look(cursor, Instant::now()) {
            Look::Found(since) => Some(since),
            Look::Ahead => Some(Since::forget_all(memory.last())),
            Look::Stale => None,
        }
    }
}

impl Shared {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads to the end of the stream.
    async fn read(&self) -> Result<(), StoreError> {
        let _one = self.reading.lock().await;
        loop {
            let began = Instant::now();
            let args = vec![self.memory().last().to_string(), PAGE.to_string()];
            let page: Vec<(String, Vec<String>)> = TAIL.evalsha_with_reload(&self.redis, name::CHANGES, args).await?;
            let page = page.into_iter().map(|(id, fields)| Some((Id::parse(&id)?, what(&fields)))).collect::<Option<_>>();
            let page = page.ok_or_else(|| StoreError::Corrupt(name::CHANGES.to_owned()))?;
            let mut memory = self.memory();
            if memory.take(page) {
                memory.read_at = Some(began);
                return Ok(());
            }
        }
    }
}

/// `None` for entries that are nothing to filters.
fn what(fields: &[String]) -> Option<What> {
    match fields {
        [field, hash] if field == "key_hash" => hex::decode(hash).ok().map(What::KeyHash),
        [field, project] if field == "project" => Some(What::Project(project.clone())),
        [field, purge] if field == "purge" => Some(What::Purge(Purge::decode(hex::decode(purge).ok()?.as_slice()).ok()?)),
        [field, key] if field == "answer" => hex::decode(key).ok().map(What::Answer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64) -> (Id, Option<What>) {
        (Id(number, 0), Some(What::Project(format!("p{number}"))))
    }

    fn memory(numbers: std::ops::RangeInclusive<u64>) -> Memory {
        let mut memory = Memory { read_at: Some(Instant::now()), ..Memory::default() };
        assert!(memory.take(numbers.map(entry).collect()));
        memory
    }

    fn found(memory: &Memory, cursor: &str) -> Since {
        match memory.look(cursor, Instant::now()) {
            Look::Found(since) => since,
            Look::Ahead => panic!("ahead"),
            Look::Stale => panic!("stale"),
        }
    }

    #[test]
    fn an_asker_hears_what_it_missed_and_nothing_twice() {
        let memory = memory(1..=5);
        let since = found(&memory, "3-0");
        assert!(!since.forget_all);
        assert_eq!(since.changes.len(), 2);
        let nothing = Since { cursor: "5-0".to_owned(), changes: vec![], forget_all: false, forget_answers: false };
        assert_eq!(found(&memory, &since.cursor), nothing);
    }

    #[test]
    fn an_unknown_cursor_forgets_everything() {
        let memory = memory(3..=5);
        for cursor in ["", "nonsense", "1-0", "3-7"] {
            assert_eq!(found(&memory, cursor), Since::forget_all(Id(5, 0)), "{cursor}");
        }
    }

    #[test]
    fn a_cursor_of_a_control_plane_that_read_further_is_looked_up_again() {
        assert!(matches!(memory(1..=5).look("6-0", Instant::now()), Look::Ahead));
    }

    #[test]
    fn a_stream_that_is_not_the_one_it_was_is_read_anew() {
        let mut memory = memory(1..=5);
        assert!(!memory.take(vec![entry(9)]));
        assert!(memory.take(vec![entry(9)]));
        assert!(found(&memory, "5-0").forget_all);
        assert!(!memory.take(vec![]));
    }

    #[test]
    fn an_asker_that_missed_very_much_forgets_everything() {
        let mut memory = memory(1..=900);
        assert!(memory.take((900..=1_800).map(entry).collect()));
        assert!(found(&memory, "1-0").forget_all);
        assert!(!found(&memory, "1000-0").forget_all);
    }

    #[test]
    fn very_many_answers_are_forgotten_at_once_and_no_key_for_them() {
        let mut memory = memory(1..=5);
        let answers = (6..=900).map(|number| (Id(number, 0), Some(What::Answer(vec![1; 32]))));
        assert!(memory.take(std::iter::once(entry(5)).chain(answers.clone()).collect()));
        let more = (900..=1_500).map(|number| (Id(number, 0), Some(What::Answer(vec![1; 32]))));
        assert!(memory.take(more.collect()));
        let since = found(&memory, "3-0");
        assert_eq!((since.forget_all, since.forget_answers), (false, true));
        assert_eq!(since.changes.iter().map(|change| change.what.clone()).collect::<Vec<_>>(), [entry(4).1, entry(5).1]);
        let since = found(&memory, "600-0");
        assert_eq!((since.forget_answers, since.changes.len()), (false, 900));
    }

    #[test]
    fn memory_that_could_not_be_refreshed_tells_nothing() {
        let memory = memory(1..=5);
        let later = Instant::now() + GOOD_FOR + Duration::from_millis(1);
        assert!(matches!(memory.look("5-0", later), Look::Stale));
        assert!(matches!(Memory::default().look("", Instant::now()), Look::Stale));
    }
}
