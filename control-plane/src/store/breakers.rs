//! Breakers that are not closed, as filters tell them with each poll. For people to see only; nothing is decided by it.

use super::{StoreError, name};
use fred::prelude::*;
use proxium_wire::OpenBreaker;
use std::collections::{BTreeMap, HashMap};

/// An Envoy polls every second: what it did not repeat for so long is closed, or the Envoy is gone.
const GOOD_FOR_MS: u64 = 5_000;
/// All is forgotten when nobody tells anything for so long, in seconds.
const KEPT_S: i64 = 60;

/// Notes what an Envoy told.
///
/// # Errors
/// Redis cannot answer.
pub async fn tell(redis: &Client, node: &str, breakers: &[OpenBreaker], now_ms: u64) -> Result<(), StoreError> {
    let field = |breaker: &OpenBreaker| (format!("{node}|{}", breaker.credential), format!("{}|{now_ms}", breaker.until_ms));
    let pipeline = redis.pipeline();
    let () = pipeline.hset(name::BREAKERS, breakers.iter().map(field).collect::<HashMap<_, _>>()).await?;
    let () = pipeline.expire(name::BREAKERS, KEPT_S, None).await?;
    Ok(pipeline.all().await?)
}

/// A breaker that is not closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotClosed {
    /// On so many Envoys.
    pub envoys: usize,
    /// The latest instant until which one of them refuses, in milliseconds since 1970; in the past: half-open, the next call decides.
    pub until_ms: u64,
}

/// All, by credential: `<provider>` for the platform's, `<project>/<provider>` for a project's own.
///
/// # Errors
/// Redis cannot answer.
pub async fn list(redis: &Client, now_ms: u64) -> Result<BTreeMap<String, NotClosed>, StoreError> {
    let told: HashMap<String, String> = redis.hgetall(name::BREAKERS).await?;
    let mut all: BTreeMap<String, NotClosed> = BTreeMap::new();
    for (field, value) in &told {
        let (Some((_, credential)), Some((until_ms, told_ms))) = (field.split_once('|'), value.split_once('|')) else { continue };
        let (Ok(until_ms), Ok(told_ms)) = (until_ms.parse::<u64>(), told_ms.parse::<u64>()) else { continue };
        if told_ms.saturating_add(GOOD_FOR_MS) >= now_ms {
            let breaker = all.entry(credential.to_owned()).or_insert(NotClosed { envoys: 0, until_ms });
            breaker.envoys += 1;
            breaker.until_ms = breaker.until_ms.max(until_ms);
        }
    }
    Ok(all)
}
