//! Tokens of the admin API: who may look, who may change. A token's text is shown once and kept as its SHA-256 only.

use super::record::text;
use super::{StoreError, name};
use fred::prelude::*;
use jiff::Timestamp;
use rand::distr::{Alphanumeric, SampleString};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// What every token's text begins with, so that one can be told from a key, and be found by scanners for leaked secrets.
pub const PREFIX: &str = "pxa_";
/// Random letters behind it: 43 of 62 letters are 256 bits.
const LETTERS: usize = 43;

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Everything.
    Admin,
    /// Reading.
    Viewer,
}

impl Role {
    /// The name in documents and in the audit stream.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Viewer => "viewer",
        }
    }
}

/// A token as people see it, but for its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Its public id.
    pub id: String,
    /// For people.
    pub name: String,
    /// What it allows.
    pub role: Role,
    /// Refused from this instant on.
    #[serde(default)]
    pub expires_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Who made it.
    pub created_by: String,
}

impl Token {
    /// A new one with an id of its own.
    #[must_use]
    pub fn new(name: String, role: Role, expires_at: Option<Timestamp>, created_by: String) -> Self {
        let id = format!("tok_{}", Alphanumeric.sample_string(&mut rand::rng(), 16));
        Self { id, name, role, expires_at, created_at: Timestamp::now(), created_by }
    }

    /// Whether it is still good at `now`.
    #[must_use]
    pub fn is_good(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|at| now < at)
    }
}

/// Keeps a token and answers its text, to be shown now or never.
///
/// # Errors
/// Redis cannot answer.
pub async fn create(redis: &Client, token: &Token) -> Result<String, StoreError> {
    let secret = format!("{PREFIX}{}", Alphanumeric.sample_string(&mut rand::rng(), LETTERS));
    let () = redis.hset(name::TOKENS, vec![(super::keys::hash(&secret), text(token)?)]).await?;
    Ok(secret)
}

/// The token with this SHA-256 (lower-case hex), expired or not.
///
/// # Errors
/// Redis cannot answer.
pub async fn by_hash(redis: &Client, hash: &str) -> Result<Option<Token>, StoreError> {
    let text: Option<String> = redis.hget(name::TOKENS, hash).await?;
    text.map(|text| read(&text)).transpose()
}

/// All, the oldest first.
///
/// # Errors
/// Redis cannot answer.
pub async fn list(redis: &Client) -> Result<Vec<Token>, StoreError> {
    Ok(all(redis).await?.into_iter().map(|(_, token)| token).collect())
}

/// Ends a token and answers what it was; `None`: there was none.
///
/// # Errors
/// Redis cannot answer.
pub async fn delete(redis: &Client, id: &str) -> Result<Option<Token>, StoreError> {
    let Some((hash, token)) = all(redis).await?.into_iter().find(|(_, token)| token.id == id) else { return Ok(None) };
    let gone: u64 = redis.hdel(name::TOKENS, hash).await?;
    Ok((gone == 1).then_some(token))
}

async fn all(redis: &Client) -> Result<Vec<(String, Token)>, StoreError> {
    let texts: HashMap<String, String> = redis.hgetall(name::TOKENS).await?;
    let mut tokens = texts.into_iter().map(|(hash, text)| Ok((hash, read(&text)?))).collect::<Result<Vec<_>, StoreError>>()?;
    tokens.sort_unstable_by(|(_, a), (_, b)| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    Ok(tokens)
}

fn read(text: &str) -> Result<Token, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Corrupt(format!("{}: {error}", name::TOKENS)))
}
