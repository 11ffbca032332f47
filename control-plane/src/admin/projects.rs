//! Projects.

use super::State;
use super::auth::Actor;
use super::json::Json;
use super::names::{self, Known, document};
use super::reader::{Fault, Faults, Object};
use super::refusal::Refusal;
use crate::store::answers::{self, Purge};
use crate::store::audit::{self, Change};
use crate::store::projects::{self as store, Cache, DEFAULT_TTL_S, Near, Project};
use crate::store::record::{Fraction, Written};
use crate::store::{StoreError, changes, memories};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use proxium_wire::NanoUsd;
use serde::Serialize;
use serde_json::json;

/// 2^53 nano-USD, the most that Lua counts exactly, are a little more.
pub const MOST_USD: NanoUsd = NanoUsd(9_000_000_000_000_000);
/// 30 days.
const MAX_TTL_S: u64 = 2_592_000;
/// How often a change is tried again after somebody else's.
pub const ATTEMPTS: usize = 8;

/// A record with its id.
#[derive(Serialize)]
pub struct WithId<T> {
    /// The id.
    pub id: String,
    /// The record.
    #[serde(flatten)]
    pub record: T,
}

pub async fn list(Extract(state): Extract<State>) -> Result<Response, Refusal> {
    let projects: Vec<_> = store::list(&state.redis).await?.into_iter().map(|(id, record)| WithId { id, record }).collect();
    Ok(axum::Json(json!({ "projects": projects })).into_response())
}

pub async fn create(Extract(state): Extract<State>, Extension(actor): Extension<Actor>, body: Bytes) -> Result<Response, Refusal> {
    Ok((StatusCode::CREATED, axum::Json(make(&state, &actor, document(&body)?).await?)).into_response())
}

/// Makes a project of a document.
pub async fn make(state: &State, actor: &Actor, document: Json) -> Result<WithId<Project>, Refusal> {
    let catalog = state.catalog.current();
    let record = read(document, Timestamp::now(), &Known::of(&catalog))?;
    audit::add(&state.redis, &actor.name, "create project", &record.name, Change::made(&record)).await?;
    let id = store::create(&state.redis, &record).await?;
    Ok(WithId { id, record })
}

pub async fn get(Extract(state): Extract<State>, Path(id): Path<String>) -> Result<Response, Refusal> {
    names::project(&id)?;
    let stored = store::get(&state.redis, &id).await?.ok_or_else(|| Refusal::no_project(&id))?;
    Ok(axum::Json(WithId { id, record: stored.value }).into_response())
}

pub async fn patch(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Response, Refusal> {
    Ok(axum::Json(change(&state, &actor, &id, document(&body)?).await?).into_response())
}

/// Changes a project by a patch.
pub async fn change(state: &State, actor: &Actor, id: &str, patch: Json) -> Result<WithId<Project>, Refusal> {
    names::project(id)?;
    let catalog = state.catalog.current();
    for _ in 0..ATTEMPTS {
        let before = store::get(&state.redis, id).await?.ok_or_else(|| Refusal::no_project(id))?;
        let known = Known::of(&catalog).and(&before.value.rules, &before.value.soft_cap_chain).and_features(&before.value);
        let record = read(merged(&before.text, patch.clone())?, before.value.created_at, &known)?;
        audit::add(&state.redis, &actor.name, "change project", id, Change::between(&before.value, &record)).await?;
        match store::replace(&state.redis, id, &before.text, &record).await? {
            Written::Done => {
                changes::project_changed(&state.redis, id).await?;
                return Ok(WithId { id: id.to_owned(), record });
            }
            Written::NoProject => return Err(Refusal::no_project(id)),
            Written::Changed => {}
        }
    }
    Err(Refusal::Conflict)
}

pub async fn delete(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
) -> Result<StatusCode, Refusal> {
    names::project(&id)?;
    let before = store::get(&state.redis, &id).await?;
    let change = before.map_or_else(Change::default, |before| Change::gone(&before.value));
    audit::add(&state.redis, &actor.name, "delete project", &id, change).await?;
    memories::delete(&state.redis, &state.cache, &id, &memories::Which::All).await?;
    let existed = store::delete(&state.redis, &id).await?;
    // Told, and its answers and vectors purged, even if it was gone already: an earlier try may have ended right before this.
    changes::project_changed(&state.redis, &id).await?;
    answers::purge(&state.cache, &id, &Purge::Project).await?;
    if existed { Ok(StatusCode::NO_CONTENT) } else { Err(Refusal::no_project(&id)) }
}

/// There must be such a project for its parts to be listed.
pub async fn must_exist(state: &State, id: &str) -> Result<(), Refusal> {
    store::get(&state.redis, id).await?.map(drop).ok_or_else(|| Refusal::no_project(id))
}

/// What a record becomes by a patch: of its text, all but what the server wrote itself.
pub fn merged(record: &str, patch: Json) -> Result<Json, Refusal> {
    if !matches!(patch, Json::Object(_)) {
        return Err(Refusal::field("", "must be an object"));
    }
    let mut document = Json::parse(record).map_err(|error| Refusal::from(StoreError::Corrupt(error)))?;
    if let Json::Object(members) = &mut document {
        members.remove("created_at");
    }
    document.merge(patch);
    Ok(document)
}

fn read(document: Json, created_at: Timestamp, known: &Known<'_>) -> Result<Project, Vec<Fault>> {
    let faults = Faults::default();
    let mut object = Object::root(document, &faults);
    let name = object.label("name");
    let name = object.required("name", name);
    let monthly_cap = object.money("monthly_cap_usd", MOST_USD);
    let reset_day = object.integer("reset_day", 1..=31).and_then(|day| u8::try_from(day).ok());
    let soft_cap = object.money("soft_cap_usd", MOST_USD);
    let soft_cap_chain = object.names("soft_cap_chain", &|name| known.model_or_chain(name)).filter(|chain| !chain.is_empty());
    // Where else would calls go past the soft cap?
    let soft_cap_chain =
        if soft_cap.is_some() { object.required("soft_cap_chain", soft_cap_chain) } else { soft_cap_chain.unwrap_or_default() };
    let cached_answer_charge = Fraction(object.fraction("cached_answer_charge").unwrap_or(0));
    let cache = object.object("cache").map(read_cache).unwrap_or_default();
    let rules = object.rules("rules", &|name| known.model_or_chain(name)).unwrap_or_default();
    let memory = object.flag("memory").unwrap_or(false);
    let auto_classify = object.flag("auto_classify").unwrap_or(false);
    if auto_classify && !known.classifier() {
        object.fault("auto_classify", "needs a `classifier` in the catalog");
    }
    if cache.near.enabled && !known.embeddings() {
        object.fault("cache.near.enabled", "needs an `embeddings` model in the catalog");
    }
    object.close();
    faults.none_or(Project {
        name,
        monthly_cap,
        reset_day,
        soft_cap,
        soft_cap_chain,
        cached_answer_charge,
        cache,
        memory,
        auto_classify,
        rules,
        created_at,
    })
}

fn read_cache(mut object: Object<'_>) -> Cache {
    let exact = object.flag("exact").unwrap_or(true);
    let ttl_s = object.integer("ttl_s", 1..=MAX_TTL_S).and_then(|ttl_s| u32::try_from(ttl_s).ok());
    let near = object.object("near").map(read_near).unwrap_or_default();
    object.close();
    Cache { exact, ttl_s: ttl_s.unwrap_or(DEFAULT_TTL_S), near }
}

fn read_near(mut object: Object<'_>) -> Near {
    let enabled = object.flag("enabled").unwrap_or(false);
    let threshold = object.fraction("threshold").map_or(Near::default().threshold, Fraction);
    object.close();
    Near { enabled, threshold }
}
