//! May this call be made?

use super::{Failure, State};
use crate::store::StoreError;
use axum::body::Bytes;
use prost::Message;
use proxium_wire::{AdmitRequest, admit_reply::Outcome};

/// Answers a stored answer, a reservation with the project's own credentials, or a refusal.
pub(super) async fn answer(state: &State, body: Bytes) -> Result<Vec<u8>, Failure> {
    let request = AdmitRequest::decode(body)?;
    let open = |provider: &str, sealed: &str| {
        let secret = state.seal.open(&request.project, provider, sealed);
        secret.map_err(|error| StoreError::Corrupt(format!("credential of {} for {provider}: {error}", request.project)))
    };
    let reply = state.money.admit(&request, open).await?;
    state.metrics.admitted(&reply);
    if let Some(Outcome::Refused(refused)) = &reply.outcome {
        state.refusals.count(&request.project, refused);
    }
    Ok(reply.encode_to_vec())
}
