//! Who keeps the responses of `/v1/responses`, so that a project, and nobody else, can go on from one where it was made.

use super::{StoreError, name};
use fred::prelude::*;
use fred::types::Expiration;
use prost::Message;
use proxium_wire::ResponseOwner;
use std::time::Duration;

/// As long as OpenAI keeps a response (platform.openai.com/docs/guides/conversation-state, 2026).
const KEPT_S: i64 = 30 * 86_400;
/// A longer id is none of a provider's.
const MAX_ID_BYTES: usize = 256;
/// The record of a response may still be on its way when a fast client goes on from it: it is looked for so often, this far apart.
const LOOKS: usize = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Remembers who keeps a response.
///
/// # Errors
/// Redis cannot answer.
pub async fn keep(redis: &Client, project: &str, id: &str, owner: &ResponseOwner) -> Result<(), StoreError> {
    if id.len() > MAX_ID_BYTES {
        return Ok(());
    }
    let body = Value::Bytes(owner.encode_to_vec().into());
    Ok(redis.set(name::response(project, id), body, Some(Expiration::EX(KEPT_S)), None, false).await?)
}

/// Who keeps a response of this project; none after a second of looking.
///
/// # Errors
/// Redis cannot answer, or the record cannot be read.
pub async fn find(redis: &Client, project: &str, id: &str) -> Result<Option<ResponseOwner>, StoreError> {
    let name = name::response(project, id);
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        let found: Option<Vec<u8>> = redis.get(&name).await?;
        if let Some(bytes) = found {
            return ResponseOwner::decode(bytes.as_slice()).map(Some).map_err(|error| StoreError::Corrupt(format!("{name}: {error}")));
        }
    }
    Ok(None)
}
