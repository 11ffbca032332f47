//! What calls came to.

use super::{Failure, State, decode, encode};
use axum::body::Bytes;
use axum::extract::State as Extract;
use axum::response::Response;
use proxium_wire::SettleRequest;

/// Answers when all of it is in Redis.
pub(super) async fn handle(Extract(state): Extract<State>, body: Bytes) -> Result<Response, Failure> {
    let request: SettleRequest = decode(body)?;
    let reply = state.money.settle(&request).await?;
    state.metrics.settled(&request);
    Ok(encode(&reply))
}
