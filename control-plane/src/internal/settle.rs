//! What calls came to.

use super::{Failure, State, decode, encode};
use axum::body::Bytes;
use axum::extract::State as Extract;
use axum::response::Response;
use proxium_wire::SettleRequest;

/// Answers when all of it is in Redis. A filter waits 50 ms and leaves the rest to its outbox, and a request that is given up is dropped
/// where it stands: so the work has a task of its own, or a call could be recorded and its answer never stored.
pub(super) async fn handle(Extract(state): Extract<State>, body: Bytes) -> Result<Response, Failure> {
    let request: SettleRequest = decode(body)?;
    let work = tokio::spawn(async move {
        let reply = state.money.settle(&request).await?;
        state.metrics.settled(&request);
        Ok(encode(&reply))
    });
    work.await.unwrap_or_else(|ended| Err(Failure::Unavailable(format!("a settlement ended early: {ended}"))))
}
