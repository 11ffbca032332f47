//! What changed since a filter last asked: polled once a second by each, answered from memory.

use super::{Failure, State};
use crate::store::breakers;
use axum::body::Bytes;
use jiff::Timestamp;
use prost::Message;
use proxium_wire::{SnapshotReply, SnapshotRequest};

/// Answers catalog and changes; 503 while changes cannot be read, so that filters stop trusting what they cached.
pub(super) async fn answer(state: &State, body: Bytes) -> Result<Vec<u8>, Failure> {
    let request = SnapshotRequest::decode(body)?;
    if !request.breakers.is_empty() {
        // For people to see: a poll neither waits for it nor fails with it.
        let (redis, node, breakers) = (state.redis.clone(), request.node, request.breakers);
        tokio::spawn(async move {
            let now_ms = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default();
            if let Err(error) = breakers::tell(&redis, &node, &breakers, now_ms).await {
                tracing::debug!(%error, "open breakers could not be noted");
            }
        });
    }
    let since = state.changes.since(&request.cursor).await;
    let since = since.ok_or_else(|| Failure::Unavailable("changes cannot be read from Redis".to_owned()))?;
    let catalog = state.catalog.current();
    let catalog_revision = catalog.revision();
    Ok(SnapshotReply {
        catalog: (catalog_revision != request.catalog_revision).then(|| catalog.to_wire()),
        catalog_revision,
        cursor: since.cursor,
        changes: since.changes,
        forget_all: since.forget_all,
        forget_answers: since.forget_answers,
    }
    .encode_to_vec())
}
