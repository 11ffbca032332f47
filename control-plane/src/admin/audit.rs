//! The audit stream, to be read.

use super::State;
use super::refusal::Refusal;
use crate::store::audit::{self as store, From};
use crate::store::spend::Record;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as Extract};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

const MOST_ENTRIES: u64 = 1_000;

/// `?before&after&limit`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    before: Option<String>,
    after: Option<String>,
    limit: Option<u64>,
}

/// Entries, the newest first; behind the cursor `after`, the oldest first, so that an export misses and repeats none. `next` goes on.
pub async fn list(Extract(state): Extract<State>, page: Result<Query<Page>, QueryRejection>) -> Result<Response, Refusal> {
    let Query(Page { before, after, limit }) = page.map_err(|error| Refusal::field("query", error.body_text()))?;
    let limit = limit.unwrap_or(100);
    if !(1..=MOST_ENTRIES).contains(&limit) {
        return Err(Refusal::field("limit", format!("must be a whole number from 1 to {MOST_ENTRIES}")));
    }
    for (name, cursor) in [("before", &before), ("after", &after)] {
        if cursor.as_deref().is_some_and(|cursor| !is_cursor(cursor)) {
            return Err(Refusal::field(name, "must be the `next` or a `cursor` of an answer before; `after=0-0` begins at the oldest"));
        }
    }
    let from = match (&before, &after) {
        (Some(_), Some(_)) => return Err(Refusal::field("before", "give one of `before` and `after`")),
        (before, None) => From::Newest(before.as_deref()),
        (None, Some(after)) => From::Behind(after),
    };
    let entries = store::page(&state.redis, from, limit).await?;
    let next = entries.last().map(|(cursor, _)| cursor.clone()).or(before).or(after);
    let entries: Vec<Value> = entries.into_iter().map(entry).collect();
    Ok(axum::Json(json!({"entries": entries, "next": next})).into_response())
}

/// The cursor's milliseconds are when.
pub fn entry((cursor, fields): Record) -> Value {
    let at = cursor.split_once('-').and_then(|(ms, _)| Timestamp::from_millisecond(ms.parse().ok()?).ok());
    let mut all = Map::new();
    all.insert("at".to_owned(), at.map(|at| at.to_string()).into());
    for (name, text) in fields {
        let is_document = matches!(name.as_str(), "before" | "after");
        let value = if is_document { serde_json::from_str(&text).unwrap_or(Value::Null) } else { text.into() };
        all.insert(name, value);
    }
    all.insert("cursor".to_owned(), cursor.into());
    all.into()
}

/// Whether a text is one: milliseconds and a number.
pub fn is_cursor(text: &str) -> bool {
    text.split_once('-').is_some_and(|(ms, number)| ms.parse::<u64>().is_ok() && number.parse::<u64>().is_ok())
}
