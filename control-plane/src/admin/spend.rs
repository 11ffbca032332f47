//! What a project spent, its ledger, and changes by hand.

use super::State;
use super::auth::Actor;
use super::json::Json;
use super::names::{self, document};
use super::projects::{MOST_USD, must_exist};
use super::reader::{Fault, Faults, Object};
use super::refusal::Refusal;
use crate::store::audit::{self, Change};
use crate::store::spend::{self as store, By, Correction, MOST_DAYS, Reset, Totals};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::civil::Date;
use proxium_wire::NanoUsd;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Rows of one answer.
const PAGE: usize = 1_000;
/// Records of one answer.
const MOST_RECORDS: u64 = 10_000;
/// What a reset may name, beside `all`.
const WINDOWS: [&str; 5] = ["monthly_cap", "calls_per_hour", "requests_per_minute", "tokens_per_minute", "all"];

/// `?from&to&by&after`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    from: Option<String>,
    to: Option<String>,
    by: Option<String>,
    after: Option<String>,
}

/// Sums by model, key, source or day; rows in the order of their names, a page at a time.
pub async fn report(
    Extract(state): Extract<State>,
    Path(project): Path<String>,
    question: Result<Query<Question>, QueryRejection>,
) -> Result<Response, Refusal> {
    names::project(&project)?;
    must_exist(&state, &project).await?;
    let Query(Question { from, to, by, after }) = question.map_err(|error| Refusal::field("query", error.body_text()))?;
    let to = day("to", to, store::today())?;
    let from = day("from", from, to.first_of_month())?;
    if from > to || from.until(to).map_or(0, |span| span.get_days()) as usize >= MOST_DAYS {
        return Err(Refusal::field("from", format!("must not be behind `to`, nor {MOST_DAYS} days or more before it")));
    }
    let by = by.as_deref().unwrap_or("day");
    let by = By::named(by).ok_or_else(|| Refusal::field("by", "must be model, key, source or day"))?;
    let all = store::report(&state.redis, &project, from, to, by).await?;
    let mut rows = all.iter().skip_while(|(name, _)| after.as_ref().is_some_and(|after| *name <= after));
    let page: Vec<Value> = rows.by_ref().take(PAGE).map(|(name, totals)| row(by, name, totals)).collect();
    let last = page.last().and_then(|row| row.get(by.name())).cloned();
    let next = rows.next().and(last);
    Ok(axum::Json(json!({"rows": page, "next": next})).into_response())
}

fn row(by: By, name: &str, totals: &Totals) -> Value {
    json!({
        by.name(): name,
        "calls": totals.calls,
        "cost_usd": totals.cost.to_string(),
        "input_tokens": totals.input_tokens,
        "cached_input_tokens": totals.cached_input_tokens,
        "cache_write_tokens": totals.cache_write_tokens,
        "output_tokens": totals.output_tokens,
        "cached_calls": totals.cached_calls,
        "estimated_calls": totals.estimated_calls,
    })
}

fn day(field: &str, text: Option<String>, otherwise: Date) -> Result<Date, Refusal> {
    let Some(text) = text else { return Ok(otherwise) };
    text.parse().map_err(|_| Refusal::field(field, "must be a day (UTC) like 2026-11-30"))
}

/// `?after&limit`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    after: Option<String>,
    limit: Option<u64>,
}

/// Records behind a cursor; `next` is always there to go on with, also when there is nothing new.
pub async fn ledger(
    Extract(state): Extract<State>,
    Path(project): Path<String>,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Response, Refusal> {
    names::project(&project)?;
    let Query(Page { after, limit }) = page.map_err(|error| Refusal::field("query", error.body_text()))?;
    let limit = limit.unwrap_or(1_000);
    if !(1..=MOST_RECORDS).contains(&limit) {
        return Err(Refusal::field("limit", format!("must be a whole number from 1 to {MOST_RECORDS}")));
    }
    let is_cursor =
        |text: &String| text.split_once('-').is_some_and(|(ms, number)| ms.parse::<u64>().is_ok() && number.parse::<u64>().is_ok());
    if after.as_ref().is_some_and(|after| !is_cursor(after)) {
        return Err(Refusal::field("after", "must be the `next` of an answer before"));
    }
    let records = store::ledger(&state.redis, &project, after.as_deref(), limit).await?;
    if records.is_empty() && after.is_none() {
        must_exist(&state, &project).await?;
    }
    let next = records.last().map(|(cursor, _)| cursor.clone()).or(after);
    let records: Vec<Value> = records.into_iter().map(|(cursor, fields)| record(cursor, fields)).collect();
    Ok(axum::Json(json!({"records": records, "next": next})).into_response())
}

/// Numbers as numbers, flags as flags, money as a decimal string.
fn record(cursor: String, fields: Vec<(String, String)>) -> Value {
    const FLAGS: [&str; 4] = ["estimated", "abandoned", "cached", "charged"];
    let mut all = Map::new();
    all.insert("cursor".to_owned(), cursor.into());
    for (field, text) in fields {
        let is_count = matches!(field.as_str(), "calls" | "tokens" | "searches") || field.ends_with("_tokens") || field.ends_with("_ms");
        let (field, value) = match (field.strip_suffix("_nano_usd"), text.parse::<i64>()) {
            (Some(money), Ok(nano)) => (format!("{money}_usd"), NanoUsd(nano).to_string().into()),
            (None, Ok(number)) if is_count => (field, number.into()),
            _ if FLAGS.contains(&field.as_str()) => (field, (text == "1").into()),
            _ => (field, text.into()),
        };
        all.insert(field, value);
    }
    all.into()
}

/// Begins windows anew.
pub async fn reset(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path(project): Path<String>,
    body: Bytes,
) -> Result<StatusCode, Refusal> {
    names::project(&project)?;
    let reset = read_reset(document(&body)?)?;
    let whose = whose(reset.key.as_deref(), reset.source.as_deref());
    audit::add(&state.redis, &actor.name, &format!("reset {}{whose}: {}", reset.window, reset.note), &project, Change::default()).await?;
    let done = state.money.reset(&project, &reset).await?;
    if done { Ok(StatusCode::NO_CONTENT) } else { Err(Refusal::no_project(&project)) }
}

/// Adds a signed amount to the running month.
pub async fn correct(
    Extract(state): Extract<State>,
    Extension(actor): Extension<Actor>,
    Path(project): Path<String>,
    body: Bytes,
) -> Result<Response, Refusal> {
    names::project(&project)?;
    let correction = read_correction(document(&body)?)?;
    let whose = whose(correction.key.as_deref(), correction.source.as_deref());
    let what = format!("correct by {} USD{whose}: {}", correction.cost, correction.note);
    audit::add(&state.redis, &actor.name, &what, &project, Change::default()).await?;
    let done = state.money.correct(&project, &correction).await?;
    if !done {
        return Err(Refusal::no_project(&project));
    }
    Ok((StatusCode::CREATED, axum::Json(json!({"id": correction.id, "cost_usd": correction.cost.to_string()}))).into_response())
}

fn whose(key: Option<&str>, source: Option<&str>) -> String {
    let of = |kind: &str, name: Option<&str>| name.map_or_else(String::new, |name| format!(" of {kind} {name}"));
    of("key", key) + &of("sender", source)
}

fn read_reset(body: Json) -> Result<Reset, Vec<Fault>> {
    let faults = Faults::default();
    let mut object = Object::root(body, &faults);
    let window = object.one_of("window", &WINDOWS);
    let window = object.required("window", window);
    let (key, source) = (object.label("key"), object.label("source"));
    if window == "monthly_cap" && (key.is_some() || source.is_some()) {
        object.fault("window", "the month is the project's: leave out `key` and `source`");
    }
    let note = object.label("note").unwrap_or_default();
    object.close();
    faults.none_or(Reset { window, key, source, note })
}

fn read_correction(body: Json) -> Result<Correction, Vec<Fault>> {
    let faults = Faults::default();
    let mut object = Object::root(body, &faults);
    let cost = object.signed_money("cost_usd", MOST_USD);
    let cost = object.required("cost_usd", cost.map(|cost| cost.0));
    let (key, source, note) = (object.label("key"), object.label("source"), object.label("note"));
    let note = object.required("note", note);
    let id = object.label("id").map(|id| format!("correction_{id}"));
    object.close();
    let id = id.unwrap_or_else(|| format!("correction_{}", hex::encode(rand::random::<[u8; 12]>())));
    faults.none_or(Correction { id, cost: NanoUsd(cost), key, source, note })
}
