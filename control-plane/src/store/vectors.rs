//! Questions as vectors, in the cache Redis: which stored answer may do for another question.
//!
//! A vector set holds the questions that may be compared: same project, model, instructions and parameters, which is their partition, and
//! the same [`alike::reading`]. Its elements are the exact keys of stored answers. So a set is small however many questions a project has,
//! and all of it is looked at. Redis adds to a vector set, and searches a small one, in its one thread, where money waits: among 10,000
//! that were milliseconds. (Its `CAS` adds beside that thread, and Redis 8.2 cannot load the append-only file it writes then.)
//!
//! An answer that is gone leaves its vector behind until a look-up meets it, or its time is over. The index of a project's vectors by
//! expiry bounds how many there are.

use super::{StoreError, name};
use crate::alike;
use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand, ExpireOptions};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The most vectors of one project; the one that would expire first makes room.
pub const MAX_OF_ONE: i64 = 100_000;
/// The most vectors of one set, that is wordings of one question; more are not kept.
pub const MAX_OF_SET: i64 = 64;
/// So many that are due are taken away when one is added.
const SWEPT: i64 = 32;
/// How long it is believed what this Redis can do.
const ASKED_EACH: Duration = Duration::from_secs(30);
/// So many keys go with one command.
const AT_ONCE: usize = 1_000;

/// A neighbour of a question.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Neighbour {
    /// The exact key of its answer, in hexadecimal.
    pub key: String,
    /// The cosine in parts per million.
    pub similarity_ppm: u32,
}

/// The set of the questions that may be compared with this one; none where it is alike to none.
#[must_use]
pub fn set_of(partition: &[u8], question: &str) -> Option<String> {
    let reading = alike::reading(question).filter(|_| !partition.is_empty())?;
    Some(hex::encode(Sha256::new().chain_update(partition).chain_update(reading).finalize()))
}

/// Whether this Redis has vector sets: those of version 8 do. The command is tried, on a set that is not there: neither a version nor a list
/// of commands tells of others' servers, or of what this user may do.
///
/// # Errors
/// Redis cannot answer.
pub async fn supported(cache: &Client) -> Result<bool, StoreError> {
    let tried: Result<Value, _> = cache.custom(command("VSIM"), vec![name::vector_set("none", "none").as_str(), "ELE", "none"]).await;
    match tried {
        Ok(_) => Ok(true),
        Err(error) if ["ERR unknown command", "NOPERM"].iter().any(|no| error.details().starts_with(no)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Forgets all vectors of a project.
pub(super) async fn purge(cache: &Client, project: &str) -> Result<(), StoreError> {
    let index = name::vectors(project);
    let members: Vec<String> = cache.zrange(&index, 0, -1, None, false, None, false).await?;
    let sets: BTreeSet<&str> = members.iter().filter_map(|member| Some(member.split_once('|')?.0)).collect();
    let keys: Vec<String> = sets.into_iter().map(|set| name::vector_set(project, set)).chain([index]).collect();
    for some in keys.chunks(AT_ONCE) {
        let () = cache.unlink(some.to_vec()).await?;
    }
    Ok(())
}

fn command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, ClusterHash::FirstKey, false)
}

/// Looks up and keeps vectors.
pub(super) struct Vectors {
    cache: Client,
    able: Mutex<Option<(Instant, bool)>>,
    warned: AtomicBool,
}

impl Vectors {
    pub fn new(cache: Client) -> Self {
        Self { cache, able: Mutex::new(None), warned: AtomicBool::new(false) }
    }

    /// Whether there can be vectors at all.
    pub async fn able(&self) -> bool {
        if let Some((asked, able)) = *self.able.lock().unwrap_or_else(PoisonError::into_inner)
            && asked.elapsed() < ASKED_EACH
        {
            return able;
        }
        let Ok(able) = supported(&self.cache).await else { return false };
        if !able && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("near matches are off: this Redis has no vector sets; give it Redis 8 or newer (REDIS_CACHE_URL may name one)");
        }
        *self.able.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), able));
        able
    }

    /// Those of a set that are near enough, the nearest first.
    pub async fn near(&self, project: &str, set: &str, vector: &[u8], threshold_ppm: u32) -> Result<Vec<Neighbour>, StoreError> {
        let args: Vec<Value> = vec![
            name::vector_set(project, set).into(),
            "FP32".into(),
            Value::Bytes(vector.to_vec().into()),
            "WITHSCORES".into(),
            "COUNT".into(),
            MAX_OF_SET.into(),
            // The set is small: a thread of its own costs more, and the connection would wait for it.
            "NOTHREAD".into(),
        ];
        let found: Vec<String> = self.cache.custom(command("VSIM"), args).await?;
        // Redis scores by (1 + cosine) / 2.
        let least = f64::midpoint(1.0, f64::from(threshold_ppm) / 1e6);
        let neighbour = |pair: &[String]| {
            let [key, score] = pair else { return None };
            let score = score.parse::<f64>().ok().filter(|score| *score >= least)?;
            Some(Neighbour { key: key.clone(), similarity_ppm: (score.mul_add(2.0, -1.0) * 1e6).round().clamp(0.0, 1e6) as u32 })
        };
        Ok(found.chunks_exact(2).filter_map(neighbour).collect())
    }

    /// Keeps the vector of an answer for its time, and takes away some whose time is over or that are too many.
    pub async fn keep(&self, project: &str, set: &str, vector: &[u8], key: &[u8], ttl_s: u32) -> Result<(), StoreError> {
        if !self.able().await {
            return Ok(());
        }
        let (index, key, name) = (name::vectors(project), hex::encode(key), name::vector_set(project, set));
        let wordings: i64 = self.cache.custom(command("VCARD"), vec![name.as_str()]).await?;
        if wordings >= MAX_OF_SET {
            return Ok(());
        }
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let args: Vec<Value> =
            vec![name.as_str().into(), "FP32".into(), Value::Bytes(vector.to_vec().into()), key.as_str().into(), "NOQUANT".into()];
        let _: Value = self.cache.custom(command("VADD"), args).await?;
        let pipeline = self.cache.pipeline();
        let () = pipeline.expire(&name, ttl_s.into(), None).await?;
        let () = pipeline.zadd(&index, None, None, false, false, ((now_s + f64::from(ttl_s)).ceil(), format!("{set}|{key}"))).await?;
        // As long as any of them, also once the project's time is a shorter one.
        for option in [ExpireOptions::NX, ExpireOptions::GT] {
            let () = pipeline.expire(&index, ttl_s.into(), Some(option)).await?;
        }
        let () = pipeline.zrangebyscore(&index, f64::NEG_INFINITY, now_s.floor(), false, Some((0, SWEPT))).await?;
        let () = pipeline.zcard(&index).await?;
        let (_, _, _, _, mut due, count): (Value, Value, Value, Value, Vec<String>, i64) = pipeline.all().await?;
        if count > MAX_OF_ONE {
            let surplus: Vec<String> = self.cache.zrange(&index, 0, (count - MAX_OF_ONE).min(SWEPT) - 1, None, false, None, false).await?;
            due.extend(surplus);
        }
        for member in &due {
            if let Some((set, key)) = member.split_once('|') {
                self.forget(project, set, key).await?;
            }
        }
        Ok(())
    }

    /// Takes the vector of an answer that is gone away.
    pub async fn forget(&self, project: &str, set: &str, key: &str) -> Result<(), StoreError> {
        let args: Vec<Value> = vec![name::vector_set(project, set).into(), key.into()];
        let _: Value = self.cache.custom(command("VREM"), args).await?;
        Ok(self.cache.zrem(name::vectors(project), format!("{set}|{key}")).await?)
    }
}
