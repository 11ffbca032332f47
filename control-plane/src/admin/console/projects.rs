//! All projects: what each spent this month, what limits say, and which breakers are not closed.

use super::form::{Document, Fields};
use super::page::{Failed, faults, instant_ms};
use super::session::Visitor;
use crate::admin::State;
use crate::admin::projects::make;
use crate::store::{breakers, projects as store, spend};
use axum::Extension;
use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use proxium_wire::NanoUsd;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub async fn list(Extract(state): Extract<State>, Extension(visitor): Extension<Visitor>) -> Result<Response, Failed> {
    shown(&state, &visitor, &Fields::new(), BTreeMap::new()).await
}

pub async fn create(
    Extract(state): Extract<State>,
    Extension(visitor): Extension<Visitor>,
    Extension(fields): Extension<Fields>,
) -> Result<Response, Failed> {
    let document = Document::of(&fields).text("name").text("monthly_cap_usd").done();
    match make(&state, &visitor.actor, document).await {
        Ok(made) => Ok(Redirect::to(&format!("/console/projects/{}/keys", made.id)).into_response()),
        Err(why) => shown(&state, &visitor, &fields, faults(why)?).await,
    }
}

async fn shown(state: &State, visitor: &Visitor, fields: &Fields, faults: BTreeMap<String, String>) -> Result<Response, Failed> {
    let mut projects = Vec::new();
    for (id, project) in store::list(&state.redis).await? {
        let (spent, cap) = (spend::this_month(&state.redis, &id, project.reset_day.unwrap_or(1)).await?, project.monthly_cap);
        // Of a cap that is all gone, or none, there is nothing to draw.
        let share = cap.filter(|cap| cap.0 > 0).map(|cap| (spent.0.saturating_mul(100) / cap.0).clamp(0, 100));
        projects.push(json!({
            "id": id, "name": project.name, "spent": usd(spent), "cap": cap.map(usd), "soft_cap": project.soft_cap.map(usd), "share": share,
        }));
    }
    let status = if faults.is_empty() { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    let catalog = json!({"revision": state.catalog.current().revision().get(..12), "fault": state.catalog.last_fault()});
    let breakers = open_breakers(state, None).await?;
    let values = json!({"projects": projects, "breakers": breakers, "catalog": catalog, "fields": fields, "faults": faults});
    Ok(visitor.page(status, "projects.html", values))
}

/// Breakers that are not closed: all, or the platform's and one project's own.
pub async fn open_breakers(state: &State, project: Option<&str>) -> Result<Vec<Value>, Failed> {
    let now_ms = Timestamp::now().as_millisecond();
    let all = breakers::list(&state.redis, u64::try_from(now_ms).unwrap_or_default()).await?;
    let concerns = |credential: &str| credential.split_once('/').is_none_or(|(own, _)| project.is_none_or(|project| project == own));
    let shown = all.into_iter().filter(|(credential, _)| concerns(credential)).map(|(credential, breaker)| {
        let until_ms = i64::try_from(breaker.until_ms).unwrap_or(i64::MAX);
        let (provider, own) = credential.split_once('/').map_or((credential.as_str(), None), |(own, provider)| (provider, Some(own)));
        json!({
            "provider": provider, "own": own, "envoys": breaker.envoys, "state": if until_ms > now_ms { "open" } else { "half-open" },
            "until": instant_ms(until_ms),
        })
    });
    Ok(shown.collect())
}

/// Money with at most six decimals, which is what people compare.
pub fn usd(amount: NanoUsd) -> String {
    let micro = (amount.0.saturating_add(if amount.0 < 0 { -500 } else { 500 }) / 1_000).saturating_mul(1_000);
    NanoUsd(micro).to_string()
}
