//! Sessions of the console: a cookie's SHA-256 to the token that opened it. The token is looked up again at each request, so that a
//! session ends with it.

use super::keys::hash;
use super::record::text;
use super::{StoreError, name};
use fred::prelude::*;
use rand::distr::{Alphanumeric, SampleString};
use serde::{Deserialize, Serialize};

/// How long one lasts, in seconds: a working day.
pub const LASTS_S: i64 = 12 * 3_600;
const LETTERS: usize = 43;

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// SHA-256 of the token that opened it, lower-case hex.
    pub token: String,
    /// What every form must carry.
    pub csrf: String,
}

/// Opens one and answers the cookie's value.
///
/// # Errors
/// Redis cannot answer.
pub async fn open(redis: &Client, token: String) -> Result<String, StoreError> {
    let random = || Alphanumeric.sample_string(&mut rand::rng(), LETTERS);
    let (cookie, session) = (random(), Session { token, csrf: random() });
    let () = redis.set(name::session(&hash(&cookie)), text(&session)?, Some(Expiration::EX(LASTS_S)), None, false).await?;
    Ok(cookie)
}

/// The one of this cookie.
///
/// # Errors
/// Redis cannot answer.
pub async fn get(redis: &Client, cookie: &str) -> Result<Option<Session>, StoreError> {
    let name = name::session(&hash(cookie));
    let text: Option<String> = redis.get(&name).await?;
    text.map(|text| serde_json::from_str(&text).map_err(|error| StoreError::Corrupt(format!("{name}: {error}")))).transpose()
}

/// Ends it.
///
/// # Errors
/// Redis cannot answer.
pub async fn end(redis: &Client, cookie: &str) -> Result<(), StoreError> {
    Ok(redis.del(name::session(&hash(cookie))).await?)
}
