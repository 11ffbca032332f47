//! Projects, their documents and their money.

use crate::world::{ADMIN, World, named};
use fred::prelude::*;
use proxium::store::{Money, memories, name};
use proxium_wire::{MemoryVector, Settle, SettleRequest, Settlement, Store, StoredAnswer, Vector, settlement::End};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

#[tokio::test]
async fn what_was_saved_is_shown_and_money_is_exact() {
    let world = World::start().await;
    let document = r#"{"name":"Team A","monthly_cap_usd":8999999.123456789,"reset_day":31,"cached_answer_charge":0,
        "cache":{"exact":false,"ttl_s":60},"rules":{"*":["fast"],"gpt-5.1":["small","big"]}}"#;
    let made = world.raw(Method::POST, "/admin/v1/projects", Some(ADMIN), document).await;
    let id = made.id();
    assert!(id.starts_with("team-a-"), "{id}");
    let shown = world.call(Method::GET, &format!("projects/{id}"), json!(null)).await.body;
    assert_eq!(shown, made.body);
    assert_eq!(shown["monthly_cap_usd"], "8999999.123456789");
    assert_eq!(shown["cache"], json!({"exact": false, "ttl_s": 60, "near": {"enabled": false, "threshold": 0.95}}));
    assert_eq!(shown["rules"], json!({"*": ["fast"], "gpt-5.1": ["small", "big"]}));
    let cap: String = world.redis.hget(name::project(&id), "monthly_cap").await.unwrap();
    assert_eq!(cap, "8999999123456789");
    let state: Vec<String> = world.redis.hmget(name::state(&id), vec!["month", "spend", "held", "clock_ms"]).await.unwrap();
    assert_eq!(state, ["0", "0", "0", "0"]);
    let list = world.call(Method::GET, "projects", json!(null)).await.body;
    assert!(list["projects"].as_array().unwrap().contains(&shown));
}

#[tokio::test]
async fn a_bad_document_is_refused_with_every_bad_field() {
    let world = World::start().await;
    let answer = world
        .call(
            Method::POST,
            "projects",
            json!({
                "monthly_cap_usd": "9000000.000000001", "reset_day": 32, "cached_answer_charge": 1.25, "soft_cap_usd": -1,
                "soft_cap_chain": "fast", "memory": 1, "auto_classify": true, "montly_cap_usd": 3,
                "cache": {"ttl_s": 0, "exact": "yes", "near": {"enabled": true}, "size": 1},
                "rules": {"a": [], "b": ["small", "none"], "c": "small"},
            }),
        )
        .await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(
        answer.fields(),
        [
            "auto_classify",
            "cache.exact",
            "cache.near.enabled",
            "cache.size",
            "cache.ttl_s",
            "cached_answer_charge",
            "memory",
            "monthly_cap_usd",
            "montly_cap_usd",
            "name",
            "reset_day",
            "rules.a",
            "rules.b[1]",
            "rules.c",
            "soft_cap_chain",
            "soft_cap_usd",
        ]
    );
    let message = answer.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("auto_classify: needs a `classifier` in the catalog"), "{message}");
    for body in ["", "[]", "{", "{\"name\":\"a\",\"name\":\"b\"}", "\u{0}"] {
        assert_eq!(world.raw(Method::POST, "/admin/v1/projects", Some(ADMIN), body).await.status, StatusCode::BAD_REQUEST, "{body}");
    }
    let not_text = world.raw(Method::POST, "/admin/v1/projects", Some(ADMIN), vec![b'"', 0xff, b'"']).await;
    assert_eq!(not_text.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_patch_merges_null_removes_and_spend_stays() {
    let world = World::start().await;
    let id = world.project(json!({"name": "a", "monthly_cap_usd": 10, "rules": {"x": ["small"], "y": ["big"]}})).await;
    let () = world.redis.hset(name::state(&id), ("spend", "123")).await.unwrap();
    let path = format!("projects/{id}");
    let changed = world.call(Method::PATCH, &path, json!({"rules": {"x": null, "z": ["fast"]}, "monthly_cap_usd": "0.5"})).await.body;
    assert_eq!(changed["rules"], json!({"y": ["big"], "z": ["fast"]}));
    assert_eq!(changed["monthly_cap_usd"], "0.5");
    let changed = world.call(Method::PATCH, &path, json!({"monthly_cap_usd": null})).await.body;
    assert_eq!((&changed["monthly_cap_usd"], &changed["name"]), (&Value::Null, &json!("a")));
    let cap: Option<String> = world.redis.hget(name::project(&id), "monthly_cap").await.unwrap();
    assert_eq!(cap, None);
    let spend: String = world.redis.hget(name::state(&id), "spend").await.unwrap();
    assert_eq!(spend, "123");
    let refused = world.call(Method::PATCH, &path, json!({"name": null, "id": "b", "created_at": "2026-01-01T00:00:00Z"})).await;
    assert_eq!(refused.fields(), ["created_at", "id", "name"]);
}

#[tokio::test]
async fn of_many_patches_at_once_none_is_lost() {
    let world = World::start().await;
    let id = world.project(named()).await;
    let path = format!("projects/{id}");
    let patches = (0..4).map(|number| world.call(Method::PATCH, &path, json!({"rules": {format!("r{number}"): ["small"]}})));
    for answer in futures_util::future::join_all(patches).await {
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    }
    let rules = world.call(Method::GET, &path, json!(null)).await.body["rules"].as_object().unwrap().len();
    assert_eq!(rules, 4);
}

#[tokio::test]
async fn a_model_that_left_the_catalog_does_not_stand_in_the_way_of_other_changes() {
    let world = World::start().await;
    let id = world.project(json!({"name": "a", "rules": {"x": ["big"]}})).await;
    world.replace_catalog("  big:", "  huge:");
    world.replace_catalog("big", "huge");
    world
        .eventually("the catalog is swapped", async |world| {
            let catalog = world.call(Method::GET, "catalog", json!(null)).await;
            catalog.text.contains("huge").then_some(())
        })
        .await;
    let path = format!("projects/{id}");
    assert_eq!(world.call(Method::PATCH, &path, json!({"name": "b"})).await.status, StatusCode::OK);
    assert_eq!(world.call(Method::POST, "projects", json!({"name": "a", "rules": {"x": ["big"]}})).await.fields(), ["rules.x[0]"]);
}

#[tokio::test]
async fn a_deleted_project_leaves_its_ledger_and_nothing_else() {
    let world = World::start().await;
    let id = world.project(named()).await;
    let (_, key) = world.key(&id, named()).await;
    world.call(Method::PUT, &format!("projects/{id}/senders/a"), json!({"ceilings": {"calls_per_hour": 1}})).await;
    world.call(Method::PUT, &format!("projects/{id}/credentials/openai"), json!({"secret": "sk"})).await;
    let () = world.redis.xadd(name::ledger(&id), false, None, "*", vec![("cost", "1")]).await.unwrap();
    assert!(world.authenticate(&key).await.unwrap().is_some());
    let path = format!("projects/{id}");
    assert_eq!(world.call(Method::DELETE, &path, json!(null)).await.status, StatusCode::NO_CONTENT);
    assert_eq!(world.authenticate(&key).await, Ok(None));
    let left = world.dump(&name::prefix(&id)).await;
    let mut left: Vec<_> = left.lines().filter_map(|line| line.split(' ').next()).collect();
    left.sort_unstable();
    assert_eq!(left, [name::ledger(&id), name::state(&id)]);
    let pointer: bool = world.redis.exists(name::key_hash(&proxium::store::keys::hash(&key))).await.unwrap();
    assert!(!pointer);
    assert_eq!(world.call(Method::GET, &path, json!(null)).await.status, StatusCode::NOT_FOUND);
    assert!(!world.call(Method::GET, "projects", json!(null)).await.text.contains(&id));
}

#[tokio::test]
async fn a_deleted_project_leaves_no_memory_no_answer_and_no_vector() {
    let world = World::start().await;
    let id = world.project(named()).await;
    let vector = [1.0_f32, 0.5].map(f32::to_le_bytes).concat();
    // Of the project and of end users, by two models, and of one whose memories have expired.
    for (end_user, model) in [("", "embed"), ("ann", "embed"), ("ann", "embed-before"), ("gone", "embed")] {
        if end_user != "gone" {
            let memory = if end_user.is_empty() { json!({"text": "t"}) } else { json!({"text": "t", "end_user": end_user}) };
            world.call(Method::POST, &format!("projects/{id}/memories"), memory).await.id();
        }
        let memory = MemoryVector { id: "mem_1".into(), end_user: end_user.into(), vector: vector.clone() };
        memories::embed(&world.redis, &id, model, &memory).await.unwrap();
    }
    let store = Store {
        cache_key: vec![1; 32],
        answer: StoredAnswer { body: b"{}".to_vec(), model: "small".into(), request_id: "r1".into(), ..StoredAnswer::default() },
        ttl_s: 600,
        vector: Some(Vector { partition: vec![7; 32], vector, question: "Why is the sky blue?".into() }),
        ..Store::default()
    };
    let settle = Settle { store: Some(store), ..Settle::default() };
    let settlement = Settlement { id: "r1".into(), project: id.clone(), end: Some(End::Settle(Box::new(settle))), ..Settlement::default() };
    let money = Money::new(world.redis.clone(), world.redis.clone());
    money.settle(&SettleRequest { settlements: vec![settlement] }).await.unwrap();
    let left = async || {
        let mut keys: Vec<String> =
            world.redis.eval("return redis.call('KEYS', ARGV[1])", Vec::<String>::new(), vec![name::prefix(&id) + "*"]).await.unwrap();
        keys.retain(|key| ["}:memories", "}:answer", "}:vectors"].iter().any(|part| key.contains(part)));
        keys
    };
    // Memories by owner and their index; sets by owner and model and theirs; the answer, the vector, and their indexes.
    assert_eq!(left().await.len(), 3 + 5 + 4, "{:?}", left().await);

    assert_eq!(world.call(Method::DELETE, &format!("projects/{id}"), json!(null)).await.status, StatusCode::NO_CONTENT);
    // What is under way is told that its memories are gone, for as long as it may come.
    assert_eq!(left().await, [name::memory_deletions(&id)]);
    let ttl: i64 = world.redis.ttl(name::memory_deletions(&id)).await.unwrap();
    assert!((1..=7_200).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn a_project_with_open_holds_stays_listed_for_the_sweep() {
    let world = World::start().await;
    let id = world.project(named()).await;
    let () = world.redis.zadd(name::due(&id), None, None, false, false, (9e15, "r1")).await.unwrap();
    world.call(Method::DELETE, &format!("projects/{id}"), json!(null)).await;
    let listed: bool = world.redis.sismember(name::PROJECTS, &id).await.unwrap();
    assert!(listed);
    assert!(!world.call(Method::GET, "projects", json!(null)).await.text.contains(&id));
}

#[tokio::test]
async fn a_purge_names_all_or_a_model_or_a_request() {
    let world = World::start().await;
    let id = world.project(named()).await;
    for (query, status) in [
        ("", StatusCode::NO_CONTENT),
        ("?model=small", StatusCode::NO_CONTENT),
        ("?request_id=abc", StatusCode::NO_CONTENT),
        ("?model=", StatusCode::BAD_REQUEST),
        ("?modle=small", StatusCode::BAD_REQUEST),
        ("?model=a&request_id=b", StatusCode::BAD_REQUEST),
    ] {
        let answer = world.call(Method::DELETE, &format!("projects/{id}/cache{query}"), json!(null)).await;
        assert_eq!(answer.status, status, "{query}");
    }
    assert_eq!(world.call(Method::DELETE, "projects/none/cache", json!(null)).await.status, StatusCode::NOT_FOUND);
}
