//! Stored answers of a project.

use super::State;
use super::auth::Actor;
use super::names;
use super::projects::must_exist;
use super::refusal::Refusal;
use crate::store::answers::{self, Purge};
use crate::store::audit::{self, Change};
use crate::store::{StoreError, changes};
use axum::Extension;
use axum::extract::{Path, Query, State as Extract};
use axum::http::StatusCode;
use std::collections::BTreeMap;

/// Forgets all, those of one model, or that of one request.
pub async fn purge(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path(project): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Result<StatusCode, Refusal> {
    names::project(&project)?;
    let asked = query.clone();
    let filter = filter(query)?;
    must_exist(&state, &project).await?;
    audit::add(&state.redis, &actor.name, "purge cache", &project, Change::gone(&asked)).await?;
    forget(&state, &project, &filter).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Forgets stored answers, in Redis and, within 2 s, in the filters.
///
/// # Errors
/// Redis cannot answer; the same again goes on.
pub async fn forget(state: &State, project: &str, filter: &Purge) -> Result<(), StoreError> {
    let keys = answers::purge(&state.cache, project, filter).await?;
    changes::purged(&state.redis, &filter.to_wire(project)).await?;
    if matches!(filter, Purge::RequestId(_)) {
        // A filter may have the answer of another call that was stored under the same key a moment before.
        for key in keys {
            changes::answer_changed(&state.redis, &key).await?;
        }
    }
    Ok(())
}

fn filter(query: BTreeMap<String, String>) -> Result<Purge, Refusal> {
    let mut query = query.into_iter();
    match (query.next(), query.next()) {
        (None, _) => Ok(Purge::Project),
        (Some((name, model)), None) if name == "model" && !model.is_empty() => Ok(Purge::Model(model)),
        (Some((name, id)), None) if name == "request_id" && !id.is_empty() => Ok(Purge::RequestId(id)),
        (Some((name, _)), None) => Err(Refusal::field(&name, "give nothing, `model=` or `request_id=`, with a value")),
        (Some(_), Some((name, _))) => Err(Refusal::field(&name, "give one of `model` and `request_id`")),
    }
}
