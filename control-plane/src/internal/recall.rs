//! What is remembered.

use super::{Failure, State};
use crate::store::{StoreError, memories, vectors};
use axum::body::Bytes;
use prost::Message;
use proxium_wire::{Memory, RecallReply, RecallRequest};

/// Answers the memories of a project and of one end user, newest first; or, to a vector, which of them are nearest to it.
pub(super) async fn answer(state: &State, body: Bytes) -> Result<Vec<u8>, Failure> {
    let request = RecallRequest::decode(body)?;
    let mut owners = vec![""];
    if !request.end_user.is_empty() {
        owners.push(&request.end_user);
    }
    let reply =
        if request.vector.is_empty() { remembered(state, &request, &owners).await? } else { nearest(state, &request, &owners).await? };
    Ok(reply.encode_to_vec())
}

async fn remembered(state: &State, request: &RecallRequest, owners: &[&str]) -> Result<RecallReply, StoreError> {
    let (mut found, mut stamps) = (Vec::new(), Vec::new());
    for end_user in owners {
        // The state before its memories: one that is deleted in between must not pass for remembered still.
        let stamp = memories::stamp(&state.redis, &request.project, end_user).await?;
        let of_owner = memories::of(&state.redis, &request.project, end_user).await?;
        if !of_owner.is_empty() {
            stamps.push(stamp);
            found.extend(of_owner);
        }
    }
    found.sort_by(|(id, memory), (other_id, other)| other.created_at.cmp(&memory.created_at).then_with(|| id.cmp(other_id)));
    // Few are taken all: only many are ranked.
    let many = found.iter().map(|(_, memory)| memory.text.len()).sum::<usize>() > 2_000;
    let ranks = many && !request.ranks_by.is_empty() && vectors::supported(&state.cache).await.unwrap_or(false);
    let unembedded =
        if ranks { memories::unembedded(&state.cache, &request.project, &request.ranks_by, &found).await } else { Ok(Vec::new()) };
    let (ranks, unembedded) = match unembedded {
        Ok(ids) => (ranks, ids),
        Err(error) => {
            tracing::warn!(project = request.project, %error, "memories cannot be ranked; the newest are taken");
            (false, Vec::new())
        }
    };
    let memory = |(id, memory): (String, memories::Memory)| Memory { text: memory.text, end_user: memory.end_user.unwrap_or_default(), id };
    Ok(RecallReply { memories: found.into_iter().map(memory).collect(), stamps, unembedded, ranks, ..RecallReply::default() })
}

async fn nearest(state: &State, request: &RecallRequest, owners: &[&str]) -> Result<RecallReply, StoreError> {
    let RecallRequest { project, ranks_by, vector, fresh, .. } = request;
    for memory in fresh {
        memories::embed(&state.cache, project, ranks_by, memory).await?;
    }
    let nearest = memories::nearest(&state.cache, project, ranks_by, vector, owners).await?;
    Ok(RecallReply { nearest, ..RecallReply::default() })
}
