//! What calls came to.

use super::{Failure, State};
use axum::body::Bytes;
use prost::Message;
use proxium_wire::SettleRequest;
use std::sync::Arc;

/// Answers when all of it is in Redis. A filter waits 50 ms and leaves the rest to its outbox, and a request that is given up is dropped
/// where it stands: so the work has a task of its own, or a call could be recorded and its answer never stored.
pub(super) async fn answer(state: Arc<State>, body: Bytes) -> Result<Vec<u8>, Failure> {
    let request = SettleRequest::decode(body)?;
    let work = tokio::spawn(async move {
        let reply = state.money.settle(&request).await?;
        state.metrics.settled(&request);
        Ok(reply.encode_to_vec())
    });
    work.await.unwrap_or_else(|ended| Err(Failure::Unavailable(format!("a settlement ended early: {ended}"))))
}
