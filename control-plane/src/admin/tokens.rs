//! Tokens of this API.

use super::State;
use super::auth::Actor;
use super::json::Json;
use super::names::document;
use super::reader::{Fault, Faults, Object};
use super::refusal::Refusal;
use crate::store::audit::{self, Change};
use crate::store::tokens::{self as store, Role, Token};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

/// A new token, with its text this once.
#[derive(Serialize)]
pub struct Shown {
    /// The text.
    pub token: String,
    /// All else.
    #[serde(flatten)]
    pub record: Token,
}

pub async fn list(Extract(state): Extract<State>) -> Result<Response, Refusal> {
    Ok(axum::Json(json!({"tokens": store::list(&state.redis).await?})).into_response())
}

pub async fn create(Extract(state): Extract<State>, Extension(actor): Extension<Actor>, body: Bytes) -> Result<Response, Refusal> {
    Ok((StatusCode::CREATED, axum::Json(make(&state, &actor, document(&body)?).await?)).into_response())
}

/// Makes a token of a document.
pub async fn make(state: &State, actor: &Actor, document: Json) -> Result<Shown, Refusal> {
    let record = read(document, actor)?;
    audit::add(&state.redis, &actor.name, &format!("create token {}", record.id), "", Change::made(&record)).await?;
    let token = store::create(&state.redis, &record).await?;
    Ok(Shown { token, record })
}

/// Ends a token, and with it the console's sessions that it opened.
pub async fn delete(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
) -> Result<StatusCode, Refusal> {
    revoke(&state, &actor, &id).await.map(|()| StatusCode::NO_CONTENT)
}

/// The same.
pub async fn revoke(state: &State, actor: &Actor, id: &str) -> Result<(), Refusal> {
    let no_token = || Refusal::NotFound("there is no token of this id".to_owned());
    let record = store::list(&state.redis).await?.into_iter().find(|token| token.id == id).ok_or_else(no_token)?;
    audit::add(&state.redis, &actor.name, &format!("revoke token {id}"), "", Change::gone(&record)).await?;
    store::delete(&state.redis, id).await?.map(drop).ok_or_else(no_token)
}

fn read(document: Json, actor: &Actor) -> Result<Token, Vec<Fault>> {
    let faults = Faults::default();
    let mut object = Object::root(document, &faults);
    let name = object.label("name");
    let name = object.required("name", name);
    let role = object.one_of("role", &[Role::Admin.name(), Role::Viewer.name()]);
    let role = if object.required("role", role) == Role::Admin.name() { Role::Admin } else { Role::Viewer };
    let expires_at = object.instant("expires_at");
    if expires_at.is_some_and(|at| at <= Timestamp::now()) {
        object.fault("expires_at", "must lie ahead");
    }
    object.close();
    faults.none_or(Token::new(name, role, expires_at, actor.name.clone()))
}
