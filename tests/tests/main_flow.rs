//! The way of a call that goes well.

use proxium_e2e::{BOUND, Stack, chat, eventually};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_answered_and_the_second_is_a_hit() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 10, "tokens_per_minute": 100_000}})).await;
    let body = chat("fast", "hello there");

    let first = stack.chat(&key, &body).await.expect(200);
    assert_eq!(first.json().pointer("/choices/0/message/content"), Some(&json!("You said: hello there")));
    assert_eq!(first.header("x-proxium-model"), Some("m1"));
    assert_eq!(first.header("x-proxium-cache"), Some("miss"));
    assert_eq!(first.header("x-proxium-attempts"), Some("1"));
    // 2 tokens in at 1 USD a million, 4 out at 10.
    assert_eq!(first.header("x-proxium-cost-usd"), Some("0.000042"));
    assert_eq!(first.header("x-ratelimit-limit-requests"), Some("10"));
    assert_eq!(first.header("x-ratelimit-remaining-requests"), Some("9"));
    assert!(first.header("x-proxium-request-id").is_some());
    assert_eq!(
        eventually("one ledger record", BOUND, || async { Some(stack.ledger(&key.project).await).filter(|all| all.len() == 1) })
            .await
            .len(),
        1
    );

    let windows = stack.windows(&key).await;
    let second = stack.chat(&key, &body).await.expect(200);
    assert_eq!(second.header("x-proxium-cache"), Some("hit"));
    assert_eq!(second.header("x-proxium-cost-usd"), Some("0"));
    assert_eq!(second.body, first.body);
    assert_eq!(stack.mocks.first.calls("m1"), 1);
    assert_eq!(stack.windows(&key).await, windows, "a hit uses no slot");
}
