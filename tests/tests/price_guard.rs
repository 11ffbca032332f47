//! What may be too dear: `x-proxium-max-cost-usd`, and failovers by the catalog's price guard.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::{ANY, Behaviour};
use proxium_e2e::{Call, Key, Stack, chat};
use serde_json::json;

/// By the chain `long`; it holds 22 tokens in and 10 out: at most 122,000, 244,000 and 366,000 nano-USD on `m1`, `m2`, `m3`.
fn call(key: &Key) -> Call {
    let mut body = chat("long", "hello");
    body["max_tokens"] = json!(10);
    Call::chat(key, &body)
}

fn failing(stack: &Stack) {
    stack.mocks.first.always("m1", Behaviour::status(500));
    stack.mocks.second.always("m2", Behaviour::status(500));
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_may_cost_more_than_the_caller_wants_are_not_called() {
    let stack = Stack::start().await;
    failing(&stack);
    let key = stack.key().await;
    let failed = stack.call(&call(&key).header("x-proxium-max-cost-usd", "0.000365999")).await.expect(502);
    assert_eq!(failed.code(), "providers_failed");
    assert_eq!((stack.mocks.second.calls("m2"), stack.mocks.third.calls(ANY)), (1, 0));
    let answer = stack.call(&call(&key).header("x-proxium-max-cost-usd", "0.000366")).await.expect(200);
    assert_eq!(answer.header("x-proxium-model"), Some("m3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_may_cost_more_on_every_entry_is_refused_before_it_is_made() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    for (value, said) in [("0.000121999", "0.000122"), ("0", "0.000122"), ("1e-3", "decimal"), ("-1", "negative"), ("", "decimal")] {
        let refused = stack.call(&call(&key).header("x-proxium-max-cost-usd", value)).await.expect(400);
        let error = &refused.json()["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!("invalid_request"), &json!("x-proxium-max-cost-usd")));
        assert!(error["message"].as_str().unwrap().contains(said), "{value}: {error}");
    }
    assert_eq!(stack.mocks.first.calls(ANY), 0);
    assert!(stack.windows(&key).await.is_empty(), "nothing was reserved");
    let _ = stack.call(&call(&key).header("x-proxium-max-cost-usd", "0.000122")).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_price_guard_keeps_failover_from_dear_entries() {
    for (ratio, reached) in [("2.999999", 0), ("3.0", 1)] {
        let stack = Stack::builder().and_catalog(&format!("price_guard: {{max_ratio: {ratio}}}")).start().await;
        failing(&stack);
        let key = stack.key().await;
        let answer = stack.call(&call(&key)).await;
        assert_eq!(answer.status, if reached == 1 { 200 } else { 502 }, "{}", answer.text());
        assert_eq!((stack.mocks.second.calls("m2"), stack.mocks.third.calls(ANY)), (1, reached), "{ratio}");
    }
}
