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
use crate::store::projects::{self as store, Project};
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

pub async fn show(
    Extract(state): Extract<State>,
    Extension(visitor): Extension<Visitor>,
    Path(id): Path<String>,
    Query(ask): Query<Ask>,
) -> Result<Response, Failed> {
    let project = project(&state, &id).await?;
    let done = ask.done.as_deref().and_then(|done| ["saved", "purged"].into_iter().find(|word| *word == done));
    Ok(shown(&visitor, (&id, &project.name), &fields_of(&project), &BTreeMap::new(), done))
}

pub async fn save(
    Extract(state): Extract<State>,
    Extension(visitor): Extension<Visitor>,
    Path(id): Path<String>,
    Extension(fields): Extension<Fields>,
) -> Result<Response, Failed> {
    let document = Document::of(&fields).text("name").text("monthly_cap_usd").number("reset_day").text("soft_cap_usd");
    let document = document.names("soft_cap_chain").number("cached_answer_charge").flag("cache.exact").number("cache.ttl_s").done();
    match change(&state, &visitor.actor, &id, document).await {
        Ok(_) => Ok(Redirect::to(&format!("/console/projects/{id}/settings?done=saved")).into_response()),
        Err(why) => {
            let faults = faults(why)?;
            let project = project(&state, &id).await?;
            Ok(shown(&visitor, (&id, &project.name), &fields, &faults, None))
        }
    }
}

/// Forgets all stored answers.
pub async fn purge(
    Extract(state): Extract<State>,
    Extension(visitor): Extension<Visitor>,
    Path(id): Path<String>,
) -> Result<Response, Failed> {
    let _ = project(&state, &id).await?;
    audit::add(&state.redis, &visitor.actor.name, "purge cache", &id, Change::default()).await?;
    cache::forget(&state, &id, &Purge::Project).await?;
    Ok(Redirect::to(&format!("/console/projects/{id}/settings?done=purged")).into_response())
}

async fn project(state: &State, id: &str) -> Result<Project, Refusal> {
    names::project(id)?;
    Ok(store::get(&state.redis, id).await?.ok_or_else(|| Refusal::no_project(id))?.value)
}

fn fields_of(project: &Project) -> Fields {
    let mut fields = Fields::new();
    let mut set = |name: &str, value: Option<String>| drop(value.map(|value| fields.insert(name.to_owned(), value)));
    set("name", Some(project.name.clone()));
    set("monthly_cap_usd", project.monthly_cap.map(|cap| cap.to_string()));
    set("reset_day", project.reset_day.map(|day| day.to_string()));
    set("soft_cap_usd", project.soft_cap.map(|cap| cap.to_string()));
    set("soft_cap_chain", Some(project.soft_cap_chain.join(", ")));
    set("cached_answer_charge", Some(json!(project.cached_answer_charge).to_string()));
    set("cache.exact", project.cache.exact.then(|| "on".to_owned()));
    set("cache.ttl_s", Some(project.cache.ttl_s.to_string()));
    fields
}

fn shown(visitor: &Visitor, (id, name): (&str, &str), fields: &Fields, faults: &BTreeMap<String, String>, done: Option<&str>) -> Response {
    let status = if faults.is_empty() { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    // A list's fault names its element; the form has one field for the list.
    let by_field: BTreeMap<&str, &String> =
        faults.iter().map(|(field, why)| (field.split_once('[').map_or(field.as_str(), |(field, _)| field), why)).collect();
    let values: Value = json!({"project": {"id": id, "name": name}, "at": "settings", "fields": fields, "faults": by_field, "done": done});
    visitor.page(status, "settings.html", values)
}
