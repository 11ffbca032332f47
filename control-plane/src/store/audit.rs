//! Who changed what, for people: a stream of all changes made through the admin API. No secrets.

use super::{StoreError, name};
use fred::prelude::*;

/// About this many of the newest entries are kept.
const KEPT: i64 = 100_000;

/// Adds an entry; its id tells when. Done right before the change itself, so that no change goes without.
///
/// # Errors
/// Redis cannot answer.
pub async fn add(redis: &Client, who: &str, what: &str, project: &str) -> Result<(), StoreError> {
    let fields = vec![("who", who), ("what", what), ("project", project)];
    Ok(redis.xadd(name::AUDIT, false, ("MAXLEN", "~", KEPT), "*", fields).await?)
}
