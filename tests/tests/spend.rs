//! Spend, ledger, resets and corrections, by the admin API and the command line.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium_e2e::{BOUND, Call, Key, Stack, chat, eventually};
use serde_json::{Value, json};

async fn paid(stack: &Stack, key: &Key, model: &str, source: &str) {
    let call = Call::chat(key, &chat(model, "hello")).header("x-proxium-cache", "bypass").header("x-proxium-source", source);
    let answer = stack.call(&call).await.expect(200);
    stack.settled(&key.project, &answer).await;
}

async fn rows(stack: &Stack, key: &Key, query: &str) -> Vec<Value> {
    let answer = stack.admin().get(&format!("/projects/{}/spend{query}", key.project)).await.expect(200).json();
    answer["rows"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn spend_is_told_by_model_key_source_and_day() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    for (model, source) in [("m1", "a"), ("m1", "b"), ("m2", "a")] {
        paid(&stack, &key, model, source).await;
    }
    let one = |calls: i64, cost: &str, input: i64, output: i64| {
        json!({"calls": calls, "cost_usd": cost, "input_tokens": input, "cached_input_tokens": 0, "cache_write_tokens": 0,
            "output_tokens": output, "cached_calls": 0, "estimated_calls": 0})
    };
    let named = |mut row: Value, by: &str, name: &str| {
        row[by] = json!(name);
        row
    };
    let m1 = named(one(2, "0.000062", 2, 6), "model", "m1");
    assert_eq!(rows(&stack, &key, "?by=model").await, [m1, named(one(1, "0.000062", 1, 3), "model", "m2")]);
    assert_eq!(rows(&stack, &key, "?by=key").await, [named(one(3, "0.000124", 3, 9), "key", &key.id)]);
    let b = named(one(1, "0.000031", 1, 3), "source", "b");
    assert_eq!(rows(&stack, &key, "?by=source").await, [named(one(2, "0.000093", 2, 6), "source", "a"), b]);
    assert_eq!(rows(&stack, &key, "").await.len(), 1, "one day");
    assert_eq!(rows(&stack, &key, "?from=2020-01-01&to=2020-02-01").await, [] as [Value; 0]);
    for bad in ["?by=colour", "?from=yesterday", "?from=2020-01-02&to=2020-01-01", "?from=2001-01-01", "?form=2020-01-01"] {
        let _ = stack.admin().get(&format!("/projects/{}/spend{bad}", key.project)).await.expect(400);
    }
    let _ = stack.admin().get("/projects/none/spend").await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_is_followed_by_its_cursor() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    for _ in 0..3 {
        paid(&stack, &key, "m1", "a").await;
    }
    let path = format!("/projects/{}/ledger", key.project);
    let first = stack.admin().get(&format!("{path}?limit=2")).await.expect(200).json();
    let record = &first["records"][0];
    assert_eq!(
        (&record["cost_usd"], &record["kind"], &record["calls"], &record["estimated"]),
        (&json!("0.000031"), &json!("call"), &json!(1), &json!(false))
    );
    let rest = stack.admin().get(&format!("{path}?after={}", first["next"].as_str().unwrap())).await.expect(200).json();
    assert_eq!((first["records"].as_array().unwrap().len(), rest["records"].as_array().unwrap().len()), (2, 1));
    let none = stack.admin().get(&format!("{path}?after={}", rest["next"].as_str().unwrap())).await.expect(200).json();
    assert_eq!((&none["records"], &none["next"]), (&json!([]), &rest["next"]));
    let _ = stack.admin().get(&format!("{path}?after=nonsense")).await.expect(400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_and_a_correction_act_on_every_replica_at_once_and_are_audited() {
    let stack = Stack::builder().control_planes(2).envoys(2).start().await;
    let key = stack.key_with(json!({"monthly_cap_usd": "0.011"}), json!({"ceilings": {"calls_per_hour": 1}})).await;
    paid(&stack, &key, "m1", "a").await;
    let spend = format!("/projects/{}/spend", key.project);
    let status = async |envoy: usize| {
        stack.envoys[envoy].call(&Call::chat(&key, &chat("m1", "new")).header("x-proxium-cache", "bypass")).await.status
    };
    assert_eq!((status(0).await, status(1).await), (429, 429));
    let _ = stack
        .admin()
        .post(&format!("{spend}/reset"), &json!({"window": "calls_per_hour", "key": key.id, "note": "incident 7"}))
        .await
        .expect(204);
    assert_eq!((status(1).await, status(0).await), (200, 429));
    eventually("it is settled", BOUND, || async { stack.state(&key.project).await["spend"] == "62000" }).await;

    let _ = stack.admin().post(&format!("{spend}/reset"), &json!({"window": "all"})).await.expect(204);
    assert_eq!(stack.state(&key.project).await["spend"], "0");
    let _ = stack.admin().post(&format!("{spend}/correct"), &json!({"cost_usd": "0.0109", "note": "invoice"})).await.expect(201);
    assert_eq!((status(0).await, status(1).await), (429, 429), "no room for a hold under the cap");
    let _ = stack.admin().post(&format!("{spend}/correct"), &json!({"cost_usd": -0.0109, "note": "invoice was wrong"})).await.expect(201);
    assert_eq!(status(1).await, 200);

    for (action, body) in [
        ("reset", json!({"window": "year"})),
        ("reset", json!({"window": "monthly_cap", "key": key.id})),
        ("correct", json!({"cost_usd": "1"})),
        ("correct", json!({"cost_usd": "0.0000000001", "note": "too fine"})),
    ] {
        let _ = stack.admin().post(&format!("{spend}/{action}"), &body).await.expect(400);
    }
    let audit: Vec<(String, std::collections::HashMap<String, String>)> = {
        use fred::prelude::*;
        stack.redis_client().await.xrange(proxium::store::name::AUDIT, "-", "+", None).await.unwrap()
    };
    let said: Vec<&String> = audit.iter().filter(|(_, entry)| entry["project"] == key.project).map(|(_, entry)| &entry["what"]).collect();
    assert!(said.iter().any(|what| what.contains("calls_per_hour") && what.contains("incident 7")), "{said:?}");
    assert!(said.iter().any(|what| what.contains("-0.0109")), "{said:?}");
}
