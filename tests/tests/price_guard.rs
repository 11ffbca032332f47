//! What may be too dear: `x-proxium-max-cost-usd`, and failovers by the catalog's price guard.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::{ANY, Behaviour};
use proxium_e2e::{Call, Key, Stack, catalog, chat};
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
async fn what_a_call_may_cost_at_most_holds_for_streams_and_for_every_endpoint() {
    let stack = Stack::builder().catalog(catalog::every_endpoint).start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 100}})).await;
    let message = json!([{"role": "user", "content": "hello"}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"model": "m1", "stream": true, "messages": message})),
        ("/v1/messages", json!({"model": "m1", "max_tokens": 10, "messages": message})),
        ("/v1/messages", json!({"model": "m1", "max_tokens": 10, "stream": true, "messages": message})),
        ("/v1/embeddings", json!({"model": "embed", "input": "hello"})),
        ("/v1/rerank", json!({"model": "rank", "query": "a", "documents": ["b"]})),
        ("/v1/responses", json!({"model": "respond", "input": "hello"})),
        ("/v1/responses", json!({"model": "respond", "stream": true, "input": "hello"})),
    ] {
        let call = Call::new("POST", path).header("authorization", &format!("Bearer {}", key.text)).json(&body);
        let refused = stack.call(&call.header("x-proxium-max-cost-usd", "0.000000001")).await.expect(400);
        assert!(refused.text().contains("x-proxium-max-cost-usd"), "{path}: {}", refused.text());
    }
    let books = stack.closed_books(&key, 0).await;
    assert_eq!((books.calls, books.tokens, books.held, stack.mocks.first.calls(ANY)), (0, 0, 0, 0));
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
