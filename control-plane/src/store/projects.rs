//! Projects: a budget, rules, and what hangs on them.

use super::record::{self, Expect, Fraction, Place, Rules, Stored, Written, usd};
use super::{StoreError, name};
use fred::prelude::*;
use fred::types::scripts::Script;
use jiff::Timestamp;
use proxium_wire::NanoUsd;
use rand::RngExt;
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// How long an answer is kept unless the project says otherwise.
pub const DEFAULT_TTL_S: u32 = 3_600;
/// So long after a project's end a settlement of it may come: filters give up after an hour.
const LATEST_S: i64 = 7_200;
/// How near a question must be unless the project says otherwise: a cosine of 0.95.
pub const DEFAULT_THRESHOLD_PPM: u32 = 950_000;

/// A project as people see it, but for its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// For people.
    pub name: String,
    /// The most a calendar month may cost. Absent: no cap; 0: nothing passes.
    #[serde(default, rename = "monthly_cap_usd", with = "usd")]
    pub monthly_cap: Option<NanoUsd>,
    /// The day of the month (UTC) on which the month begins, 1-31, the last day in shorter months. Absent: 1.
    #[serde(default)]
    pub reset_day: Option<u8>,
    /// Once a month has cost so much, chat and messages go to the soft cap's chain. Absent: never.
    #[serde(default, rename = "soft_cap_usd", with = "usd")]
    pub soft_cap: Option<NanoUsd>,
    /// The cheaper chain: models and chains of the catalog. Empty: none.
    #[serde(default)]
    pub soft_cap_chain: Vec<String>,
    /// What a stored answer costs, as a fraction of what it saved. 0: it is free.
    #[serde(default)]
    pub cached_answer_charge: Fraction,
    /// How answers are kept.
    #[serde(default)]
    pub cache: Cache,
    /// Memories are recalled where a call asks for it.
    #[serde(default)]
    pub memory: bool,
    /// `auto` becomes a tier by the catalog's classifier.
    #[serde(default)]
    pub auto_classify: bool,
    /// The project's level of rules.
    #[serde(default)]
    pub rules: Rules,
    /// When it was made.
    pub created_at: Timestamp,
}

/// How a project's answers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cache {
    /// Answer the same request from the store.
    pub exact: bool,
    /// For how long.
    pub ttl_s: u32,
    /// Answers to questions that are near enough.
    pub near: Near,
}

/// Whether and from where on a question is near enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Near {
    /// Answer a question from the store that is almost one answered before.
    pub enabled: bool,
    /// The least cosine of the two.
    pub threshold: Fraction,
}

impl Default for Near {
    fn default() -> Self {
        Self { enabled: false, threshold: Fraction(DEFAULT_THRESHOLD_PPM) }
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self { exact: true, ttl_s: DEFAULT_TTL_S, near: Near::default() }
    }
}

impl Project {
    /// The fields that scripts read.
    fn fields(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let charge = Some(self.cached_answer_charge.0).filter(|ppm| *ppm > 0);
        [
            ("monthly_cap", self.monthly_cap.map(|cap| cap.0.to_string())),
            ("soft_cap", self.soft_cap.map(|cap| cap.0.to_string())),
            // Always there, so that scripts notice a project that is not.
            ("reset_day", Some(self.reset_day.unwrap_or(1).to_string())),
            ("cached_answer_charge", charge.map(|ppm| ppm.to_string())),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }
}

static CREATE: LazyLock<Script> = LazyLock::new(|| {
    Script::from_lua(
        "-- KEYS: project, state. ARGV: field, value, ... of the project
        if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
        redis.call('HSET', KEYS[1], unpack(ARGV))
        redis.call('HSET', KEYS[2], 'month', '0', 'spend', '0', 'held', '0', 'clock_ms', '0', 'no_credentials', '1')
        return 1",
    )
});

/// Removes all but money: the state, the ledger, the windows and open reservations stay, so that what is under way is still recorded.
static DELETE: LazyLock<Script> = LazyLock::new(|| {
    Script::from_lua(
        "-- KEYS: project, keys, senders, credentials, due. ARGV: what stands before a key's and a sender's name
        local existed, hashes = redis.call('EXISTS', KEYS[1]), {}
        for _, id in ipairs(redis.call('SMEMBERS', KEYS[2])) do
            local key = ARGV[1] .. id
            hashes[#hashes + 1] = redis.call('HGET', key, 'hash') or ''
            redis.call('DEL', key)
        end
        for _, source in ipairs(redis.call('SMEMBERS', KEYS[3])) do redis.call('DEL', ARGV[2] .. source) end
        redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
        return {tostring(existed), tostring(redis.call('ZCARD', KEYS[5])), hashes}",
    )
});

/// Makes a project and answers its id.
///
/// The list of projects comes first: it lies in another slot, and an id without a project behind it does no harm, while a project that
/// is not listed would never have its due holds swept.
///
/// # Errors
/// Redis cannot answer.
pub async fn create(redis: &Client, project: &Project) -> Result<String, StoreError> {
    let mut args = vec!["record".to_owned(), record::text(project)?];
    args.extend(project.fields().flat_map(|(name, value)| [name.to_owned(), value]));
    loop {
        let id = new_id(&project.name);
        let () = redis.sadd(name::PROJECTS, &id).await?;
        let made: u64 = CREATE.evalsha_with_reload(redis, vec![name::project(&id), name::state(&id)], args.clone()).await?;
        if made == 1 {
            return Ok(id);
        }
    }
}

/// Reads a project.
///
/// # Errors
/// Redis cannot answer.
pub async fn get(redis: &Client, project: &str) -> Result<Option<Stored<Project>>, StoreError> {
    record::get(redis, name::project(project)).await
}

/// The ids of all projects in order, and of some that are no more.
///
/// # Errors
/// Redis cannot answer.
pub async fn ids(redis: &Client) -> Result<Vec<String>, StoreError> {
    let mut ids: Vec<String> = redis.smembers(name::PROJECTS).await?;
    ids.sort_unstable();
    Ok(ids)
}

/// All projects with their ids, in the order of these.
///
/// # Errors
/// Redis cannot answer.
pub async fn list(redis: &Client) -> Result<Vec<(String, Project)>, StoreError> {
    let ids = redis.smembers(name::PROJECTS).await?;
    record::list(redis, ids, name::project).await
}

/// Writes a project anew. Its spend and windows stay.
///
/// # Errors
/// Redis cannot answer.
pub async fn replace(redis: &Client, id: &str, before: &str, project: &Project) -> Result<Written, StoreError> {
    let place = Place { project: id, key: name::project(id), index: None, held: None };
    record::put(redis, place, Expect::Text(before), project, project.fields()).await
}

/// Deletes a project and ends its keys; its ledger stays. Answers whether it was there.
///
/// Everything of the project goes in one step; after a crash right behind it, what is left are pointers to keys that are no more.
///
/// # Errors
/// Redis cannot answer.
pub async fn delete(redis: &Client, id: &str) -> Result<bool, StoreError> {
    let keys = vec![name::project(id), name::keys(id), name::senders(id), name::credentials(id), name::due(id)];
    let (existed, due, hashes): (u64, u64, Vec<String>) =
        DELETE.evalsha_with_reload(redis, keys, vec![name::key(id, ""), name::sender(id, "")]).await?;
    for hash in hashes.iter().filter(|hash| !hash.is_empty()) {
        let () = redis.del(name::key_hash(hash)).await?;
    }
    // Of calls under way: what they bring later came of memories that are gone.
    let () = redis.expire(name::memory_deletions(id), LATEST_S, None).await?;
    // With holds still due it stays listed, so that they are swept; lists leave out what has no record.
    if due == 0 {
        let () = redis.srem(name::PROJECTS, id).await?;
    }
    Ok(existed == 1)
}

/// The name in lower case with everything else as `-`, cut at 31 characters, and 8 random ones.
fn new_id(name: &str) -> String {
    let mut id = String::new();
    for letter in name.chars().map(|letter| letter.to_ascii_lowercase()) {
        if letter.is_ascii_alphanumeric() {
            id.push(letter);
        } else if !id.is_empty() && !id.ends_with('-') {
            id.push('-');
        }
        if id.len() == 31 {
            break;
        }
    }
    let id = match id.trim_end_matches('-') {
        "" => "project",
        id => id,
    };
    let mut rng = rand::rng();
    let suffix: String = (0..8).filter_map(|_| char::from_digit(rng.random_range(0..36), 36)).collect();
    format!("{id}-{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_made_of_the_name_and_never_twice_the_same() {
        for (name, start) in [("My  Team!", "my-team-"), ("日本", "project-"), ("", "project-"), (" -x- ", "x-")] {
            let id = new_id(name);
            assert!(id.starts_with(start) && id.len() == start.len() + 8, "{name}: {id}");
            assert_ne!(id, new_id(name));
        }
    }

    #[test]
    fn an_id_of_a_long_name_keeps_to_forty_characters() {
        let id = new_id(&"long name ".repeat(20));
        assert!(id.len() <= 40, "{id}");
        assert!(id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'), "{id}");
    }

    #[test]
    fn a_document_of_an_older_version_still_reads() {
        let project: Project = serde_json::from_str(r#"{"name":"a","created_at":"2026-01-01T00:00:00Z"}"#).unwrap();
        assert_eq!(project.cache, Cache { exact: true, ttl_s: 3_600, near: Near::default() });
        assert_eq!(project.monthly_cap, None);
    }
}
