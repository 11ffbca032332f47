//! Memories of a project and of its end users.

use super::State;
use super::auth::Actor;
use super::json::Json;
use super::names::{self, document};
use super::projects::{WithId, must_exist};
use super::reader::{Fault, Faults, Object};
use super::refusal::Refusal;
use crate::store::audit::{self, Change};
use crate::store::memories::{self as store, Added, MAX_OF_ONE, Memory, Which};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, Query, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde_json::json;
use std::collections::BTreeMap;

/// A recall takes about 3,000 bytes of text in all.
const MAX_TEXT: usize = 2_000;
/// Bodies name end users freely; this is more than any id has.
const MAX_END_USER: usize = 256;

/// Adds one.
pub async fn add(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path(project): Path<String>,
    body: Bytes,
) -> Result<Response, Refusal> {
    names::project(&project)?;
    let record = read(document(&body)?)?;
    // Not what it says: what is remembered of people must be forgotten with it.
    audit::add(&state.redis, &actor.name, "add memory", &project, Change::default()).await?;
    match store::add(&state.redis, &project, &record).await? {
        Added::Id(id) => Ok((StatusCode::CREATED, axum::Json(WithId { id, record })).into_response()),
        Added::NoProject => Err(Refusal::no_project(&project)),
        Added::Full => Err(Refusal::field("end_user", format!("has {MAX_OF_ONE} memories already: delete some first"))),
    }
}

/// Lists all, or those of one end user.
pub async fn list(
    Extract(state): Extract<State>,
    Path(project): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Result<Response, Refusal> {
    names::project(&project)?;
    let which = which(query)?;
    must_exist(&state, &project).await?;
    let found = match which {
        Which::EndUser(end_user) => store::of(&state.redis, &project, &end_user).await?,
        Which::All => store::all(&state.redis, &project).await?,
        Which::Id(id) => store::all(&state.redis, &project).await?.into_iter().filter(|(known, _)| *known == id).collect(),
    };
    let memories: Vec<_> = found.into_iter().map(|(id, record)| WithId { id, record }).collect();
    Ok(axum::Json(json!({ "memories": memories })).into_response())
}

/// Deletes all, those of one end user, or one; and the answers that came of them.
pub async fn delete_some(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path(project): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Result<StatusCode, Refusal> {
    names::project(&project)?;
    let which = which(query)?;
    must_exist(&state, &project).await?;
    forget(&state, &actor, &project, &which).await
}

/// Deletes one; and the answers that came of it.
pub async fn delete(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path((project, memory)): Path<(String, String)>,
) -> Result<StatusCode, Refusal> {
    names::project(&project)?;
    forget(&state, &actor, &project, &Which::Id(memory)).await
}

async fn forget(state: &State, actor: &Actor, project: &str, which: &Which) -> Result<StatusCode, Refusal> {
    audit::add(&state.redis, &actor.name, "delete memories", project, Change::default()).await?;
    let any = store::delete(&state.redis, &state.cache, project, which).await?;
    if any || !matches!(which, Which::Id(_)) {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(Refusal::NotFound("there is no such memory in this project".to_owned()))
}

fn which(query: BTreeMap<String, String>) -> Result<Which, Refusal> {
    let mut query = query.into_iter();
    match (query.next(), query.next()) {
        (None, _) => Ok(Which::All),
        (Some((name, end_user)), None) if name == "end_user" && !end_user.is_empty() => Ok(Which::EndUser(end_user)),
        (Some((name, id)), None) if name == "id" && !id.is_empty() => Ok(Which::Id(id)),
        (Some((name, _)), None) => Err(Refusal::field(&name, "give nothing, `end_user=` or `id=`, with a value")),
        (Some(_), Some((name, _))) => Err(Refusal::field(&name, "give one of `end_user` and `id`")),
    }
}

fn read(document: Json) -> Result<Memory, Vec<Fault>> {
    let faults = Faults::default();
    let mut object = Object::root(document, &faults);
    let text = object.text("text", MAX_TEXT);
    let text = object.required("text", text);
    let end_user = object.text("end_user", MAX_END_USER);
    let expires_at = object.instant("expires_at");
    object.close();
    faults.none_or(Memory { text, end_user, expires_at, created_at: Timestamp::now() })
}
