//! Keys and senders, and what filters are told of them.

use crate::world::{World, named};
use fred::prelude::*;
use proxium::store::name;
use proxium_wire::{Names, Rules};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn rules(name: &str, chain: &[&str]) -> Rules {
    let names = chain.iter().map(|&name| name.to_owned()).collect();
    Rules { chains: BTreeMap::from([(name.to_owned(), Names { names })]) }
}

#[tokio::test]
async fn a_key_is_known_by_its_hash_with_everything_of_its_project() {
    let world = World::start().await;
    let project = world.project(json!({"name": "a", "cache": {"ttl_s": 60}, "rules": {"p": ["small"]}})).await;
    let document = json!({
        "name": "k", "expires_at": "2027-01-31T12:00:00.5+01:00", "allowed_models": ["small"], "rules": {"k": ["big"]},
        "ceilings": {"calls_per_hour": 10, "requests_per_minute": 0, "tokens_per_minute": 9_007_199_254_740_991_u64},
    });
    let (id, text) = world.key(&project, document).await;
    assert!(text.starts_with("px_") && text.len() == 46 && text[3..].bytes().all(|byte| byte.is_ascii_alphanumeric()), "{text}");
    world.call(Method::PUT, &format!("projects/{project}/senders/bot%2F1"), json!({"rules": {"s": ["fast"]}})).await;
    world.call(Method::PUT, &format!("projects/{project}/senders/slow"), json!({"ceilings": {"calls_per_hour": 1}})).await;
    world.call(Method::PUT, &format!("projects/{project}/credentials/openai"), json!({"secret": "sk"})).await;

    let record = world.authenticate(&text).await.unwrap().unwrap();
    assert_eq!((record.key_id.as_str(), record.project.as_str()), (id.as_str(), project.as_str()));
    assert_eq!((record.expires_at_ms, record.revoked), (Some(1_801_393_200_500), false));
    assert_eq!(record.allowed_models, ["small"]);
    assert_eq!(record.rules, rules("k", &["big"]));
    assert_eq!(record.project_record.rules, rules("p", &["small"]));
    assert_eq!(record.project_record.sender_rules, BTreeMap::from([("bot/1".to_owned(), rules("s", &["fast"]))]));
    assert_eq!(record.project_record.own_credentials, ["openai"]);
    assert!(record.project_record.exact_cache);
    assert_eq!(record.project_record.cache_ttl_s, 60);

    let fields = vec!["expires_at_ms", "calls_per_hour", "requests_per_minute", "tokens_per_minute", "revoked"];
    let fields: Vec<Option<String>> = world.redis.hmget(name::key(&project, &id), fields).await.unwrap();
    let expected = ["1801393200500", "10", "0", "9007199254740991"].map(|text| Some(text.to_owned()));
    assert_eq!(fields, [&expected[..], &[None]].concat());
    let ceiling: String = world.redis.hget(name::sender(&project, "slow"), "calls_per_hour").await.unwrap();
    assert_eq!(ceiling, "1");
}

#[tokio::test]
async fn the_text_of_a_key_is_shown_once_and_kept_nowhere() {
    let world = World::start().await;
    let project = world.project(named()).await;
    let (id, text) = world.key(&project, named()).await;
    let shown = world.call(Method::GET, &format!("projects/{project}/keys/{id}"), json!(null)).await;
    assert_eq!((&shown.body["id"], &shown.body["key"]), (&json!(id), &Value::Null));
    assert!(!world.call(Method::GET, &format!("projects/{project}/keys"), json!(null)).await.text.contains(&text[3..]));
    assert!(!world.dump("px:").await.contains(&text[3..]));
}

#[tokio::test]
async fn an_unknown_key_is_answered_and_is_nobodys() {
    let world = World::start().await;
    assert_eq!(world.authenticate("px_nobody").await, Ok(None));
    assert_eq!(world.authenticate("").await, Ok(None));
}

#[tokio::test]
async fn a_deleted_key_is_nobodys() {
    let world = World::start().await;
    let project = world.project(named()).await;
    let (id, text) = world.key(&project, named()).await;
    let path = format!("projects/{project}/keys/{id}");
    assert_eq!(world.call(Method::DELETE, &path, json!(null)).await.status, StatusCode::NO_CONTENT);
    assert_eq!(world.authenticate(&text).await, Ok(None));
    assert_eq!(world.call(Method::DELETE, &path, json!(null)).await.status, StatusCode::NOT_FOUND);
    assert_eq!(world.call(Method::GET, &path, json!(null)).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_revoked_key_stays_revoked() {
    let world = World::start().await;
    let project = world.project(named()).await;
    let (id, text) = world.key(&project, named()).await;
    let path = format!("projects/{project}/keys/{id}");
    assert_eq!(world.call(Method::PATCH, &path, json!({"revoked": true})).await.body["revoked"], true);
    assert!(world.authenticate(&text).await.unwrap().unwrap().revoked);
    let field: String = world.redis.hget(name::key(&project, &id), "revoked").await.unwrap();
    assert_eq!(field, "1");
    for revoked in [json!(false), json!(null)] {
        assert_eq!(world.call(Method::PATCH, &path, json!({"revoked": revoked})).await.fields(), ["revoked"]);
    }
    assert_eq!(world.call(Method::PATCH, &path, json!({"name": "other"})).await.body["revoked"], true);
}

#[tokio::test]
async fn changing_a_ceiling_keeps_the_windows() {
    let world = World::start().await;
    let project = world.project(named()).await;
    let (id, _) = world.key(&project, json!({"name": "k", "ceilings": {"requests_per_minute": 5, "calls_per_hour": 9}})).await;
    let () = world.redis.hset(name::key_window(&project, &id), ("w", "3")).await.unwrap();
    let path = format!("projects/{project}/keys/{id}");
    let changed = world.call(Method::PATCH, &path, json!({"ceilings": {"requests_per_minute": 2, "calls_per_hour": null}})).await.body;
    assert_eq!(
        changed["ceilings"],
        json!({"calls_per_hour": null, "max_parallel_calls": null, "requests_per_minute": 2, "tokens_per_minute": null})
    );
    let fields: Vec<Option<String>> =
        world.redis.hmget(name::key(&project, &id), vec!["requests_per_minute", "calls_per_hour"]).await.unwrap();
    assert_eq!(fields, [Some("2".to_owned()), None]);
    let window: String = world.redis.hget(name::key_window(&project, &id), "w").await.unwrap();
    assert_eq!(window, "3");
}

#[tokio::test]
async fn a_misplaced_or_misspelt_limit_is_refused_not_dropped() {
    let world = World::start().await;
    let project = world.project(named()).await;
    let document = json!({
        "name": "", "calls_per_hour": 1, "expires_at": "2027-01-31T12:00:00", "allowed_models": ["fast", "small", "small"],
        "ceilings": {"call_per_hour": 1, "requests_per_minute": -1, "tokens_per_minute": 1.5, "max_parallel_calls": -3},
        "revoked": true,
    });
    let answer = world.call(Method::POST, &format!("projects/{project}/keys"), document).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(
        answer.fields(),
        [
            "allowed_models[0]",
            "allowed_models[2]",
            "calls_per_hour",
            "ceilings.call_per_hour",
            "ceilings.max_parallel_calls",
            "ceilings.requests_per_minute",
            "ceilings.tokens_per_minute",
            "expires_at",
            "name",
            "revoked",
        ]
    );
    let keys = world.call(Method::GET, &format!("projects/{project}/keys"), json!(null)).await.body;
    assert_eq!(keys, json!({"keys": []}));
}

#[tokio::test]
async fn a_key_of_no_project_is_not_made() {
    let world = World::start().await;
    let answer = world.call(Method::POST, "projects/no-such-1/keys", named()).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert_eq!(world.dump("px:{no-such-1}").await, "");
}

#[tokio::test]
async fn senders_are_set_as_a_whole_shown_and_taken_away() {
    let world = World::start().await;
    let project = world.project(named()).await;
    let path = format!("projects/{project}/senders/bot");
    let bad = world.call(Method::PUT, &path, json!({"name": "x", "ceilings": {"rpm": 1}, "rules": {"a": ["none"]}})).await;
    assert_eq!(bad.fields(), ["ceilings.rpm", "name", "rules.a[0]"]);
    world.call(Method::PUT, &path, json!({"rules": {"a": ["small"]}})).await;
    world.call(Method::PUT, &path, json!({"ceilings": {"tokens_per_minute": 0}})).await;
    let shown = world.call(Method::GET, &path, json!(null)).await.body;
    let ceilings = json!({"calls_per_hour": null, "max_parallel_calls": null, "requests_per_minute": null, "tokens_per_minute": 0});
    assert_eq!(shown, json!({"source": "bot", "rules": {}, "ceilings": ceilings}));
    assert_eq!(world.call(Method::GET, &format!("projects/{project}/senders"), json!(null)).await.body, json!({"senders": [shown]}));
    assert_eq!(world.call(Method::DELETE, &path, json!(null)).await.status, StatusCode::NO_CONTENT);
    assert_eq!(world.call(Method::GET, &path, json!(null)).await.status, StatusCode::NOT_FOUND);
    assert_eq!(world.call(Method::DELETE, &path, json!(null)).await.status, StatusCode::NOT_FOUND);
    assert_eq!(world.call(Method::PUT, "projects/none/senders/bot", json!({})).await.status, StatusCode::NOT_FOUND);
}
