//! Keys of a project.

use super::State;
use super::auth::Actor;
use super::json::Json;
use super::names::{self, Known, document};
use super::projects::{ATTEMPTS, WithId, merged, must_exist};
use super::reader::{Fault, Faults, Object};
use super::refusal::Refusal;
use crate::store::audit::{self, Change};
use crate::store::changes;
use crate::store::keys::{self as store, Key};
use crate::store::record::{Ceilings, MAX_EXACT, Written};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

/// A new key, with its text this once.
#[derive(Serialize)]
pub struct Shown {
    /// The text.
    pub key: String,
    /// All else.
    #[serde(flatten)]
    pub record: WithId<Key>,
}

pub async fn list(Extract(state): Extract<State>, Path(project): Path<String>) -> Result<Response, Refusal> {
    names::project(&project)?;
    must_exist(&state, &project).await?;
    let keys: Vec<_> = store::list(&state.redis, &project).await?.into_iter().map(|(id, record)| WithId { id, record }).collect();
    Ok(axum::Json(json!({ "keys": keys })).into_response())
}

pub async fn create(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path(project): Path<String>,
    body: Bytes,
) -> Result<Response, Refusal> {
    Ok((StatusCode::CREATED, axum::Json(make(&state, &actor, &project, document(&body)?).await?)).into_response())
}

/// Makes a key of a document.
pub async fn make(state: &State, actor: &Actor, project: &str, document: Json) -> Result<Shown, Refusal> {
    names::project(project)?;
    let catalog = state.catalog.current();
    let record = read(document, None, &Known::of(&catalog))?;
    audit::add(&state.redis, &actor.name, &format!("create key {}", record.name), project, Change::made(&record)).await?;
    let made = store::create(&state.redis, project, &record).await?.ok_or_else(|| Refusal::no_project(project))?;
    Ok(Shown { key: made.text, record: WithId { id: made.id, record } })
}

pub async fn get(Extract(state): Extract<State>, Path((project, id)): Path<(String, String)>) -> Result<Response, Refusal> {
    names::key(&project, &id)?;
    let (stored, _) = store::get(&state.redis, &project, &id).await?.ok_or_else(|| names::no_key(&id))?;
    Ok(axum::Json(WithId { id, record: stored.value }).into_response())
}

pub async fn patch(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path((project, id)): Path<(String, String)>,
    body: Bytes,
) -> Result<Response, Refusal> {
    Ok(axum::Json(change(&state, &actor, (&project, &id), document(&body)?).await?).into_response())
}

/// Changes a key by a patch.
pub async fn change(state: &State, actor: &Actor, (project, id): (&str, &str), patch: Json) -> Result<WithId<Key>, Refusal> {
    names::key(project, id)?;
    let catalog = state.catalog.current();
    for _ in 0..ATTEMPTS {
        let (before, hash) = store::get(&state.redis, project, id).await?.ok_or_else(|| names::no_key(id))?;
        let known = Known::of(&catalog).and(&before.value.rules, &before.value.allowed_models);
        let record = read(merged(&before.text, patch.clone())?, Some(&before.value), &known)?;
        audit::add(&state.redis, &actor.name, &format!("change key {id}"), project, Change::between(&before.value, &record)).await?;
        match store::replace(&state.redis, project, id, &before.text, &record, &hash).await? {
            Written::Done => {
                changes::key_changed(&state.redis, &hash).await?;
                return Ok(WithId { id: id.to_owned(), record });
            }
            Written::NoProject => return Err(Refusal::no_project(project)),
            Written::Changed => {}
        }
    }
    Err(Refusal::Conflict)
}

pub async fn delete(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path((project, id)): Path<(String, String)>,
) -> Result<StatusCode, Refusal> {
    names::key(&project, &id)?;
    let before = store::get(&state.redis, &project, &id).await?;
    let change = before.map_or_else(Change::default, |(before, _)| Change::gone(&before.value));
    audit::add(&state.redis, &actor.name, &format!("delete key {id}"), &project, change).await?;
    let Some(hash) = store::delete(&state.redis, &project, &id).await? else {
        // An earlier try may have ended right behind the deletion, and with it the hash is gone: filters forget the whole project.
        changes::project_changed(&state.redis, &project).await?;
        return Err(names::no_key(&id));
    };
    changes::key_changed(&state.redis, &hash).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn read(document: Json, before: Option<&Key>, known: &Known<'_>) -> Result<Key, Vec<Fault>> {
    let faults = Faults::default();
    let mut object = Object::root(document, &faults);
    let name = object.label("name");
    let name = object.required("name", name);
    let expires_at = object.instant("expires_at");
    let revoked = before.is_some() && object.flag("revoked").unwrap_or(false);
    if before.is_some_and(|before| before.revoked) && !revoked {
        object.fault("revoked", "a revoked key stays revoked; make a new one");
    }
    let allowed_models = object.names("allowed_models", &|name| known.model(name)).unwrap_or_default();
    let rules = object.rules("rules", &|name| known.model_or_chain(name)).unwrap_or_default();
    let ceilings = object.object("ceilings").map(read_ceilings).unwrap_or_default();
    object.close();
    let created_at = before.map_or_else(Timestamp::now, |before| before.created_at);
    faults.none_or(Key { name, expires_at, revoked, allowed_models, rules, ceilings, created_at })
}

/// The ceilings of a key or a sender.
pub fn read_ceilings(mut object: Object<'_>) -> Ceilings {
    let ceilings = Ceilings {
        calls_per_hour: object.integer("calls_per_hour", 0..=MAX_EXACT),
        requests_per_minute: object.integer("requests_per_minute", 0..=MAX_EXACT),
        tokens_per_minute: object.integer("tokens_per_minute", 0..=MAX_EXACT),
        max_parallel_calls: object.integer("max_parallel_calls", 0..=MAX_EXACT),
    };
    object.close();
    ceilings
}
