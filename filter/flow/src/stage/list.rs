//! `GET /v1/models` and `/v1/models/{id}`: the names that this key may call, models and tiers alike. No provider is asked.
//!
//! A name is told if calling it by this key and sender reaches a model; a model also must be one that the key may use itself.

use super::call::Opened;
use super::resolve::{allowed, chain, entries};
use crate::endpoint::MODELS_PATH;
use crate::flow::{Effect, Turn};
use crate::message::{Headers, Response};
use crate::refusal::Refusal;
use crate::value::{json, written};
use percent_encoding::percent_decode_str;
use proxium_wire::{Dialect, Rules};
use serde_json::Value;
use std::collections::BTreeSet;

/// Where the Anthropic dialect's pages end by themselves, and how long they can be (docs.claude.com/en/api/models-list, 2026).
const DEFAULT_PAGE: usize = 20;
const MAX_PAGE: usize = 1_000;
/// A catalog knows no release dates.
const NO_DATE: &str = "1970-01-01T00:00:00Z";

/// Answers with the names, or with one of them.
pub fn enter(opened: &Opened) -> Turn {
    let told = match opened.head.path.strip_prefix(MODELS_PATH).and_then(|rest| rest.strip_prefix('/')) {
        Some(id) => one(opened, id),
        None => page(opened),
    };
    let request_id = opened.head.request_id.as_str();
    match told {
        Ok(body) => {
            let headers = [("content-type", "application/json"), ("x-proxium-request-id", request_id)];
            let headers: Headers = headers.into_iter().collect();
            Turn::done(vec![Effect::Respond(Response { status: 200, headers, body: written(&body).into_bytes(), code: None })])
        }
        Err(refusal) => Turn::refuse(&refusal, opened.head.route.dialect, request_id),
    }
}

fn one(opened: &Opened, id: &str) -> Result<Value, Refusal> {
    let id = decoded(id);
    match names(opened).contains(id.as_str()) {
        true => Ok(shown(opened, &id)),
        false => Err(Refusal::ModelNotFound(id)),
    }
}

fn page(opened: &Opened) -> Result<Value, Refusal> {
    let names = names(opened);
    let show = |names: &[&str]| names.iter().map(|name| shown(opened, name)).collect::<Vec<_>>();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    if opened.head.route.dialect == Dialect::Openai {
        return Ok(json!({"object": "list", "data": show(&all)}));
    }
    let query = |name: &str| {
        let pairs = opened.head.query.as_deref().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(given, _)| *given == name).map(|(_, value)| decoded(value))
    };
    let limit = match query("limit").map(|text| text.parse::<usize>()) {
        None => DEFAULT_PAGE,
        Some(Ok(limit)) if (1..=MAX_PAGE).contains(&limit) => limit,
        Some(_) => return Err(Refusal::invalid("limit", format!("`limit` must be 1 to {MAX_PAGE}."))),
    };
    let (page, has_more) = match (query("after_id"), query("before_id")) {
        (Some(after), _) => first(all.iter().copied().filter(|name| *name > after.as_str()), limit),
        (None, Some(before)) => {
            let (mut page, has_more) = first(all.iter().rev().copied().filter(|name| *name < before.as_str()), limit);
            page.reverse();
            (page, has_more)
        }
        (None, None) => first(all.iter().copied(), limit),
    };
    Ok(json!({"data": show(&page), "has_more": has_more, "first_id": page.first(), "last_id": page.last()}))
}

/// At most so many, and whether there are more.
fn first<'a>(mut names: impl Iterator<Item = &'a str>, limit: usize) -> (Vec<&'a str>, bool) {
    let page = names.by_ref().take(limit).collect();
    (page, names.next().is_some())
}

/// Every name that the key may call, in order.
fn names(opened: &Opened) -> BTreeSet<String> {
    let Opened { key, snapshot, controls, .. } = opened;
    let of_rules = |rules: &Rules| rules.chains.keys().cloned().collect::<Vec<_>>();
    let sender = key.project_record.sender_rules.get(&controls.source);
    let rules = [sender, Some(&key.rules), Some(&key.project_record.rules)].into_iter().flatten().flat_map(of_rules);
    let models = snapshot.all().map(|entry| entry.model.name.clone()).filter(|model| allowed(key, model));
    let tiers = rules.chain(snapshot.catalog.chains.keys().cloned()).filter(|name| name != "*");
    let reaches = |name: &String| {
        let chain = chain(key, &controls.source, snapshot, name);
        entries(snapshot, &chain).any(|entry| allowed(key, &entry.model.name))
    };
    let mut names = BTreeSet::new();
    names.extend(models.chain(tiers).filter(reaches));
    names
}

fn shown(opened: &Opened, name: &str) -> Value {
    let model = opened.snapshot.entry(name);
    match opened.head.route.dialect {
        Dialect::Openai => {
            let owner = model.map_or("proxium", |entry| entry.provider.name.as_str());
            json!({"id": name, "object": "model", "created": 0, "owned_by": owner})
        }
        Dialect::Anthropic => json!({
            "type": "model", "id": name, "display_name": name, "created_at": NO_DATE, "lifecycle": "active", "line": null,
            "capabilities": null, "deprecated_at": null, "retires_at": null, "max_input_tokens": null,
            "max_tokens": model.map(|entry| entry.model.max_output_tokens).filter(|most| *most > 0),
        }),
    }
}

/// The text of a part of a URL. What is no escape stays as it is.
fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}
