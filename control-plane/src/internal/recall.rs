//! What is remembered.

use super::{Failure, State, decode, encode};
use crate::store::memories;
use axum::body::Bytes;
use axum::extract::State as Extract;
use axum::response::Response;
use proxium_wire::{Memory, RecallReply, RecallRequest};

/// Answers the memories of a project and of one end user, newest first.
pub(super) async fn handle(Extract(state): Extract<State>, body: Bytes) -> Result<Response, Failure> {
    let request: RecallRequest = decode(body)?;
    let mut owners = vec![String::new()];
    if !request.end_user.is_empty() {
        owners.push(request.end_user);
    }
    let (mut found, mut stamps) = (Vec::new(), Vec::new());
    for end_user in owners {
        // The state before its memories: one that is deleted in between must not pass for remembered still.
        let stamp = memories::stamp(&state.redis, &request.project, &end_user).await?;
        let of_owner = memories::of(&state.redis, &request.project, &end_user).await?;
        if !of_owner.is_empty() {
            stamps.push(stamp);
            found.extend(of_owner);
        }
    }
    found.sort_by(|(id, memory), (other_id, other)| other.created_at.cmp(&memory.created_at).then_with(|| id.cmp(other_id)));
    let memories =
        found.into_iter().map(|(_, memory)| Memory { text: memory.text, end_user: memory.end_user.unwrap_or_default() }).collect();
    Ok(encode(&RecallReply { memories, stamps }))
}
