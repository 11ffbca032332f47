//! What a project remembers, of itself and of its end users.
//!
//! An owner's memories are one hash; which owner a memory belongs to is in another. Each deletion of an owner's memories raises its counter:
//! an answer that a call made with a memory, and that comes to be stored after the memory was deleted, is told by it and not kept.

use super::record::{self, Stored};
use super::{StoreError, name};
use fred::prelude::*;
use fred::types::scripts::Script;
use fred::types::{ClusterHash, CustomCommand};
use jiff::Timestamp;
use proxium_wire::{MemoryStamp, MemoryVector};
use rand::distr::{Alphanumeric, SampleString};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

/// The most memories of one owner: all of them are read at a recall.
pub const MAX_OF_ONE: usize = 1_000;

/// A memory as people see it, but for its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// What is remembered.
    pub text: String,
    /// Of whom; absent: of the project.
    #[serde(default)]
    pub end_user: Option<String>,
    /// Forgotten from this instant on.
    #[serde(default)]
    pub expires_at: Option<Timestamp>,
    /// When it was added; the newest is recalled first.
    pub created_at: Timestamp,
}

/// What became of an addition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Added {
    /// It is remembered, under this id.
    Id(String),
    /// There is no such project.
    NoProject,
    /// The owner has [`MAX_OF_ONE`].
    Full,
}

/// Which memories a deletion takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// All of the project and of its end users.
    All,
    /// All of one end user.
    EndUser(String),
    /// One, by its id.
    Id(String),
}

static ADD: LazyLock<Script> = LazyLock::new(|| {
    Script::from_lua(
        "-- KEYS: project, owners, memories of the owner. ARGV: id, owner, record, the most
        if redis.call('EXISTS', KEYS[1]) == 0 then return 'no_project' end
        if redis.call('HLEN', KEYS[3]) >= tonumber(ARGV[4]) then return 'full' end
        redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
        redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
        return 'done'",
    )
});

/// The name of an owner in Redis: an end user's may be any text.
pub(super) fn owner(end_user: &str) -> String {
    if end_user.is_empty() { "project".to_owned() } else { hex::encode(Sha256::digest(end_user)) }
}

/// Remembers.
///
/// # Errors
/// Redis cannot answer.
pub async fn add(redis: &Client, project: &str, memory: &Memory) -> Result<Added, StoreError> {
    let end_user = memory.end_user.as_deref().unwrap_or_default();
    let id = format!("mem_{}", Alphanumeric.sample_string(&mut rand::rng(), 16));
    let owner = owner(end_user);
    let keys = vec![name::project(project), name::memory_owners(project), name::memories(project, &owner)];
    let args = vec![id.clone(), owner, record::text(memory)?, MAX_OF_ONE.to_string()];
    // Those that have expired make room.
    let _ = of(redis, project, end_user).await?;
    let outcome: String = ADD.evalsha_with_reload(redis, keys, args).await?;
    Ok(match outcome.as_str() {
        "done" => Added::Id(id),
        "full" => Added::Full,
        _ => Added::NoProject,
    })
}

/// The memories of an end user, or (empty) of the project itself, with their ids, newest first. Those that have expired are forgotten here.
///
/// # Errors
/// Redis cannot answer.
pub async fn of(redis: &Client, project: &str, end_user: &str) -> Result<Vec<(String, Memory)>, StoreError> {
    of_owner(redis, project, &owner(end_user)).await
}

async fn of_owner(redis: &Client, project: &str, owner: &str) -> Result<Vec<(String, Memory)>, StoreError> {
    let key = name::memories(project, owner);
    let records: HashMap<String, String> = redis.hgetall(&key).await?;
    let now = Timestamp::now();
    let (mut alive, mut expired) = (Vec::new(), Vec::new());
    for (id, text) in records {
        let memory = Stored::<Memory>::read(text, &key)?.value;
        if memory.expires_at.is_some_and(|end| end <= now) {
            expired.push(id);
        } else {
            alive.push((id, memory));
        }
    }
    if !expired.is_empty() {
        let () = redis.hdel(&key, expired.clone()).await?;
        let () = redis.hdel(name::memory_owners(project), expired).await?;
    }
    alive.sort_by(|(id, memory), (other_id, other)| other.created_at.cmp(&memory.created_at).then_with(|| id.cmp(other_id)));
    Ok(alive)
}

/// All memories of a project and its end users, newest first.
///
/// # Errors
/// Redis cannot answer.
pub async fn all(redis: &Client, project: &str) -> Result<Vec<(String, Memory)>, StoreError> {
    let mut all = Vec::new();
    for owner in owners(redis, project).await? {
        all.extend(of_owner(redis, project, &owner).await?);
    }
    all.sort_by(|(id, memory), (other_id, other)| other.created_at.cmp(&memory.created_at).then_with(|| id.cmp(other_id)));
    Ok(all)
}

async fn owners(redis: &Client, project: &str) -> Result<Vec<String>, StoreError> {
    let mut owners: Vec<String> = redis.hvals(name::memory_owners(project)).await?;
    owners.sort_unstable();
    owners.dedup();
    Ok(owners)
}

/// How many deletions there were of an owner's memories. To be read before the memories.
///
/// # Errors
/// Redis cannot answer.
pub async fn stamp(redis: &Client, project: &str, end_user: &str) -> Result<MemoryStamp, StoreError> {
    let deletions: Option<u64> = redis.hget(name::memory_deletions(project), owner(end_user)).await?;
    Ok(MemoryStamp { end_user: end_user.to_owned(), deletions: deletions.unwrap_or(0) })
}

/// So many memories are given their vectors at a time.
const EMBEDDED_AT_ONCE: usize = 64;
/// Vectors that nobody asked for go, and are made again when they are wanted.
const KEPT_VECTORS_S: i64 = 30 * 86_400;

fn command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, ClusterHash::FirstKey, false)
}

/// The ids of some of these memories of an owner that have no vector of this model.
///
/// # Errors
/// Redis cannot answer.
pub async fn unembedded(cache: &Client, project: &str, model: &str, memories: &[(String, Memory)]) -> Result<Vec<String>, StoreError> {
    let mut embedded = BTreeSet::new();
    let owners: BTreeSet<String> = memories.iter().map(|(_, memory)| owner(memory.end_user.as_deref().unwrap_or_default())).collect();
    for owner in owners {
        let args: Vec<Value> =
            vec![name::memory_vectors(project, &owner, model).into(), i64::try_from(MAX_OF_ONE).unwrap_or(i64::MAX).into()];
        let some: Option<Vec<String>> = cache.custom(command("VRANDMEMBER"), args).await?;
        embedded.extend(some.unwrap_or_default());
    }
    Ok(memories.iter().map(|(id, _)| id).filter(|id| !embedded.contains(*id)).take(EMBEDDED_AT_ONCE).cloned().collect())
}

/// Keeps the vector of a memory.
///
/// # Errors
/// Redis cannot answer.
pub async fn embed(cache: &Client, project: &str, model: &str, memory: &MemoryVector) -> Result<(), StoreError> {
    let owner = owner(&memory.end_user);
    let key = name::memory_vectors(project, &owner, model);
    let vector = Value::Bytes(memory.vector.clone().into());
    let args: Vec<Value> = vec![key.as_str().into(), "FP32".into(), vector, memory.id.as_str().into(), "NOQUANT".into()];
    // Named before it is there: a deletion must find it.
    let sets = name::memory_vector_sets(project);
    let pipeline = cache.pipeline();
    let () = pipeline.sadd(&sets, format!("{owner}:{model}")).await?;
    let () = pipeline.expire(&sets, KEPT_VECTORS_S, None).await?;
    let () = pipeline.custom(command("VADD"), args).await?;
    let () = pipeline.expire(&key, KEPT_VECTORS_S, None).await?;
    Ok(pipeline.all().await?)
}

/// Forgets the vectors of memories, of one owner or (`None`) of the whole project, by whichever model. Those of memories that stay are made
/// again when they are wanted.
async fn forget_vectors(cache: &Client, project: &str, owner: Option<&str>) -> Result<(), StoreError> {
    let sets = name::memory_vector_sets(project);
    let mut gone: Vec<String> = cache.smembers(&sets).await?;
    gone.retain(|set| owner.is_none_or(|owner| set.split_once(':').is_some_and(|(of, _)| of == owner)));
    for set in &gone {
        if let Some((owner, model)) = set.split_once(':') {
            let () = cache.unlink(name::memory_vectors(project, owner, model)).await?;
        }
    }
    if !gone.is_empty() {
        let () = cache.srem(&sets, gone).await?;
    }
    Ok(())
}

/// The ids of memories of these owners, the nearest to the vector first. Some may be deleted.
///
/// # Errors
/// Redis cannot answer.
pub async fn nearest(cache: &Client, project: &str, model: &str, vector: &[u8], end_users: &[&str]) -> Result<Vec<String>, StoreError> {
    let mut all: Vec<(f64, String)> = Vec::new();
    for end_user in end_users {
        let args: Vec<Value> = vec![
            name::memory_vectors(project, &owner(end_user), model).into(),
            "FP32".into(),
            Value::Bytes(vector.to_vec().into()),
            "WITHSCORES".into(),
            "COUNT".into(),
            i64::try_from(MAX_OF_ONE).unwrap_or(i64::MAX).into(),
        ];
        let found: Vec<String> = cache.custom(command("VSIM"), args).await?;
        let scored = |pair: &[String]| Some((pair.last()?.parse::<f64>().ok()?, pair.first()?.clone()));
        all.extend(found.chunks_exact(2).filter_map(scored));
    }
    all.sort_by(|(score, id), (other, other_id)| other.total_cmp(score).then_with(|| id.cmp(other_id)));
    Ok(all.into_iter().map(|(_, id)| id).collect())
}

/// Deletes memories with their vectors, and answers whether there were any; and the answers that calls made with them, which may be stored
/// with the others of their owner. Repeating it after an error completes it.
///
/// # Errors
/// Redis cannot answer.
pub async fn delete(redis: &Client, cache: &Client, project: &str, which: &Which) -> Result<bool, StoreError> {
    let (owners, id) = match which {
        Which::All => (owners(redis, project).await?, None),
        Which::EndUser(end_user) => (vec![owner(end_user)], None),
        Which::Id(id) => {
            let owner: Option<String> = redis.hget(name::memory_owners(project), id).await?;
            (owner.into_iter().collect(), Some(id))
        }
    };
    let index = name::memory_owners(project);
    let mut any = false;
    for owner in owners {
        let key = name::memories(project, &owner);
        let ids: Vec<String> = match id {
            Some(id) => vec![id.clone()],
            None => redis.hkeys(&key).await?,
        };
        any |= !ids.is_empty();
        // The counter rises once the memories are gone: whoever read them has an older state of it, or none of them.
        if !ids.is_empty() {
            let () = redis.hdel(&key, ids.clone()).await?;
        }
        let () = redis.hincrby(name::memory_deletions(project), &owner, 1).await?;
        super::answers::purge_of(cache, project, &owner).await?;
        if *which != Which::All {
            forget_vectors(cache, project, Some(&owner)).await?;
        }
        // Last, so that a repetition finds whose it was.
        if !ids.is_empty() {
            let () = redis.hdel(&index, ids).await?;
        }
    }
    if *which == Which::All {
        // Also those of owners whose last memory expired.
        forget_vectors(cache, project, None).await?;
    }
    Ok(any)
}
