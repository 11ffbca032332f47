//! Keys of a project: made, shown once, revoked.

use super::form::{Document, Fields};
use super::page::{Failed, faults, instant};
use super::session::Visitor;
use crate::admin::State;
use crate::admin::json::Json;
use crate::admin::keys::{change, make};
use crate::admin::names;
use crate::admin::refusal::Refusal;
use crate::store::{keys as store, projects};
use axum::Extension;
use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use serde_json::json;
use std::collections::BTreeMap;

/// What is shown above the list.
#[derive(Default)]
struct Above<'a> {
    made: Option<(&'a str, &'a str)>,
    fields: Fields,
    faults: BTreeMap<String, String>,
}

pub async fn list(
    Extract(state): Extract<State>,
    Extension(visitor): Extension<Visitor>,
    Path(project): Path<String>,
) -> Result<Response, Failed> {
    shown(&state, &visitor, &project, Above::default()).await
}

pub async fn create(
    Extract(state): Extract<State>,
    Extension(visitor): Extension<Visitor>,
    Path(project): Path<String>,
    Extension(fields): Extension<Fields>,
) -> Result<Response, Failed> {
    let document = Document::of(&fields).text("name").day("expires_at").names("allowed_models");
    let document = document.number("ceilings.calls_per_hour").number("ceilings.requests_per_minute");
    let document = document.number("ceilings.tokens_per_minute").number("ceilings.max_parallel_calls").done();
    match make(&state, &visitor.actor, &project, document).await {
        Ok(made) => {
            let above = Above { made: Some((&made.record.record.name, &made.key)), ..Above::default() };
            shown(&state, &visitor, &project, above).await
        }
        Err(why) => shown(&state, &visitor, &project, Above { faults: faults(why)?, fields, ..Above::default() }).await,
    }
}

pub async fn revoke(
    Extract(state): Extract<State>,
    Extension(visitor): Extension<Visitor>,
    Path((project, key)): Path<(String, String)>,
) -> Result<Response, Failed> {
    let patch = Json::Object(BTreeMap::from([("revoked".to_owned(), Json::Flag(true))]));
    let _ = change(&state, &visitor.actor, (&project, &key), patch).await?;
    Ok(Redirect::to(&format!("/console/projects/{project}/keys")).into_response())
}

async fn shown(state: &State, visitor: &Visitor, id: &str, above: Above<'_>) -> Result<Response, Failed> {
    names::project(id)?;
    let project = projects::get(&state.redis, id).await?.ok_or_else(|| Refusal::no_project(id))?.value;
    let now = Timestamp::now();
    let mut keys = store::list(&state.redis, id).await?;
    keys.sort_by_key(|(_, key)| std::cmp::Reverse(key.created_at));
    let keys: Vec<_> = keys
        .into_iter()
        .map(|(id, key)| {
            let state = match key.expires_at {
                _ if key.revoked => "revoked",
                Some(at) if at <= now => "expired",
                _ => "live",
            };
            json!({
                "id": id, "name": key.name, "state": state, "expires_at": key.expires_at.map(instant), "created_at": instant(key.created_at),
                "allowed_models": key.allowed_models, "ceilings": key.ceilings,
            })
        })
        .collect();
    let status = if above.faults.is_empty() { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    let values = json!({
        "project": {"id": id, "name": project.name}, "at": "keys", "keys": keys,
        "made": above.made.map(|(name, text)| json!({"name": name, "text": text})), "fields": above.fields, "faults": above.faults,
        "models": state.catalog.current().models.keys().collect::<Vec<_>>(),
    });
    Ok(visitor.page(status, "keys.html", values))
}
