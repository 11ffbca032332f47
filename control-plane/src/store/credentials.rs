//! A project's own credentials, by provider: sealed texts only, see [`crate::seal`].

use super::record::Written;
use super::{StoreError, name};
use fred::prelude::*;
use fred::types::scripts::Script;
use std::collections::BTreeMap;
use std::sync::LazyLock;

static PUT: LazyLock<Script> = LazyLock::new(|| {
    Script::from_lua(
        "-- KEYS: credentials, project, state. ARGV: provider, sealed
        if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
        redis.call('HDEL', KEYS[3], 'no_credentials')
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
        return 1",
    )
});

/// Keeps a sealed secret, in the place of an older one.
///
/// # Errors
/// Redis cannot answer.
pub async fn put(redis: &Client, project: &str, provider: &str, sealed: &str) -> Result<Written, StoreError> {
    let keys = vec![name::credentials(project), name::project(project), name::state(project)];
    let done: u64 = PUT.evalsha_with_reload(redis, keys, vec![provider, sealed]).await?;
    Ok(if done == 1 { Written::Done } else { Written::NoProject })
}

/// The providers that have one, in order.
///
/// # Errors
/// Redis cannot answer.
pub async fn list(redis: &Client, project: &str) -> Result<Vec<String>, StoreError> {
    let mut providers: Vec<String> = redis.hkeys(name::credentials(project)).await?;
    providers.sort_unstable();
    Ok(providers)
}

/// All with their sealed texts, by provider.
///
/// # Errors
/// Redis cannot answer.
pub async fn all(redis: &Client, project: &str) -> Result<BTreeMap<String, String>, StoreError> {
    Ok(redis.hgetall(name::credentials(project)).await?)
}

static SWAP: LazyLock<Script> = LazyLock::new(|| {
    Script::from_lua(
        "-- KEYS: credentials. ARGV: provider, sealed before, sealed anew
        if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
        return 1",
    )
});

/// Puts a sealed text in the place of that very one; answers whether it was still there.
///
/// # Errors
/// Redis cannot answer.
pub async fn swap(redis: &Client, project: &str, provider: &str, before: &str, anew: &str) -> Result<bool, StoreError> {
    let done: u64 = SWAP.evalsha_with_reload(redis, vec![name::credentials(project)], vec![provider, before, anew]).await?;
    Ok(done == 1)
}

/// Takes one away; answers whether there was one.
///
/// # Errors
/// Redis cannot answer.
pub async fn delete(redis: &Client, project: &str, provider: &str) -> Result<bool, StoreError> {
    let gone: u64 = redis.hdel(name::credentials(project), provider).await?;
    Ok(gone == 1)
}
