//! A project's own credentials: written, never read back.

use super::State;
use super::auth::Actor;
use super::json::Json;
use super::names::{self, document};
use super::projects::must_exist;
use super::reader::{Fault, Faults, Object};
use super::refusal::Refusal;
use crate::store::audit::{self, Change};
use crate::store::changes;
use crate::store::credentials as store;
use crate::store::record::Written;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

pub async fn list(Extract(state): Extract<State>, Path(project): Path<String>) -> Result<Response, Refusal> {
    names::project(&project)?;
    must_exist(&state, &project).await?;
    let providers = store::list(&state.redis, &project).await?;
    let credentials: Vec<_> = providers.into_iter().map(|provider| json!({ "provider": provider })).collect();
    Ok(axum::Json(json!({ "credentials": credentials })).into_response())
}

pub async fn put(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path((project, provider)): Path<(String, String)>,
    body: Bytes,
) -> Result<StatusCode, Refusal> {
    names::project(&project)?;
    if !state.catalog.current().providers.contains_key(&provider) {
        return Err(Refusal::NotFound("the catalog has no such provider".to_owned()));
    }
    let sealed = state.seal.seal(&project, &provider, &read(document(&body)?)?)?;
    audit::add(&state.redis, &actor.name, &format!("set credential {provider}"), &project, Change::default()).await?;
    if store::put(&state.redis, &project, &provider, &sealed).await? != Written::Done {
        return Err(Refusal::no_project(&project));
    }
    changes::project_changed(&state.redis, &project).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn delete(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path((project, provider)): Path<(String, String)>,
) -> Result<StatusCode, Refusal> {
    names::project(&project)?;
    // The provider may have left the catalog, so its name is not looked up there.
    audit::add(&state.redis, &actor.name, &format!("delete credential {provider}"), &project, Change::default()).await?;
    let existed = store::delete(&state.redis, &project, &provider).await?;
    changes::project_changed(&state.redis, &project).await?;
    if existed { Ok(StatusCode::NO_CONTENT) } else { Err(Refusal::NotFound("the project has no credential for this provider".to_owned())) }
}

/// How many projects one request looks through.
const PROJECTS_AT_ONCE: usize = 50;

/// `?after`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    after: Option<String>,
}

/// Seals credentials anew by the first seal key, a page of projects at a time; `next` is where to go on, null at the end. Each is swapped in
/// one step and only if nobody set another meanwhile, and those that are sealed by that key already are left alone: whatever ends it
/// half-way, doing it again completes it.
pub async fn reseal(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Query(Page { after }) = page.map_err(|error| Refusal::field("query", error.body_text()))?;
    let key = state.seal.first_key()?;
    if after.is_none() {
        audit::add(&state.redis, &actor.name, &format!("seal credentials anew by key {key}"), "", Change::default()).await?;
    }
    let ids = crate::store::projects::ids(&state.redis).await?;
    let mut ids = ids.into_iter().filter(|id| after.as_ref().is_none_or(|after| id > after));
    let (mut resealed, mut already, mut unreadable, mut last) = (0, 0, Vec::new(), None);
    for project in ids.by_ref().take(PROJECTS_AT_ONCE) {
        for (provider, sealed) in store::all(&state.redis, &project).await? {
            match state.seal.reseal(&project, &provider, &sealed) {
                Ok(None) => already += 1,
                // Another was set meanwhile: that one is sealed by a first key too.
                Ok(Some(anew)) => resealed += u32::from(store::swap(&state.redis, &project, &provider, &sealed, &anew).await?),
                Err(error) => unreadable.push(json!({"project": project, "provider": provider, "why": error.to_string()})),
            }
        }
        last = Some(project);
    }
    let next = ids.next().and(last);
    let done = json!({"key": key, "resealed": resealed, "already": already, "unreadable": unreadable, "next": next});
    Ok(axum::Json(done).into_response())
}

/// The secret of a document.
fn read(document: Json) -> Result<String, Vec<Fault>> {
    let faults = Faults::default();
    let mut object = Object::root(document, &faults);
    let secret = object.secret("secret");
    let secret = object.required("secret", secret);
    object.close();
    faults.none_or(secret)
}
