//! The Settings screen of a project: budget, cache, what a cached answer costs.

use super::form::{Document, Fields};
use super::page::{Failed, faults};
use super::session::Visitor;
use crate::admin::State;
use crate::admin::projects::change;
use crate::admin::refusal::Refusal;
use crate::admin::{cache, names};
use crate::store::answers::Purge;
use crate::store::audit::{self, Change};
use crate::store::projects as store;
use axum::Extension;
use axum::extract::{Path, Query, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// `?done`
#[derive(Deserialize)]
pub struct Ask {
    done: Option<String>,
}

/// How a field is written.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
    Flag,
    Names,
}

/// What the form has, by the record's own names. A field that the record does not know is left out.
const FIELDS: [(&str, Kind); 12] = [
    ("name", Kind::Text),
    ("monthly_cap_usd", Kind::Text),
    ("reset_day", Kind::Number),
    ("soft_cap_usd", Kind::Text),
    ("soft_cap_chain", Kind::Names),
    ("cached_answer_charge", Kind::Number),
    ("cache.exact", Kind::Flag),
    ("cache.ttl_s", Kind::Number),
    ("cache.near.enabled", Kind::Flag),
    ("cache.near.threshold", Kind::Number),
    ("memory", Kind::Flag),
    ("auto_classify", Kind::Flag),
];

pub async fn show(
    Extract(state): Extract<State>,
    Extension(visitor): Extension<Visitor>,
    Path(id): Path<String>,
    Query(ask): Query<Ask>,
) -> Result<Response, Failed> {
    let record = record(&state, &id).await?;
    let done = ask.done.as_deref().and_then(|done| ["saved", "purged"].into_iter().find(|word| *word == done));
    Ok(shown(&visitor, &id, &record, &fields_of(&record), &BTreeMap::new(), done))
}

pub async fn save(
    Extract(state): Extract<State>,
    Extension(visitor): Extension<Visitor>,
    Path(id): Path<String>,
    Extension(fields): Extension<Fields>,
) -> Result<Response, Failed> {
    let record = record(&state, &id).await?;
    let document = known(&record).fold(Document::of(&fields), |document, (name, kind, _)| match kind {
        Kind::Text => document.text(name),
        Kind::Number => document.number(name),
        Kind::Flag => document.flag(name),
        Kind::Names => document.names(name),
    });
    match change(&state, &visitor.actor, &id, document.done()).await {
        Ok(_) => Ok(Redirect::to(&format!("/console/projects/{id}/settings?done=saved")).into_response()),
        Err(why) => Ok(shown(&visitor, &id, &record, &fields, &faults(why)?, None)),
    }
}

/// Forgets all stored answers.
pub async fn purge(
    Extract(state): Extract<State>,
    Extension(visitor): Extension<Visitor>,
    Path(id): Path<String>,
) -> Result<Response, Failed> {
    let _ = record(&state, &id).await?;
    audit::add(&state.redis, &visitor.actor.name, "purge cache", &id, Change::default()).await?;
    cache::forget(&state, &id, &Purge::Project).await?;
    Ok(Redirect::to(&format!("/console/projects/{id}/settings?done=purged")).into_response())
}

/// A project as the API shows it.
async fn record(state: &State, id: &str) -> Result<Value, Refusal> {
    names::project(id)?;
    let project = store::get(&state.redis, id).await?.ok_or_else(|| Refusal::no_project(id))?.value;
    Ok(json!(project))
}

/// The fields that the record knows, and what they hold.
fn known(record: &Value) -> impl Iterator<Item = (&'static str, Kind, &Value)> {
    FIELDS.into_iter().filter_map(|(name, kind)| Some((name, kind, record.pointer(&format!("/{}", name.replace('.', "/")))?)))
}

fn fields_of(record: &Value) -> Fields {
    let text = |value: &Value| match value {
        Value::Null | Value::Bool(false) => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(names) => Some(names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")),
        other => Some(other.to_string()),
    };
    known(record).filter_map(|(name, _, value)| Some((name.to_owned(), text(value)?))).collect()
}

fn shown(visitor: &Visitor, id: &str, record: &Value, fields: &Fields, faults: &BTreeMap<String, String>, done: Option<&str>) -> Response {
    let status = if faults.is_empty() { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    // A list's fault names its element; the form has one field for the list.
    let by_field: BTreeMap<&str, &String> =
        faults.iter().map(|(field, why)| (field.split_once('[').map_or(field.as_str(), |(field, _)| field), why)).collect();
    let values = json!({
        "project": {"id": id, "name": record.get("name")}, "at": "settings", "fields": fields, "faults": by_field, "done": done,
        "known": known(record).map(|(name, _, _)| name).collect::<Vec<_>>(),
    });
    visitor.page(status, "settings.html", values)
}
