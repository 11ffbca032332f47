//! May this call be made?

use super::{Failure, State, decode, encode};
use crate::store::StoreError;
use axum::body::Bytes;
use axum::extract::State as Extract;
use axum::response::Response;
use proxium_wire::{AdmitRequest, admit_reply::Outcome};

/// Answers a stored answer, a reservation with the project's own credentials, or a refusal.
pub(super) async fn handle(Extract(state): Extract<State>, body: Bytes) -> Result<Response, Failure> {
    let request: AdmitRequest = decode(body)?;
    let open = |provider: &str, sealed: &str| {
        let secret = state.seal.open(&request.project, provider, sealed);
        secret.map_err(|error| StoreError::Corrupt(format!("credential of {} for {provider}: {error}", request.project)))
    };
    let reply = state.money.admit(&request, open).await?;
    state.metrics.admitted(&reply);
    if let Some(Outcome::Refused(refused)) = &reply.outcome {
        state.refusals.count(&request.project, refused);
    }
    Ok(encode(&reply))
}
