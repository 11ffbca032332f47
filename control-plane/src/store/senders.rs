//! Senders: settings for calls that carry one `x-proxium-source` value.

use super::record::{self, Ceilings, Expect, Place, Rules, Stored, Written};
use super::{StoreError, name};
use fred::prelude::*;
use fred::types::scripts::Script;
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// A sender's settings as people see them, but for its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sender {
    /// The first level of rules.
    pub rules: Rules,
    /// Ceilings beside the key's.
    pub ceilings: Ceilings,
}

static DELETE: LazyLock<Script> = LazyLock::new(|| {
    Script::from_lua(
        "-- KEYS: sender, senders. ARGV: source
        redis.call('SREM', KEYS[2], ARGV[1])
        return redis.call('DEL', KEYS[1])",
    )
});

/// Writes a sender's settings, new or anew. Its windows stay.
///
/// # Errors
/// Redis cannot answer.
pub async fn put(redis: &Client, project: &str, source: &str, sender: &Sender) -> Result<Written, StoreError> {
    let held = Some(name::held_by_sender(project, source));
    let place = Place { project, key: name::sender(project, source), index: Some((name::senders(project), source)), held };
    record::put(redis, place, Expect::Anything, sender, sender.ceilings.fields()).await
}

/// Reads a sender's settings.
///
/// # Errors
/// Redis cannot answer.
pub async fn get(redis: &Client, project: &str, source: &str) -> Result<Option<Stored<Sender>>, StoreError> {
    record::get(redis, name::sender(project, source)).await
}

/// All senders of a project that have settings, by name.
///
/// # Errors
/// Redis cannot answer.
pub async fn list(redis: &Client, project: &str) -> Result<Vec<(String, Sender)>, StoreError> {
    let sources = redis.smembers(name::senders(project)).await?;
    record::list(redis, sources, |source| name::sender(project, source)).await
}

/// Takes a sender's settings away; answers whether there were any.
///
/// # Errors
/// Redis cannot answer.
pub async fn delete(redis: &Client, project: &str, source: &str) -> Result<bool, StoreError> {
    let keys = vec![name::sender(project, source), name::senders(project)];
    let gone: u64 = DELETE.evalsha_with_reload(redis, keys, vec![source]).await?;
    Ok(gone == 1)
}
