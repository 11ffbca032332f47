//! What a cached answer costs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium_e2e::{BOUND, Key, Response, Stack, chat, eventually};
use serde_json::json;

/// Pays for an answer of `m1` (31,000 nano-USD) and waits until it is kept.
async fn paid(stack: &Stack, key: &Key) {
    let answer = stack.chat(key, &chat("m1", "hello")).await.expect(200);
    assert_eq!(answer.header("x-proxium-cost-usd"), Some("0.000031"));
    stack.kept(&key.project, &answer).await;
}

fn hit(answer: Response, cost: &str) {
    let answer = answer.expect(200);
    assert_eq!((answer.header("x-proxium-cache"), answer.header("x-proxium-cost-usd")), (Some("hit"), Some(cost)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hit_costs_its_fraction_and_a_call_slot() {
    let stack = Stack::start().await;
    let ceilings = json!({"ceilings": {"calls_per_hour": 3, "tokens_per_minute": 100_000}});
    let key = stack.key_with(json!({"cached_answer_charge": 0.25}), ceilings).await;
    paid(&stack, &key).await;
    for _ in 0..2 {
        hit(stack.chat(&key, &chat("m1", "hello")).await, "0.00000775");
    }
    let windows = stack.windows(&key).await;
    assert_eq!((windows["c_sum"].as_str(), windows["t_sum"].as_str()), ("3", "4"));
    assert_eq!(stack.state(&key.project).await["spend"], "46500");
    let refused = stack.chat(&key, &chat("m1", "hello")).await.expect(429);
    assert_eq!((refused.code().as_str(), &refused.json()["error"]["param"]), ("tenant_capped", &json!("calls_per_hour")));
    let hits: Vec<_> = stack.ledger(&key.project).await.into_iter().filter(|record| record["kind"] == "hit").collect();
    assert_eq!(hits.len(), 2);
    for record in hits {
        assert_eq!((record["cost_nano_usd"].as_str(), record["charged"].as_str(), record["tokens"].as_str()), ("7750", "1", "0"));
    }
    assert_eq!(stack.mocks.first.calls("m1"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_no_charge_a_capped_key_still_gets_exact_hits() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 1}})).await;
    paid(&stack, &key).await;
    let _ = stack.admin().patch(&format!("/projects/{}", key.project), &json!({"monthly_cap_usd": "0.000031"})).await.expect(200);
    hit(stack.chat(&key, &chat("m1", "hello")).await, "0");
    let _ = stack.chat(&key, &chat("m1", "another")).await.expect(429);
    eventually("the free hit is in the ledger", BOUND, || async {
        stack.ledger(&key.project).await.iter().any(|record| record["kind"] == "hit" && record["cost_nano_usd"] == "0")
    })
    .await;
    assert_eq!(stack.state(&key.project).await["spend"], "31000");
}
