//! A project's own credentials: written, never read back.

use super::State;
use super::auth::Role;
use super::json::Json;
use super::names::{self, document};
use super::projects::must_exist;
use super::reader::{Fault, Faults, Object};
use super::refusal::Refusal;
use crate::store::credentials as store;
use crate::store::record::Written;
use crate::store::{audit, changes};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
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
    Extension(role): Extension<Role>,
    Path((project, provider)): Path<(String, String)>,
    body: Bytes,
) -> Result<StatusCode, Refusal> {
    names::project(&project)?;
    if !state.catalog.current().providers.contains_key(&provider) {
        return Err(Refusal::NotFound("the catalog has no such provider".to_owned()));
    }
    let sealed = state.seal.seal(&project, &provider, &read(document(&body)?)?)?;
    audit::add(&state.redis, role.name(), &format!("set credential {provider}"), &project).await?;
    if store::put(&state.redis, &project, &provider, &sealed).await? != Written::Done {
        return Err(Refusal::no_project(&project));
    }
    changes::project_changed(&state.redis, &project).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn delete(
    Extract(state): Extract<State>,
    Extension(role): Extension<Role>,
    Path((project, provider)): Path<(String, String)>,
) -> Result<StatusCode, Refusal> {
    names::project(&project)?;
    // The provider may have left the catalog, so its name is not looked up there.
    audit::add(&state.redis, role.name(), &format!("delete credential {provider}"), &project).await?;
    let existed = store::delete(&state.redis, &project, &provider).await?;
    changes::project_changed(&state.redis, &project).await?;
    if existed { Ok(StatusCode::NO_CONTENT) } else { Err(Refusal::NotFound("the project has no credential for this provider".to_owned())) }
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
