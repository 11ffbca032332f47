//! Keys: who may call. A key's text is shown once and kept as its SHA-256 only.

use super::projects::Project;
use super::record::{self, Ceilings, Expect, Place, Rules, Stored, Written};
use super::senders::Sender;
use super::{StoreError, name};
use fred::prelude::*;
use fred::types::scripts::Script;
use jiff::Timestamp;
use rand::distr::{Alphanumeric, SampleString};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// What every key's text begins with.
pub const PREFIX: &str = "px_";
/// Random letters behind it: 43 of 62 letters are 256 bits.
const LETTERS: usize = 43;

/// A key as people see it, but for its id and its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// For people.
    pub name: String,
    /// Refused from this instant on.
    #[serde(default)]
    pub expires_at: Option<Timestamp>,
    /// Refused for ever.
    #[serde(default)]
    pub revoked: bool,
    /// Catalog models it may use; empty: all.
    #[serde(default)]
    pub allowed_models: Vec<String>,
    /// Its level of rules.
    #[serde(default)]
    pub rules: Rules,
    /// Its ceilings.
    #[serde(default)]
    pub ceilings: Ceilings,
    /// When it was made.
    pub created_at: Timestamp,
}

impl Key {
    /// The expiry in milliseconds since 1970.
    #[must_use]
    pub fn expires_at_ms(&self) -> Option<u64> {
        self.expires_at.map(|at| u64::try_from(at.as_millisecond()).unwrap_or(0))
    }

    fn fields(&self, hash: &str) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let hash = ("hash", hash.to_owned());
        let revoked = self.revoked.then(|| ("revoked", "1".to_owned()));
        let expires_at = self.expires_at_ms().map(|at| ("expires_at_ms", at.to_string()));
        let ceilings: Vec<_> = self.ceilings.fields().collect();
        [Some(hash), revoked, expires_at].into_iter().flatten().chain(ceilings)
    }
}

/// A key that was just made.
pub struct NewKey {
    /// Its public id.
    pub id: String,
    /// Its text, to be shown now or never.
    pub text: String,
}

/// A key found by its hash, with everything of its project that the filter needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The key's id.
    pub key_id: String,
    /// The key.
    pub key: Key,
    /// The project's id.
    pub project_id: String,
    /// The project.
    pub project: Project,
    /// Its senders that have settings.
    pub senders: BTreeMap<String, Sender>,
    /// Providers with a credential of the project's own.
    pub own_credentials: Vec<String>,
}

static IDENTIFY: LazyLock<Script> = LazyLock::new(|| {
    Script::from_lua(
        "-- KEYS: key, project, senders, credentials. ARGV: what stands before a sender's name, hash
        local key, project = redis.call('HGET', KEYS[1], 'record'), redis.call('HGET', KEYS[2], 'record')
        if not key or not project or redis.call('HGET', KEYS[1], 'hash') ~= ARGV[2] then return {} end
        local sources, senders = redis.call('SMEMBERS', KEYS[3]), {}
        for at, source in ipairs(sources) do senders[at] = redis.call('HGET', ARGV[1] .. source, 'record') or 'null' end
        return {{key, project}, sources, senders, redis.call('HKEYS', KEYS[4])}",
    )
});

/// Takes a key away and answers its hash.
static DELETE: LazyLock<Script> = LazyLock::new(|| {
    Script::from_lua(
        "-- KEYS: key, keys. ARGV: key id
        local hash = redis.call('HGET', KEYS[1], 'hash')
        redis.call('DEL', KEYS[1])
        redis.call('SREM', KEYS[2], ARGV[1])
        return hash",
    )
});

/// The SHA-256 of a key's text, lower-case hex.
#[must_use]
pub fn hash(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

/// Makes a key; `None`: there is no such project.
///
/// The record comes before the pointer (another slot): a crash between leaves a key that is listed, can be deleted, and that nobody has.
///
/// # Errors
/// Redis cannot answer.
pub async fn create(redis: &Client, project: &str, key: &Key) -> Result<Option<NewKey>, StoreError> {
    let id = format!("key_{}", random(16));
    let text = format!("{PREFIX}{}", random(LETTERS));
    let hash = hash(&text);
    match put(redis, project, &id, Expect::Nothing, key, &hash).await? {
        Written::Done => {}
        Written::NoProject => return Ok(None),
        Written::Changed => return Err(StoreError::Corrupt(format!("{}: a random id came twice", name::key(project, &id)))),
    }
    let () = redis.set(name::key_hash(&hash), format!("{project}/{id}"), None, None, false).await?;
    Ok(Some(NewKey { id, text }))
}

/// Reads a key, and its hash.
///
/// # Errors
/// Redis cannot answer.
pub async fn get(redis: &Client, project: &str, id: &str) -> Result<Option<(Stored<Key>, String)>, StoreError> {
    let name = name::key(project, id);
    let (text, hash): (Option<String>, Option<String>) = redis.hmget(&name, vec!["record", "hash"]).await?;
    let (Some(text), Some(hash)) = (text, hash) else { return Ok(None) };
    Ok(Some((Stored::read(text, &name)?, hash)))
}

/// All keys of a project with their ids, in the order of these.
///
/// # Errors
/// Redis cannot answer.
pub async fn list(redis: &Client, project: &str) -> Result<Vec<(String, Key)>, StoreError> {
    let ids = redis.smembers(name::keys(project)).await?;
    record::list(redis, ids, |id| name::key(project, id)).await
}

/// Writes a key anew. Its windows stay.
///
/// # Errors
/// Redis cannot answer.
pub async fn replace(redis: &Client, project: &str, id: &str, before: &str, key: &Key, hash: &str) -> Result<Written, StoreError> {
    put(redis, project, id, Expect::Text(before), key, hash).await
}

/// Deletes a key and answers its hash; `None`: there was none.
///
/// # Errors
/// Redis cannot answer.
pub async fn delete(redis: &Client, project: &str, id: &str) -> Result<Option<String>, StoreError> {
    let keys = vec![name::key(project, id), name::keys(project)];
    let hash: Option<String> = DELETE.evalsha_with_reload(redis, keys, vec![id]).await?;
    if let Some(hash) = &hash {
        let () = redis.del(name::key_hash(hash)).await?;
    }
    Ok(hash)
}

/// Finds a key by its hash (lower-case hex), in two round trips; the second is one consistent look at its project.
///
/// # Errors
/// Redis cannot answer.
pub async fn identify(redis: &Client, hash: &str) -> Result<Option<Identity>, StoreError> {
    let pointer: Option<String> = redis.get(name::key_hash(hash)).await?;
    let Some(pointer) = pointer else { return Ok(None) };
    let (project_id, key_id) = pointer.split_once('/').ok_or_else(|| StoreError::Corrupt(name::key_hash(hash)))?;
    let key_name = name::key(project_id, key_id);
    let keys = vec![key_name.clone(), name::project(project_id), name::senders(project_id), name::credentials(project_id)];
    let found: Vec<Vec<String>> = IDENTIFY.evalsha_with_reload(redis, keys, vec![name::sender(project_id, ""), hash.to_owned()]).await?;
    let mut found = found.into_iter();
    let (Some(records), Some(sources), Some(senders), Some(mut own_credentials)) = (found.next(), found.next(), found.next(), found.next())
    else {
        return Ok(None);
    };
    let [key, project] = <[String; 2]>::try_from(records).map_err(|_| StoreError::Corrupt(key_name.clone()))?;
    let senders = sources
        .into_iter()
        .zip(senders)
        .map(|(source, text)| {
            let sender = Stored::<Option<Sender>>::read(text, &name::sender(project_id, &source))?;
            Ok(sender.value.map(|sender| (source, sender)))
        })
        .filter_map(Result::transpose)
        .collect::<Result<_, StoreError>>()?;
    own_credentials.sort_unstable();
    Ok(Some(Identity {
        key_id: key_id.to_owned(),
        key: Stored::read(key, &key_name)?.value,
        project_id: project_id.to_owned(),
        project: Stored::read(project, &name::project(project_id))?.value,
        senders,
        own_credentials,
    }))
}

/// Random letters and digits. The thread's generator is a cryptographic one, seeded and reseeded by the operating system.
fn random(letters: usize) -> String {
    Alphanumeric.sample_string(&mut rand::rng(), letters)
}

async fn put(redis: &Client, project: &str, id: &str, expect: Expect<'_>, key: &Key, hash: &str) -> Result<Written, StoreError> {
    let held = Some(name::held_by_key(project, id));
    let place = Place { project, key: name::key(project, id), index: Some((name::keys(project), id)), held };
    record::put(redis, place, expect, key, key.fields(hash)).await
}
