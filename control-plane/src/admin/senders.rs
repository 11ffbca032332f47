//! Senders of a project: rules and ceilings by `x-proxium-source` value.

use super::State;
use super::auth::Actor;
use super::json::Json;
use super::keys::read_ceilings;
use super::names::{self, Known, document};
use super::projects::must_exist;
use super::reader::{Fault, Faults, Object};
use super::refusal::Refusal;
use crate::store::audit::{self, Change};
use crate::store::changes;
use crate::store::record::Written;
use crate::store::senders::{self as store, Sender};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;

#[derive(Serialize)]
struct WithSource {
    source: String,
    #[serde(flatten)]
    record: Sender,
}

pub async fn list(Extract(state): Extract<State>, Path(project): Path<String>) -> Result<Response, Refusal> {
    names::project(&project)?;
    must_exist(&state, &project).await?;
    let senders = store::list(&state.redis, &project).await?;
    let senders: Vec<_> = senders.into_iter().map(|(source, record)| WithSource { source, record }).collect();
    Ok(axum::Json(json!({ "senders": senders })).into_response())
}

pub async fn get(Extract(state): Extract<State>, Path((project, source)): Path<(String, String)>) -> Result<Response, Refusal> {
    names::source(&project, &source)?;
    let stored = store::get(&state.redis, &project, &source).await?.ok_or_else(|| no_sender(&source))?;
    Ok(axum::Json(WithSource { source, record: stored.value }).into_response())
}

pub async fn put(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path((project, source)): Path<(String, String)>,
    body: Bytes,
) -> Result<Response, Refusal> {
    names::source(&project, &source)?;
    let catalog = state.catalog.current();
    let record = read(document(&body)?, &Known::of(&catalog))?;
    let before = store::get(&state.redis, &project, &source).await?;
    let change = before.map_or_else(|| Change::made(&record), |before| Change::between(&before.value, &record));
    audit::add(&state.redis, &actor.name, &format!("set sender {source}"), &project, change).await?;
    if store::put(&state.redis, &project, &source, &record).await? != Written::Done {
        return Err(Refusal::no_project(&project));
    }
    changes::project_changed(&state.redis, &project).await?;
    Ok(axum::Json(WithSource { source, record }).into_response())
}

pub async fn delete(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path((project, source)): Path<(String, String)>,
) -> Result<StatusCode, Refusal> {
    names::source(&project, &source)?;
    let before = store::get(&state.redis, &project, &source).await?;
    let change = before.map_or_else(Change::default, |before| Change::gone(&before.value));
    audit::add(&state.redis, &actor.name, &format!("delete sender {source}"), &project, change).await?;
    let existed = store::delete(&state.redis, &project, &source).await?;
    changes::project_changed(&state.redis, &project).await?;
    if existed { Ok(StatusCode::NO_CONTENT) } else { Err(no_sender(&source)) }
}

fn no_sender(source: &str) -> Refusal {
    Refusal::NotFound(format!("the sender `{source}` has no settings in this project"))
}

fn read(document: Json, known: &Known<'_>) -> Result<Sender, Vec<Fault>> {
    let faults = Faults::default();
    let mut object = Object::root(document, &faults);
    let rules = object.rules("rules", &|name| known.model_or_chain(name)).unwrap_or_default();
    let ceilings = object.object("ceilings").map(read_ceilings).unwrap_or_default();
    object.close();
    faults.none_or(Sender { rules, ceilings })
}
