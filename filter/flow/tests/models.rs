#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, missing_docs)] // a surprise is a failed test
//! `GET /v1/models`: what the key may call, in both dialects; no body, no provider.

mod world;

use proxium_flow::{RawHead, Stage, Turn};
use serde_json::Value;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;
use world::*;

fn get(script: &Script, path: &str, headers: &[(&'static str, &str)]) -> Turn {
    let key: &[(&'static str, &str)] = &[("x-api-key", "px_1")];
    let headers = key.iter().chain(headers).map(|(name, value)| (*name, *value)).collect();
    Stage::open(RawHead { method: "GET".into(), path: path.into(), headers }, script)
}

fn body(turn: &Turn) -> Value {
    let response = response(turn);
    assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
    assert!(matches!(turn.stage, Stage::Done));
    serde_json::from_slice(&response.body).unwrap()
}

fn ids(body: &Value) -> Vec<&str> {
    body["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect()
}

const ANTHROPIC: (&str, &str) = ("anthropic-version", "2023-06-01");

#[test]
fn models_and_tiers_are_told_in_the_callers_dialect() {
    let script = Script::default();
    let openai = body(&get(&script, "/v1/models", &[]));
    assert_eq!((openai["object"].as_str(), ids(&openai)), (Some("list"), vec!["fast", "large", "small", "spare"]));
    assert_eq!((openai["data"][0]["owned_by"].as_str(), openai["data"][1]["owned_by"].as_str()), (Some("proxium"), Some("two")));
    let anthropic = body(&get(&script, "/v1/models", &[ANTHROPIC]));
    assert_eq!(ids(&anthropic), ids(&openai));
    assert_eq!((&anthropic["has_more"], &anthropic["data"][1]["type"]), (&Value::Bool(false), &Value::from("model")));
}

#[test]
fn only_what_the_key_may_use_is_told() {
    let script = Script::with_key(|key| {
        key.allowed_models = vec!["large".into()];
        key.rules = rules(&[("mine", &["fast"]), ("theirs", &["small"]), ("gone", &["nothing"])]);
        key.project_record.sender_rules = [("app".to_owned(), rules(&[("apps", &["large"])]))].into();
    });
    assert_eq!(ids(&body(&get(&script, "/v1/models", &[]))), ["fast", "large", "mine"]);
    assert_eq!(ids(&body(&get(&script, "/v1/models", &[("x-proxium-source", "app")]))), ["apps", "fast", "large", "mine"]);
    for path in ["/v1/models/small", "/v1/models/theirs", "/v1/models/apps", "/v1/models/none", "/v1/models/*"] {
        assert_eq!(code(&get(&script, path, &[])), (404, "model_not_found".into()), "{path}");
    }
}

#[test]
fn a_rule_that_leads_elsewhere_hides_a_model_it_takes_the_place_of() {
    let script = Script::with_key(|key| {
        key.allowed_models = vec!["large".into()];
        key.project_record.rules = rules(&[("*", &["small"])]);
    });
    assert!(ids(&body(&get(&script, "/v1/models", &[]))).is_empty());
}

#[test]
fn one_model_is_told_by_its_name_however_it_is_escaped() {
    let script = Script::with_catalog(|catalog| catalog.models.push(model("org/big:1", "one", 1, 1)));
    for path in ["/v1/models/org/big:1", "/v1/models/org%2Fbig%3A1?x=1"] {
        let told = body(&get(&script, path, &[]));
        assert_eq!((told["id"].as_str(), told["object"].as_str()), (Some("org/big:1"), Some("model")));
    }
    let told = body(&get(&script, "/v1/models/fast", &[ANTHROPIC]));
    assert_eq!((told["type"].as_str(), told["display_name"].as_str(), &told["max_tokens"]), (Some("model"), Some("fast"), &Value::Null));
}

#[test]
fn anthropics_pages_go_forth_and_back() {
    let script = Script::default();
    let page = |query: &str| {
        let page = body(&get(&script, &format!("/v1/models?{query}"), &[ANTHROPIC]));
        assert_eq!((page["first_id"].as_str(), page["last_id"].as_str()), (ids(&page).first().copied(), ids(&page).last().copied()));
        (ids(&page).join(" "), page["has_more"].as_bool().unwrap())
    };
    assert_eq!(page("limit=3"), ("fast large small".into(), true));
    assert_eq!(page("limit=3&after_id=small"), ("spare".into(), false));
    assert_eq!(page("before_id=spare&limit=2"), ("large small".into(), true));
    assert_eq!(page("after_id=spare"), (String::new(), false));
    for bad in ["0", "1001", "many", ""] {
        assert_eq!(code(&get(&script, &format!("/v1/models?limit={bad}"), &[ANTHROPIC])), (400, "invalid_request".into()), "{bad}");
    }
}

#[test]
fn a_key_is_needed_and_errors_are_in_the_callers_dialect() {
    let script = Script::default();
    let turn =
        Stage::open(RawHead { method: "GET".into(), path: "/v1/models".into(), headers: [ANTHROPIC].into_iter().collect() }, &script);
    assert_eq!(code(&turn), (401, "missing_key".into()));
    assert_eq!(serde_json::from_slice::<Value>(&response(&turn).body).unwrap()["type"], "error");
}
