//! Answers kept from earlier calls, in the cache Redis (which may be the one of the money).
//!
//! A project's answers are plain keys with a life of their own, and an index of them, scored by expiry, from which a purge finds them. A member
//! of the index is `<hex of the exact key>|<model that answered>|<request id>`.

use super::vectors::{self, Neighbour, Vectors};
use super::{StoreError, memories, name};
use fred::interfaces::ClusterInterface;
use fred::prelude::*;
use fred::types::config::Server;
use fred::types::{ClusterHash, CustomCommand, Expiration, ExpireOptions};
use prost::Message;
use proxium_wire::{Near, Store, StoredAnswer, Vector};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Which answers a purge forgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purge {
    /// All of the project.
    Project,
    /// Those of the model that answered, by its catalog name.
    Model(String),
    /// The one of this call.
    RequestId(String),
}

impl Purge {
    /// As filters are told.
    #[must_use]
    pub fn to_wire(&self, project: &str) -> proxium_wire::Purge {
        let all = proxium_wire::Purge { project: project.to_owned(), ..proxium_wire::Purge::default() };
        match self {
            Self::Project => all,
            Self::Model(model) => proxium_wire::Purge { model: model.clone(), ..all },
            Self::RequestId(id) => proxium_wire::Purge { request_id: id.clone(), ..all },
        }
    }

    fn takes(&self, member: &Member<'_>) -> bool {
        match self {
            Self::Project => true,
            Self::Model(model) => member.model == model,
            Self::RequestId(id) => member.request_id == id,
        }
    }
}

/// One entry of the index. A model's name may hold the separator; the other parts cannot.
struct Member<'a> {
    key: &'a str,
    model: &'a str,
    request_id: &'a str,
}

impl<'a> Member<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let (key, rest) = text.split_once('|')?;
        let (model, request_id) = rest.rsplit_once('|')?;
        Some(Self { key, model, request_id })
    }
}

/// Forgets the answers that came of an owner's memories.
///
/// # Errors
/// Redis cannot answer; what was forgotten until then stays forgotten.
pub(super) async fn purge_of(cache: &Client, project: &str, owner: &str) -> Result<(), StoreError> {
    let key = name::answers_of(project, owner);
    let members: Vec<String> = cache.zrange(&key, 0, -1, None, false, None, false).await?;
    let _keys = forget(cache, project, members.iter().filter_map(|text| Some((text.as_str(), Member::read(text)?.key)))).await?;
    if !members.is_empty() {
        let () = cache.zrem(&key, members).await?;
    }
    Ok(())
}

/// Forgets answers, members of the index with their keys, and says the keys.
async fn forget<'a>(cache: &Client, project: &str, taken: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Vec<String>, StoreError> {
    const AT_ONCE: usize = 256;
    let taken: Vec<(&str, &str)> = taken.collect();
    for some in taken.chunks(AT_ONCE) {
        let pipeline = cache.pipeline();
        let keys: Vec<String> = some.iter().map(|(_, key)| name::answer(project, key)).collect();
        let texts: Vec<&str> = some.iter().map(|(text, _)| *text).collect();
        let () = pipeline.unlink(keys).await?;
        let () = pipeline.zrem(name::answers(project), texts).await?;
        let () = pipeline.all().await?;
    }
    Ok(taken.iter().map(|(_, key)| (*key).to_owned()).collect())
}

/// Forgets stored answers and says their exact keys (hex), one for each entry of the index. Answers stored while it runs may stay. Filters
/// must be told: see [`super::changes::purged`].
///
/// # Errors
/// Redis cannot answer; what was forgotten until then stays forgotten.
pub async fn purge(cache: &Client, project: &str, filter: &Purge) -> Result<Vec<String>, StoreError> {
    let members: Vec<String> = cache.zrange(name::answers(project), 0, -1, None, false, None, false).await?;
    let taken = members.iter().filter_map(|text| Member::read(text).map(|member| (text.as_str(), member)));
    if *filter == Purge::Project {
        vectors::purge(cache, project).await?;
    }
    forget(cache, project, taken.filter(|(_, member)| filter.takes(member)).map(|(text, member)| (text, member.key))).await
}

/// Looks up and keeps answers.
pub(super) struct Answers {
    cache: Client,
    vectors: Vectors,
    /// When each master (without a cluster there is none) was last asked whether it has room, and what was found.
    rooms: Mutex<HashMap<Option<Server>, (Instant, bool)>>,
}

impl Answers {
    pub fn new(cache: Client) -> Self {
        Self { vectors: Vectors::new(cache.clone()), cache, rooms: Mutex::default() }
    }

    /// An answer to a question near enough among those it may be compared with, and how near. Vectors whose answers are gone are taken away. A
    /// cache that fails is a miss.
    pub async fn near(&self, project: &str, partition: &[u8], near: &Near) -> Option<(StoredAnswer, u32)> {
        let set = vectors::set_of(partition, &near.question)?;
        if !self.vectors.able().await {
            return None;
        }
        let found = self.vectors.near(project, &set, &near.vector, near.threshold_ppm).await;
        let found = found
            .inspect_err(|error| tracing::warn!(project, %error, "near matches cannot be looked up; the call goes on as a miss"))
            .ok()?;
        for Neighbour { key, similarity_ppm } in found {
            match self.find(project, &hex::decode(&key).ok()?).await {
                Some(answer) => return Some((answer, similarity_ppm)),
                None => self.vectors.forget(project, &set, &key).await.ok()?,
            }
        }
        None
    }

    /// The answer under this exact key; an empty key has none. A cache that fails or cannot be read is a miss: calls go on without it.
    pub async fn find(&self, project: &str, cache_key: &[u8]) -> Option<StoredAnswer> {
        if cache_key.is_empty() {
            return None;
        }
        let found: Result<Option<Vec<u8>>, _> = Box::pin(self.cache.get(name::answer(project, &hex::encode(cache_key)))).await;
        match found {
            Ok(bytes) => StoredAnswer::decode(bytes?.as_slice())
                .inspect_err(|error| tracing::warn!(project, %error, "a stored answer cannot be read and counts as absent"))
                .ok(),
            Err(error) => {
                tracing::warn!(project, %error, "the answer cache cannot be read; the call goes on as a miss");
                None
            }
        }
    }

    /// How long the answer under this exact key stays, in milliseconds; 0 when that is not known.
    pub async fn expires_in_ms(&self, project: &str, cache_key: &[u8]) -> u64 {
        let left: Result<i64, _> = self.cache.pttl(name::answer(project, &hex::encode(cache_key))).await;
        left.ok().and_then(|left| left.try_into().ok()).unwrap_or(0)
    }

    /// Keeps an answer for its time, unless Redis is short of room; says whether it did.
    pub async fn keep(&self, project: &str, store: &Store) -> Result<bool, StoreError> {
        if store.cache_key.is_empty() || store.ttl_s == 0 || !self.has_room(project).await? {
            return Ok(false);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let expiry = now + Duration::from_secs(store.ttl_s.into());
        let key = hex::encode(&store.cache_key);
        let member = format!("{key}|{}|{}", store.answer.model, store.answer.request_id);
        let index = name::answers(project);

        let pipeline = self.cache.pipeline();
        let body = Value::Bytes(store.answer.encode_to_vec().into());
        let () = pipeline.set(name::answer(project, &key), body, Some(Expiration::EX(store.ttl_s.into())), None, false).await?;
        let () = pipeline.zremrangebyscore(&index, f64::NEG_INFINITY, now.as_secs_f64().floor()).await?;
        let () = pipeline.zadd(&index, None, None, false, false, (expiry.as_secs_f64().ceil(), member.clone())).await?;
        for stamp in &store.memories {
            let of = name::answers_of(project, &memories::owner(&stamp.end_user));
            let () = pipeline.zremrangebyscore(&of, f64::NEG_INFINITY, now.as_secs_f64().floor()).await?;
            let () = pipeline.zadd(&of, None, None, false, false, (expiry.as_secs_f64().ceil(), member.clone())).await?;
            // As long as any of them, also once the project's time is a shorter one: a deletion must find them all.
            for option in [ExpireOptions::NX, ExpireOptions::GT] {
                let () = pipeline.expire(&of, i64::from(store.ttl_s), Some(option)).await?;
            }
        }
        let () = pipeline.all().await?;
        if let Some(Vector { partition, vector, question }) = &store.vector
            && let Some(set) = vectors::set_of(partition, question)
        {
            self.vectors.keep(project, &set, vector, &store.cache_key, store.ttl_s).await?;
        }
        Ok(true)
    }

    /// Whether near matches can be looked up.
    pub async fn compares(&self) -> bool {
        self.vectors.able().await
    }

    /// Forgets the answers that came of this owner's memories.
    pub async fn drop_made_of(&self, project: &str, end_user: &str) -> Result<(), StoreError> {
        purge_of(&self.cache, project, &memories::owner(end_user)).await
    }

    /// Storing stops at 80 % of Redis' memory, asked once a second: money must never fail for want of room. A Redis that evicts (one
    /// of the cache's own) makes its room itself. On a cluster it is the room of the master that has the project.
    async fn has_room(&self, project: &str) -> Result<bool, StoreError> {
        let slot = fred::util::redis_keyslot(name::prefix(project).as_bytes());
        let master = self.cache.cached_cluster_state().and_then(|cluster| cluster.get_server(slot).cloned());
        if let Some((asked, room)) = self.rooms().get(&master)
            && asked.elapsed() < Duration::from_secs(1)
        {
            return Ok(*room);
        }
        let command = CustomCommand::new_static("INFO", ClusterHash::Custom(slot), false);
        let info: String = self.cache.custom(command, vec!["memory"]).await?;
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map_or("", str::trim);
        let bytes = |name: &str| field(name).parse::<u64>().unwrap_or(0);
        let (used, most) = (bytes("used_memory"), bytes("maxmemory"));
        let room = most == 0 || field("maxmemory_policy") != "noeviction" || used / 4 < most / 5;
        if !room {
            tracing::warn!(used, most, "answers are not stored: Redis is above 80 % of maxmemory; raise it or set REDIS_CACHE_URL");
        }
        self.rooms().insert(master, (Instant::now(), room));
        Ok(room)
    }

    fn rooms(&self) -> MutexGuard<'_, HashMap<Option<Server>, (Instant, bool)>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
