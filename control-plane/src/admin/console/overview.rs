//! A project's spend, hits, refusals and recent calls.

use super::page::{Failed, instant_ms};
use super::projects::{open_breakers, usd};
use super::session::Visitor;
use crate::admin::State;
use crate::admin::names;
use crate::admin::refusal::Refusal;
use crate::store::spend::{self, By, Record, Totals};
use crate::store::{keys, projects, refusals};
use axum::Extension;
use axum::extract::{Path, Query, State as Extract};
use axum::http::StatusCode;
use axum::response::Response;
use jiff::ToSpan;
use jiff::civil::Date;
use proxium_wire::NanoUsd;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Calls in the table.
const CALLS: u64 = 30;
/// Lines of a chart; the rest is one more.
const SERIES: usize = 8;

/// `?days&by`
#[derive(Deserialize)]
pub struct Ask {
    days: Option<i32>,
    by: Option<String>,
}

pub async fn show(
    Extract(state): Extract<State>,
    Extension(visitor): Extension<Visitor>,
    Path(id): Path<String>,
    Query(ask): Query<Ask>,
) -> Result<Response, Failed> {
    names::project(&id)?;
    let project = projects::get(&state.redis, &id).await?.ok_or_else(|| Refusal::no_project(&id))?.value;
    let days = ask.days.filter(|days| [7, 30, 90].contains(days)).unwrap_or(30);
    let by = ask.by.as_deref().and_then(By::named).filter(|by| *by != By::Day).unwrap_or(By::Model);
    let to = spend::today();
    let from = to.checked_sub((days - 1).days()).unwrap_or(to);
    let names: BTreeMap<String, String> = keys::list(&state.redis, &id).await?.into_iter().map(|(id, key)| (id, key.name)).collect();
    let each_day = spend::each_day(&state.redis, &id, from, to, by).await?;
    let dates: Vec<Date> = each_day.iter().map(|(day, _)| *day).collect();
    let refused = refusals::each_day(&state.redis, &id, &dates).await?;

    let (mut totals, mut rows) = (Totals::default(), BTreeMap::<String, Totals>::new());
    for (name, more) in each_day.iter().flat_map(|(_, rows)| rows) {
        totals.sum(more);
        rows.entry(name.clone()).or_default().sum(more);
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|(a, x), (b, y)| y.cost.cmp(&x.cost).then_with(|| a.cmp(b)));
    let call = |name: &str| match (by, names.get(name)) {
        (By::Key, Some(named)) => format!("{named} ({name})"),
        _ if name.is_empty() => "(none)".to_owned(),
        _ => name.to_owned(),
    };
    let mut refusals: BTreeMap<&str, i64> = BTreeMap::new();
    for (limit, count) in refused.iter().flatten() {
        *refusals.entry(limit).or_default() += count;
    }
    let calls = spend::newest(&state.redis, &id, CALLS).await?.into_iter().map(|record| recent(record, &names)).collect::<Vec<_>>();
    let values = json!({
        "project": {"id": id, "name": project.name, "cap": project.monthly_cap.map(usd), "soft_cap": project.soft_cap.map(usd)},
        "at": "overview", "days": days, "by": by.name(),
        "month": usd(spend::this_month(&state.redis, &id, project.reset_day.unwrap_or(1)).await?),
        "cost": usd(totals.cost), "calls": totals.calls, "hits": totals.cached_calls, "hit_rate": percent(totals.cached_calls, totals.calls),
        "estimated": totals.estimated_calls,
        "rows": rows.iter().map(|(name, totals)| json!({
            "name": call(name), "cost": usd(totals.cost), "calls": totals.calls, "hit_rate": percent(totals.cached_calls, totals.calls),
            "input": totals.input_tokens + totals.cached_input_tokens + totals.cache_write_tokens, "output": totals.output_tokens,
        })).collect::<Vec<_>>(),
        "refusals": refusals,
        "breakers": open_breakers(&state, Some(&id)).await?,
        "spend_chart": chart(&dates, "USD", spend_series(&each_day, &rows, call)),
        "calls_chart": chart(&dates, "calls", call_series(&each_day)),
        "refusals_chart": chart(&dates, "refusals", refusals.keys().map(|limit| {
            json!({"name": limit, "values": refused.iter().map(|day| day.get(*limit).copied().unwrap_or(0)).collect::<Vec<_>>()})
        }).collect()),
        "recent": calls,
    });
    Ok(visitor.page(StatusCode::OK, "overview.html", values))
}

/// What the script draws; the page's own tables say the same.
fn chart(days: &[Date], unit: &str, series: Vec<Value>) -> String {
    json!({"days": days.iter().map(Date::to_string).collect::<Vec<_>>(), "unit": unit, "series": series}).to_string()
}

type EachDay = [(Date, BTreeMap<String, Totals>)];

fn spend_series(each_day: &EachDay, rows: &[(String, Totals)], call: impl Fn(&str) -> String) -> Vec<Value> {
    let dollars = |cost: NanoUsd| cost.0 as f64 / 1e9;
    let of = |name: &str| each_day.iter().map(|(_, rows)| rows.get(name).map_or(0.0, |totals| dollars(totals.cost))).collect::<Vec<_>>();
    let mut series: Vec<_> = rows.iter().take(SERIES).map(|(name, _)| json!({"name": call(name), "values": of(name)})).collect();
    if let Some(rest) = rows.get(SERIES..).filter(|rest| !rest.is_empty()) {
        let of_day =
            |day: &BTreeMap<String, Totals>| rest.iter().filter_map(|(name, _)| day.get(name)).map(|totals| dollars(totals.cost)).sum();
        let values: Vec<f64> = each_day.iter().map(|(_, rows)| of_day(rows)).collect();
        series.push(json!({"name": format!("{} others", rest.len()), "values": values}));
    }
    series
}

fn call_series(each_day: &EachDay) -> Vec<Value> {
    let sum = |of: fn(&Totals) -> i64| each_day.iter().map(|(_, rows)| rows.values().map(of).sum::<i64>()).collect::<Vec<_>>();
    vec![
        json!({"name": "from a provider", "values": sum(|totals| totals.calls - totals.cached_calls)}),
        json!({"name": "from the cache", "values": sum(|totals| totals.cached_calls)}),
    ]
}

fn percent(part: i64, whole: i64) -> Option<String> {
    (whole > 0).then(|| format!("{:.1} %", part as f64 * 100.0 / whole as f64))
}

/// A ledger record as a row, its attempts one by one.
fn recent((_, fields): Record, names: &BTreeMap<String, String>) -> Value {
    let fields: BTreeMap<String, String> = fields.into_iter().collect();
    let text = |name: &str| fields.get(name).map_or("", String::as_str);
    let number = |name: &str| text(name).parse::<i64>().unwrap_or(0);
    let attempts: Vec<Value> = text("attempts")
        .split(", ")
        .filter_map(|attempt| {
            let (rest, ms) = attempt.rsplit_once(' ')?;
            let (model, outcome) = rest.rsplit_once(' ')?;
            Some(json!({"model": model, "outcome": outcome, "ms": ms}))
        })
        .collect();
    let flags: Vec<&str> = ["estimated", "abandoned", "cached"].into_iter().filter(|flag| text(flag) == "1").collect();
    json!({
        "id": text("id"), "at": instant_ms(number("at_ms")), "kind": text("kind"), "endpoint": text("endpoint"),
        "key": names.get(text("key_id")).map_or(text("key_id"), String::as_str), "source": text("source"),
        "asked": text("requested_model"), "model": text("model"), "provider": text("provider"),
        "cost": usd(NanoUsd(number("cost_nano_usd"))), "input": number("input_tokens") + number("cached_input_tokens"),
        "output": number("output_tokens"), "ms": number("latency_ms"), "attempts": attempts, "flags": flags, "note": text("note"),
    })
}
