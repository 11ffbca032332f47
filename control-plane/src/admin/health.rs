//! Alive, ready, and counted.

use super::State;
use super::refusal::Refusal;
use crate::store::vectors;
use axum::Json;
use axum::extract::State as Extract;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand};
use serde_json::json;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::time::Duration;

/// A probe must not wait as long as a call may.
const PATIENCE: Duration = Duration::from_secs(1);

/// The process answers.
pub async fn live() -> &'static str {
    "ok\n"
}

/// 200 when Redis answers and has the functions that calls need, else 503. Warnings tell what works but should not stay so.
pub async fn ready(Extract(state): Extract<State>) -> Response {
    let mut warnings = Vec::new();
    let redis = in_time(state.money.ready()).await;
    if redis.is_ok() {
        warnings.extend(durability(&state.redis).await);
    }
    if state.cache.id() != state.redis.id()
        && let Err(error) = in_time(state.cache.ping::<()>(None)).await
    {
        warnings.push(format!("the Redis of stored answers cannot answer, nothing is cached: {error}"));
    }
    if state.catalog.current().embeddings.is_some() && vectors::supported(&state.cache).await.is_ok_and(|supported| !supported) {
        warnings.push("near matches are off: the Redis of stored answers has no vector sets; give it Redis 8 or newer".to_owned());
    }
    if let Some(fault) = state.catalog.last_fault() {
        warnings.push(format!("the catalog's file is refused, the one before is in use: {fault}"));
    }
    let status = if redis.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let redis = redis.map_or_else(|error| error, |()| "ok".to_owned());
    (status, Json(json!({"ready": status == StatusCode::OK, "redis": redis, "warnings": warnings}))).into_response()
}

/// For Prometheus.
pub async fn metrics(Extract(state): Extract<State>) -> Result<Response, Refusal> {
    let refused = state.catalog.last_fault().is_some();
    let text = state.metrics.text(refused).map_err(|error| Refusal::Unavailable(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

async fn in_time<E: Display>(answer: impl Future<Output = Result<(), E>>) -> Result<(), String> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer within a second".to_owned()),
    }
}

/// Budgets are exact only on a Redis that neither evicts nor forgets; on a cluster, each master.
async fn durability(redis: &Client) -> BTreeSet<String> {
    let mut warnings = BTreeSet::new();
    for node in redis.active_connections() {
        let node = redis.with_cluster_node(node);
        let command = CustomCommand::new_static("CONFIG", ClusterHash::Random, false);
        let asked = node.custom::<HashMap<String, String>, _>(command, vec!["GET", "maxmemory-policy", "appendonly", "appendfsync"]);
        let Ok(Ok(settings)) = tokio::time::timeout(PATIENCE, asked).await else {
            warnings.insert(
                "Redis does not tell its settings (CONFIG GET): make sure of `maxmemory-policy noeviction` and `appendfsync always`"
                    .to_owned(),
            );
            continue;
        };
        let is = |name: &str, wanted: &str| settings.get(name).is_none_or(|value| value == wanted);
        if !is("maxmemory-policy", "noeviction") {
            warnings.insert("Redis may evict keys and budgets: set `maxmemory-policy noeviction`, as in deploy/redis.conf".to_owned());
        }
        if !is("appendonly", "yes") || !is("appendfsync", "always") {
            warnings.insert(
                "Redis may lose the last calls at a crash: set `appendonly yes` and `appendfsync always`, as in deploy/redis.conf"
                    .to_owned(),
            );
        }
    }
    warnings
}
