//! Past the soft cap the cheaper chain answers, until the hard cap refuses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::ANY;
use proxium_e2e::{BOUND, Call, Key, Response, Stack, catalog, chat, eventually};
use serde_json::{Value, json};

/// `m2` costs 62,000 nano-USD a call, `m1` 31,000.
async fn with_soft_cap(stack: &Stack, usd: &str) -> Key {
    stack.key_with(json!({"soft_cap_usd": usd, "soft_cap_chain": ["m1"]}), json!({})).await
}

async fn patch(stack: &Stack, key: &Key, settings: Value) {
    let _ = stack.admin().patch(&format!("/projects/{}", key.project), &settings).await.expect(200);
}

/// An answer of this model, by the soft cap or not; waits until it is settled.
async fn answered(stack: &Stack, key: &Key, call: Call, model: &str, soft_cap: bool) -> Response {
    let answer = stack.call(&call).await.expect(200);
    assert_eq!(answer.header("x-proxium-model"), Some(model));
    assert_eq!(answer.header("x-proxium-soft-cap"), soft_cap.then_some("true"));
    eventually("nothing is held", BOUND, || async { stack.state(&key.project).await["held"] == "0" }).await;
    answer
}

fn uncached(key: &Key, model: &str) -> Call {
    Call::chat(key, &chat(model, "hello")).header("x-proxium-cache", "bypass")
}

#[tokio::test(flavor = "multi_thread")]
async fn past_the_soft_cap_the_cheaper_chain_answers_until_the_hard_cap_refuses() {
    let stack = Stack::start().await;
    // Two calls of m2 do not reach it, by one nano-USD; a third does.
    let key = with_soft_cap(&stack, "0.000124001").await;
    for _ in 0..3 {
        answered(&stack, &key, uncached(&key, "m2"), "m2", false).await;
    }
    let streamed = Call::chat(&key, &json!({"model": "m2", "stream": true, "messages": [{"role": "user", "content": "hello"}]}));
    let body = json!({"model": "m2", "max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]});
    let messages = Call::new("POST", "/v1/messages").header("x-api-key", &key.text).json(&body);
    for call in [uncached(&key, "m2"), streamed.header("x-proxium-cache", "bypass"), messages.header("x-proxium-cache", "bypass")] {
        answered(&stack, &key, call, "m1", true).await;
    }
    let record = stack.ledger(&key.project).await.pop().unwrap();
    assert_eq!((record["requested_model"].as_str(), record["resolved_model"].as_str(), record["model"].as_str()), ("m2", "m1", "m1"));
    let spend: i64 = stack.state(&key.project).await["spend"].parse().unwrap();
    patch(&stack, &key, json!({"monthly_cap_usd": proxium_wire::NanoUsd(spend).to_string()})).await;
    let refused = stack.call(&uncached(&key, "m2")).await.expect(429);
    assert_eq!(refused.json()["error"]["param"], "monthly_cap");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_soft_cap_counts_from_its_very_amount_and_a_change_acts_at_once() {
    let stack = Stack::start().await;
    let key = with_soft_cap(&stack, "0.000062").await;
    answered(&stack, &key, uncached(&key, "m2"), "m2", false).await;
    answered(&stack, &key, uncached(&key, "m2"), "m1", true).await;
    patch(&stack, &key, json!({"soft_cap_usd": "0.000093001"})).await;
    answered(&stack, &key, uncached(&key, "m2"), "m2", false).await;
    patch(&stack, &key, json!({"soft_cap_usd": 0})).await;
    answered(&stack, &key, uncached(&key, "m2"), "m1", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_may_use_none_of_the_cheaper_chain_stays_on_its_own() {
    let stack = Stack::start().await;
    let project = json!({"soft_cap_usd": 0, "soft_cap_chain": ["m1"]});
    let key = stack.key_with(project, json!({"allowed_models": ["m2"]})).await;
    answered(&stack, &key, uncached(&key, "m2"), "m2", false).await;
    assert_eq!(stack.mocks.first.calls(ANY), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_answer_of_the_cheaper_chain_is_served_only_past_the_soft_cap() {
    let stack = Stack::start().await;
    let key = with_soft_cap(&stack, "0.00005").await;
    let cached = |model: &str| Call::chat(&key, &chat(model, "hello"));
    let first = answered(&stack, &key, cached("m1"), "m1", false).await;
    stack.kept(&key.project, &first).await;
    let second = answered(&stack, &key, cached("m2"), "m2", false).await;
    assert_eq!(second.header("x-proxium-cache"), Some("miss"), "31,000 are spent");
    stack.kept(&key.project, &second).await;
    let third = answered(&stack, &key, cached("m3"), "m1", true).await;
    assert_eq!(third.header("x-proxium-cache"), Some("hit"));
    let fourth = answered(&stack, &key, cached("m2"), "m2", false).await;
    assert_eq!(fourth.header("x-proxium-cache"), Some("hit"), "the normal chain is looked up first");
    assert_eq!(stack.mocks.third.calls(ANY), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_endpoints_than_chat_and_messages_know_no_soft_cap() {
    let stack = Stack::builder().catalog(catalog::every_endpoint).start().await;
    let key = stack.key_with(json!({"soft_cap_usd": 0, "soft_cap_chain": ["e2", "o2", "r2", "p2", "m1"]}), json!({})).await;
    for (path, model, member, value) in [
        ("/v1/embeddings", "e1", "input", json!("three little words")),
        ("/v1/moderations", "o1", "input", json!("three little words")),
        ("/v1/responses", "p1", "input", json!("three little words")),
    ] {
        let body = json!({"model": model, member: value});
        let call = Call::new("POST", path).header("authorization", &format!("Bearer {}", key.text)).json(&body);
        answered(&stack, &key, call, model, false).await;
    }
    answered(&stack, &key, uncached(&key, "m1"), "m1", true).await;
    patch(&stack, &key, json!({"monthly_cap_usd": "0.000000001"})).await;
    let body = json!({"model": "e1", "input": "three little words"});
    let call = Call::new("POST", "/v1/embeddings").header("authorization", &format!("Bearer {}", key.text)).json(&body);
    assert_eq!(stack.call(&call).await.expect(429).json()["error"]["param"], "monthly_cap", "the hard cap is everybody's");
}
