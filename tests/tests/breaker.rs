//! Breakers and rests: a credential that fails is left alone, and only what speaks against it counts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::{ANY, Behaviour};
use proxium_e2e::{BOUND, Call, Key, Mocks, Response, Stack, catalog, chat, eventually};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The catalog of every test, and `other`: a second model behind the credential of `m1`.
fn with_other(mocks: &Mocks) -> String {
    let other = "models:\n  other: {provider: first, price_usd_per_mtok: {input: 1, output: 10}}\n";
    catalog::three_providers(mocks).replacen("models:\n", other, 1)
}

fn text(response: &Response, header: &str) -> String {
    response.header(header).unwrap_or_default().to_owned()
}

/// Makes a new call of a chain and tells which model answered.
async fn answered_by(stack: &Stack, key: &Key, model: &str) -> String {
    let call = Call::chat(key, &chat(model, "hello")).header("x-proxium-cache", "bypass");
    text(&stack.call(&call).await.expect(200), "x-proxium-model")
}

/// So many calls of `fast` in a row whose first entry does this.
async fn fast_calls(stack: &Stack, key: &Key, behaviours: impl IntoIterator<Item = Behaviour>) {
    for behaviour in behaviours {
        stack.mocks.first.next("m1", [behaviour]);
        stack.call(&Call::chat(key, &chat("fast", "hello")).header("x-proxium-cache", "bypass")).await;
    }
}

fn failures(count: usize) -> impl Iterator<Item = Behaviour> {
    std::iter::repeat_n(Behaviour::status(500), count)
}

#[tokio::test(flavor = "multi_thread")]
async fn five_failures_in_a_row_open_the_breaker_of_a_credential() {
    let stack = Stack::builder().catalog(with_other).start().await;
    let key = stack.key().await;
    fast_calls(&stack, &key, failures(4)).await;
    assert_eq!(answered_by(&stack, &key, "fast").await, "m1", "a success starts over");
    fast_calls(&stack, &key, failures(4)).await;
    assert_eq!(answered_by(&stack, &key, "fast").await, "m1");
    fast_calls(&stack, &key, failures(5)).await;
    assert_eq!(stack.mocks.first.calls(ANY), 15);

    // Open for each of its models, on every worker, and what is left of the time is told.
    for _ in 0..8 {
        assert_eq!(answered_by(&stack, &key, "fast").await, "m2");
    }
    for model in ["m1", "other"] {
        let refused = stack.chat(&key, &chat(model, "hello")).await.expect(503);
        assert_eq!(refused.code(), "providers_failed");
        assert!(refused.text().contains(&format!("({model}: breaker_open)")), "{}", refused.text());
        assert!((1..=30).contains(&text(&refused, "retry-after").parse::<u32>().unwrap()));
    }
    assert_eq!(stack.mocks.first.calls(ANY), 15);
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_lets_one_of_fifty_parallel_calls_probe() {
    const COOLDOWN: Duration = Duration::from_secs(2);
    let stack = Stack::builder().and_catalog("breaker: {cooldown: 2s}").concurrency(2).start().await;
    let key = stack.key().await;
    fast_calls(&stack, &key, failures(5)).await;
    let opened = Instant::now();
    assert_eq!(answered_by(&stack, &key, "fast").await, "m2");
    eventually("the cool-down is over", BOUND, || std::future::ready(opened.elapsed() > COOLDOWN)).await;

    let stack = Arc::new(stack);
    let gate = stack.mocks.first.gate();
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let (stack, key) = (stack.clone(), key.clone());
        calls.spawn(async move { answered_by(&stack, &key, "fast").await });
    }
    for _ in 0..49 {
        let model = tokio::time::timeout(BOUND, calls.join_next()).await.expect("the others do not wait for the probe");
        assert_eq!(model.unwrap().unwrap(), "m2");
    }
    assert_eq!((gate.waiting(), stack.mocks.first.calls("m1")), (1, 6));
    gate.open();
    assert_eq!(calls.join_next().await.unwrap().unwrap(), "m1");
    for _ in 0..8 {
        assert_eq!(answered_by(&stack, &key, "fast").await, "m1", "a good probe closes it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_of_twenty_calls_open_it_too() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    let alternating = |count| (0..count).map(|call| if call % 2 == 0 { Behaviour::answer() } else { Behaviour::status(500) });
    fast_calls(&stack, &key, alternating(20)).await;
    assert_eq!(stack.mocks.first.calls("m1"), 20);
    assert_eq!(answered_by(&stack, &key, "fast").await, "m2");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_speak_against_a_credential_does_not_count() {
    let stack = Stack::builder().catalog(with_other).start().await;
    let key = stack.key().await;
    // Refusals of the request, models that are not there.
    fast_calls(&stack, &key, [400, 404, 413, 422].into_iter().cycle().take(12).map(Behaviour::status)).await;
    assert_eq!(answered_by(&stack, &key, "fast").await, "m1");

    // Timeouts that callers asked for.
    stack.mocks.first.always("m1", Behaviour::hang());
    for _ in 0..6 {
        let call = Call::chat(&key, &chat("m1", "hello")).header("x-proxium-timeout-ms", "100").header("x-proxium-cache", "bypass");
        assert_eq!(stack.call(&call).await.expect(502).code(), "deadline_exceeded");
    }

    // Callers who leave.
    for gone in 1..=6 {
        let before = stack.mocks.first.calls("m1");
        let mut raw = stack.envoys[0].connect().await;
        let body = chat("m1", &format!("hang-up {gone}")).to_string();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: p\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
            key.text,
            body.len()
        );
        tokio::io::AsyncWriteExt::write_all(&mut raw, (head + &body).as_bytes()).await.unwrap();
        eventually("the provider has it", BOUND, || std::future::ready(stack.mocks.first.calls("m1") > before)).await;
    }
    eventually("they are settled", BOUND, || async { stack.state(&key.project).await["held"] == "0" }).await;
    stack.mocks.first.behave();
    assert_eq!(answered_by(&stack, &key, "fast").await, "m1");

    // Busy: only the model rests.
    fast_calls(&stack, &key, [Behaviour::status(429).header("retry-after", "60")]).await;
    assert_eq!(answered_by(&stack, &key, "fast").await, "m2");
    assert_eq!(answered_by(&stack, &key, "other").await, "other");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_timeouts_count() {
    let brief = |mocks: &Mocks| catalog::three_providers(mocks).replacen("timeout: 30s", "timeout: 150ms", 1);
    let stack = Stack::builder().catalog(brief).start().await;
    let key = stack.key().await;
    fast_calls(&stack, &key, std::iter::repeat_n(Behaviour::hang(), 5)).await;
    assert_eq!(answered_by(&stack, &key, "fast").await, "m2");
    assert_eq!(stack.mocks.first.calls("m1"), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_credential_is_loud_and_opens_its_breaker() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({}), json!({})).await;
    fast_calls(&stack, &key, [401, 403, 401, 403, 401].map(Behaviour::status)).await;
    assert_eq!(answered_by(&stack, &key, "fast").await, "m2");
    assert_eq!(stack.mocks.first.calls("m1"), 5);
    let metrics = stack.envoys[0].admin("/stats/prometheus?filter=proxium_credential_refused").await;
    let counter = metrics.lines().find(|line| line.contains("provider=\"first\"")).unwrap_or_else(|| panic!("{metrics}"));
    assert!(counter.ends_with(" 5"), "{counter}");
    let log = stack.envoys[0].process().log();
    assert_eq!(log.matches("refused the credential of first with 40").count(), 5);
}
