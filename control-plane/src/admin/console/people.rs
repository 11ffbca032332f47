//! Who may do what here, and who did what.

use super::form::{Document, Fields};
use super::page::{Failed, faults, instant};
use super::session::Visitor;
use crate::admin::audit::entry;
use crate::admin::tokens::{make, revoke as end};
use crate::admin::{State, refusal::Refusal};
use crate::store::{audit as store, tokens as kept};
use axum::Extension;
use axum::extract::{Path, Query, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const ENTRIES: u64 = 50;

/// What is shown above the list.
#[derive(Default)]
struct Above<'a> {
    made: Option<(&'a str, &'a str)>,
    fields: Fields,
    faults: BTreeMap<String, String>,
}

pub async fn tokens(Extract(state): Extract<State>, Extension(visitor): Extension<Visitor>) -> Result<Response, Failed> {
    shown(&state, &visitor, Above::default()).await
}

pub async fn create(
    Extract(state): Extract<State>,
    Extension(visitor): Extension<Visitor>,
    Extension(fields): Extension<Fields>,
) -> Result<Response, Failed> {
    match make(&state, &visitor.actor, Document::of(&fields).text("name").text("role").day("expires_at").done()).await {
        Ok(made) => shown(&state, &visitor, Above { made: Some((&made.record.name, &made.token)), ..Above::default() }).await,
        Err(why) => shown(&state, &visitor, Above { faults: faults(why)?, fields, ..Above::default() }).await,
    }
}

pub async fn revoke(
    Extract(state): Extract<State>,
    Extension(visitor): Extension<Visitor>,
    Path(id): Path<String>,
) -> Result<Response, Failed> {
    end(&state, &visitor.actor, &id).await?;
    Ok(Redirect::to("/console/tokens").into_response())
}

async fn shown(state: &State, visitor: &Visitor, above: Above<'_>) -> Result<Response, Failed> {
    let now = Timestamp::now();
    let tokens: Vec<_> = kept::list(&state.redis)
        .await?
        .into_iter()
        .map(|token| {
            json!({
                "id": token.id, "name": token.name, "role": token.role, "is_good": token.is_good(now), "created_by": token.created_by,
                "created_at": instant(token.created_at), "expires_at": token.expires_at.map(instant),
            })
        })
        .collect();
    let status = if above.faults.is_empty() { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    let values = json!({
        "tokens": tokens, "made": above.made.map(|(name, text)| json!({"name": name, "text": text})),
        "fields": above.fields, "faults": above.faults,
    });
    Ok(visitor.page(status, "tokens.html", values))
}

/// `?before`
#[derive(Deserialize)]
pub struct Ask {
    before: Option<String>,
}

pub async fn audit(
    Extract(state): Extract<State>,
    Extension(visitor): Extension<Visitor>,
    Query(ask): Query<Ask>,
) -> Result<Response, Failed> {
    if ask.before.as_deref().is_some_and(|cursor| !crate::admin::audit::is_cursor(cursor)) {
        return Err(Refusal::field("before", "is not a cursor of this list").into());
    }
    let entries = store::page(&state.redis, store::From::Newest(ask.before.as_deref()), ENTRIES).await?;
    let is_full = u64::try_from(entries.len()).is_ok_and(|count| count == ENTRIES);
    let next = entries.last().filter(|_| is_full).map(|(cursor, _)| cursor.clone());
    let entries: Vec<Value> = entries.into_iter().map(|record| readable(entry(record))).collect();
    Ok(visitor.page(StatusCode::OK, "audit.html", json!({"entries": entries, "next": next})))
}

/// The changed members one by one, each with what it was and is.
fn readable(mut entry: Value) -> Value {
    let members = |side: &str| entry.get(side).and_then(Value::as_object).cloned().unwrap_or_default();
    let (before, after) = (members("before"), members("after"));
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let text = |value: Option<&Value>| value.filter(|value| !value.is_null()).map(Value::to_string);
    let changed: Vec<Value> =
        names.iter().map(|name| json!({"name": name, "before": text(before.get(*name)), "after": text(after.get(*name))})).collect();
    let at = entry.get("at").and_then(Value::as_str).and_then(|at| at.parse().ok()).map(instant);
    if let Some(all) = entry.as_object_mut() {
        all.insert("at".to_owned(), at.into());
        all.insert("changed".to_owned(), changed.into());
    }
    entry
}
