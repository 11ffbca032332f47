//! What the records of projects, keys and senders share: how they are written, and their common parts.
//!
//! A record is a hash: `record` is the document people see, the other fields are the parts that scripts read. Both are always written
//! together, as a whole, by one script: there is no instant, and no crash, between them.

use super::{StoreError, name};
use fred::prelude::*;
use fred::types::scripts::Script;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Requested name (model, tier or `*`) to the names of a chain.
pub type Rules = BTreeMap<String, Vec<String>>;

/// The most that Lua's numbers count exactly; no ceiling may be above.
pub const MAX_EXACT: u64 = (1 << 53) - 1;

/// Ceilings of a key or a sender. Absent: none; 0: nothing passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ceilings {
    /// Calls in the last hour.
    pub calls_per_hour: Option<u64>,
    /// Calls in the last minute.
    pub requests_per_minute: Option<u64>,
    /// Tokens in the last minute.
    pub tokens_per_minute: Option<u64>,
    /// Calls at once.
    pub max_parallel_calls: Option<u64>,
}

impl Ceilings {
    /// The fields that the reserve script reads.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'static str, String)> {
        [
            ("calls_per_hour", self.calls_per_hour),
            ("requests_per_minute", self.requests_per_minute),
            ("tokens_per_minute", self.tokens_per_minute),
            ("max_parallel_calls", self.max_parallel_calls),
        ]
        .into_iter()
        .filter_map(|(name, ceiling)| Some((name, ceiling?.to_string())))
    }
}

/// A record as it stands in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<T> {
    /// What it says.
    pub value: T,
    /// Its very text, to notice a change in between when it is written again.
    pub text: String,
}

impl<T: DeserializeOwned> Stored<T> {
    /// `what` names the record in the error.
    pub(super) fn read(text: String, what: &str) -> Result<Self, StoreError> {
        let value = serde_json::from_str(&text).map_err(|error| StoreError::Corrupt(format!("{what}: {error}")))?;
        Ok(Self { value, text })
    }
}

/// What a record must be for a new one to take its place.
#[derive(Clone, Copy, Debug)]
pub enum Expect<'a> {
    /// Anything, or nothing.
    Anything,
    /// Nothing: it is new.
    Nothing,
    /// What was read.
    Text(&'a str),
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is in Redis.
    Done,
    /// The project is not there (any more).
    NoProject,
    /// Somebody else wrote in between: read again.
    Changed,
}

static PUT: LazyLock<Script> = LazyLock::new(|| {
    Script::from_lua(
        "-- KEYS: record, index, project, what is made anew from it. ARGV: expected text, member of the index, then field, value, ...
        if redis.call('EXISTS', KEYS[3]) == 0 then return 'no_project' end
        if ARGV[1] ~= '*' and ARGV[1] ~= (redis.call('HGET', KEYS[1], 'record') or '') then return 'changed' end
        local window_until = redis.call('HGET', KEYS[1], 'window_until')
        redis.call('DEL', KEYS[1], KEYS[4])
        redis.call('HSET', KEYS[1], unpack(ARGV, 3))
        if window_until then redis.call('HSET', KEYS[1], 'window_until', window_until) end
        if ARGV[2] ~= '' then redis.call('SADD', KEYS[2], ARGV[2]) end
        return 'done'",
    )
});

/// Where a record lives.
pub(super) struct Place<'a> {
    /// The project, which must exist.
    pub project: &'a str,
    /// Name of the hash.
    pub key: String,
    /// The set that lists records of its kind, and this one's member; `None` for the project itself.
    pub index: Option<(String, &'a str)>,
    /// The set of its calls at once, made anew by the next admission under the ceilings that are written; `None` for the project itself.
    pub held: Option<String>,
}

/// Writes a record in one step. Repeating it does no harm.
pub(super) async fn put<T: Serialize + Sync>(
    redis: &Client,
    place: Place<'_>,
    expect: Expect<'_>,
    value: &T,
    fields: impl Iterator<Item = (&'static str, String)> + Send,
) -> Result<Written, StoreError> {
    let held = place.held.unwrap_or_else(|| place.key.clone());
    let (index, member) = place.index.unwrap_or_else(|| (place.key.clone(), ""));
    let expected = match expect {
        Expect::Anything => "*",
        Expect::Nothing => "",
        Expect::Text(text) => text,
    };
    let mut args = vec![expected.to_owned(), member.to_owned(), "record".to_owned(), text(value)?];
    args.extend(fields.flat_map(|(name, value)| [name.to_owned(), value]));
    let outcome: String = PUT.evalsha_with_reload(redis, vec![place.key, index, name::project(place.project), held], args).await?;
    match outcome.as_str() {
        "done" => Ok(Written::Done),
        "no_project" => Ok(Written::NoProject),
        _ => Ok(Written::Changed),
    }
}

/// The JSON text of a record.
pub(super) fn text<T: Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Corrupt(error.to_string()))
}

/// Reads one record.
pub(super) async fn get<T: DeserializeOwned>(redis: &Client, key: String) -> Result<Option<Stored<T>>, StoreError> {
    let text: Option<String> = redis.hget(&key, "record").await?;
    text.map(|text| Stored::read(text, &key)).transpose()
}

/// Reads the records of `ids`, in their order; those that are gone are left out.
pub(super) async fn list<T: DeserializeOwned>(
    redis: &Client,
    mut ids: Vec<String>,
    key: impl Fn(&str) -> String,
) -> Result<Vec<(String, T)>, StoreError> {
    ids.sort_unstable();
    let pipeline = redis.pipeline();
    for id in &ids {
        let () = pipeline.hget(key(id), "record").await?;
    }
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let texts: Vec<Option<String>> = pipeline.all().await?;
    ids.into_iter()
        .zip(texts)
        .filter_map(|(id, text)| {
            let stored = Stored::read(text?, &key(&id));
            Some(stored.map(|stored| (id, stored.value)))
        })
        .collect()
}

/// A fraction from 0 to 1 in parts per million; in documents a JSON number with at most six decimals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fraction(pub u32);

impl Serialize for Fraction {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // In plain decimals, as a person writes it: a millionth is 1000 of the smallest parts of money's text.
        let text = proxium_wire::NanoUsd(i64::from(self.0) * 1_000).to_string();
        serde_json::value::RawValue::from_string(text).map_err(serde::ser::Error::custom)?.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let fraction = f64::deserialize(from)?.clamp(0.0, 1.0);
        Ok(Self((fraction * 1e6).round() as u32))
    }
}

/// Money in documents: a decimal string of USD, or null.
pub(super) mod usd {
    use proxium_wire::NanoUsd;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    /// As text.
    #[allow(clippy::ref_option, reason = "serde's signature")]
    pub fn serialize<S: Serializer>(amount: &Option<NanoUsd>, to: S) -> Result<S::Ok, S::Error> {
        amount.map(|amount| amount.to_string()).serialize(to)
    }

    /// From text.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NanoUsd>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}
