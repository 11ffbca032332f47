//! Calls that come at once ask the control plane together, and are each answered for themselves.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use fred::prelude::*;
use proxium::mock_provider::{ANY, Behaviour};
use proxium::store::name;
use proxium_e2e::{BOUND, Call, Key, Stack, chat, eventually};
use serde_json::json;
use std::time::Duration;

const CALLS: usize = 100;

fn call(key: &Key, number: usize) -> Call {
    Call::chat(key, &chat("m1", &format!("call number {number:03}")))
}

/// What Envoy sent to the control plane.
async fn callouts(stack: &Stack) -> u64 {
    stack.envoys[0].stat("cluster.proxium-control-plane.upstream_rq_total").await
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_come_together_ask_together() {
    let stack = Stack::builder().concurrency(1).start().await;
    let key = stack.key().await;
    let _ = stack.call(&call(&key, CALLS)).await.expect(200);
    let before = callouts(&stack).await;
    assert!(before > 0, "the statistic is there");
    let gate = stack.mocks.first.gate();
    let calls: Vec<_> = (0..CALLS).map(|number| stack.envoys[0].spawn(call(&key, number))).collect();
    eventually("all are at the provider", BOUND, || std::future::ready(gate.waiting() as usize == CALLS)).await;
    gate.open();
    for call in calls {
        let answer = call.await.unwrap().unwrap().expect(200);
        assert!(answer.header("x-proxium-cost-usd").is_some());
    }
    // An admission and a settlement each would be twice the calls.
    let sent = callouts(&stack).await - before;
    assert!(sent < CALLS as u64 * 3 / 2, "{sent} callouts");
    assert_eq!(stack.closed_books(&key, CALLS + 1).await.count("call"), CALLS + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_takes_nobody_elses_answer_along() {
    let stack = Stack::builder().concurrency(1).start().await;
    let (stays, leaves) = (stack.key().await, stack.key().await);
    let calls: Vec<_> =
        (0..CALLS).map(|number| stack.envoys[0].spawn(call(if number % 2 == 0 { &leaves } else { &stays }, number))).collect();
    eventually("the first are at the provider", BOUND, || std::future::ready(stack.mocks.first.calls(ANY) > 0)).await;
    // Some of these are just being admitted, some are with the provider, some are settled already.
    calls.iter().step_by(2).for_each(|call| call.abort());
    for call in calls.into_iter().skip(1).step_by(2) {
        let _ = call.await.unwrap().unwrap().expect(200);
    }
    assert_eq!(stack.closed_books(&stays, CALLS / 2).await.count("call"), CALLS / 2);
    eventually("nothing is held for who left", BOUND, || async { stack.books(&leaves).await.held == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_is_refused_or_answered_for_itself() {
    let stack = Stack::builder().concurrency(1).start().await;
    let (open, closed) = (stack.key().await, stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 0}})).await);
    let calls = (0..CALLS).map(|number| call(if number % 2 == 0 { &open } else { &closed }, number));
    for (number, answer) in stack.all_at_once(calls).await.into_iter().enumerate() {
        assert_eq!(answer.status, if number % 2 == 0 { 200 } else { 429 });
    }
    assert_eq!(stack.mocks.first.calls(ANY), CALLS / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_control_plane_each_is_told_so() {
    let mut stack = Stack::builder().concurrency(1).start().await;
    let key = stack.key().await;
    let _ = stack.call(&call(&key, CALLS)).await.expect(200);
    stack.control_planes[0].kill();
    for answer in stack.all_at_once((0..CALLS).map(|number| call(&key, number))).await {
        assert_eq!(answer.expect(503).code(), "control_plane_unavailable");
    }
}

/// What was asked first may be done last: in a control plane that reaches Redis later than the one that refuses.
#[tokio::test(flavor = "multi_thread")]
async fn who_was_asked_for_twice_and_is_refused_cannot_be_admitted_any_more() {
    let stack = Stack::builder().concurrency(1).start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 0}})).await;
    let _ = stack.call(&call(&key, 0)).await.expect(429);
    let redis = stack.redis_client().await;
    stack.redis.process().pause();
    let before = callouts(&stack).await;
    let asked: Vec<_> = (0..CALLS).map(|number| stack.envoys[0].spawn(call(&key, number))).collect();
    eventually("what goes together in a moment goes alone in the end", BOUND, || async {
        let sent = callouts(&stack).await - before;
        if sent > CALLS as u64 { Ok(()) } else { Err(sent) }
    })
    .await;
    stack.redis.process().resume();
    let mut reservations = Vec::new();
    for answer in asked {
        let id = answer.await.unwrap().unwrap().expect(429).header("x-proxium-request-id").unwrap().to_owned();
        reservations.push(name::reservation(&key.project, &id));
    }
    // Those went alone at once that came when none was on its way.
    eventually("most were in a group and are ended", BOUND, || async {
        let words: Vec<Option<String>> = redis.mget(reservations.clone()).await.unwrap();
        let ended = words.iter().filter(|word| word.as_deref() == Some("released")).count();
        if ended > CALLS / 2 { Ok(()) } else { Err(ended) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_too_large_to_travel_together_come_alone() {
    let stack = Stack::builder().concurrency(1).render("--l1-mib", "0").start().await;
    let key = stack.key().await;
    let text = "word ".repeat(300_000);
    stack.mocks.first.next("m1", [Behaviour::answer().text(&text)]);
    let first = stack.call(&call(&key, 0)).await.expect(200);
    stack.kept(&key.project, &first).await;
    let hits = 40;
    for answer in stack.all_at_once((0..hits).map(|_| call(&key, 0))).await {
        let answer = answer.expect(200);
        assert_eq!((answer.header("x-proxium-cache"), &answer.json()["choices"][0]["message"]["content"]), (Some("hit"), &json!(text)));
    }
    let recorded = || async {
        let recorded = stack.books(&key).await.count("hit");
        if recorded >= hits { Ok(recorded) } else { Err(recorded) }
    };
    assert_eq!(eventually("each hit is in the ledger", BOUND, recorded).await, hits);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_that_stands_still_for_a_moment_fails_no_call() {
    let stack = Stack::builder().concurrency(1).start().await;
    let key = stack.key().await;
    let settling = 100;
    stack.mocks.first.next("m1", (0..settling).map(|number| Behaviour::answer().after(Duration::from_millis(number * 4))));
    let gate = stack.mocks.first.gate();
    let ending: Vec<_> = (0..settling as usize).map(|number| stack.envoys[0].spawn(call(&key, number))).collect();
    eventually("all are at the provider", BOUND, || std::future::ready(gate.waiting() == settling)).await;
    stack.control_planes[0].process().pause();
    let waiting: Vec<_> = (CALLS..CALLS + 20).map(|number| stack.envoys[0].spawn(call(&key, number))).collect();
    gate.open();
    // Each waits 50 ms for its settlement, which Envoy takes back then.
    for call in ending {
        let _ = call.await.unwrap().unwrap().expect(200);
    }
    stack.control_planes[0].process().resume();
    for call in waiting {
        let _ = call.await.unwrap().unwrap().expect(200);
    }
    assert_eq!(stack.closed_books(&key, settling as usize + 20).await.count("call"), settling as usize + 20);
}
