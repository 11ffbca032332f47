//! Many calls at once: two control planes and two Envoys on one Redis admit exactly what the limits leave.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use proxium::mock_provider::ANY;
use proxium::store::name;
use proxium_e2e::{BOUND, Books, Call, Key, Response, Stack, catalog, chat, eventually};
use proxium_wire::NanoUsd;
use serde_json::{Value, json};

const PARALLEL: usize = 200;
const CEILING: usize = 10;

/// Calls of the same size, none like another: a call never finds the answer of another.
fn body(number: usize) -> Value {
    let mut body = chat("m1", &format!("call number {number:03}"));
    body["max_tokens"] = json!(100);
    body
}

async fn two_of_each() -> Stack {
    // No attempt may time out while the calls are being decided.
    let patient = |mocks: &_| catalog::three_providers(mocks).replace("timeout: 30s", "timeout: 100s");
    Stack::builder().control_planes(2).envoys(2).catalog(patient).start().await
}

/// What one call holds: tokens and nano-USD.
async fn hold(stack: &Stack) -> (i64, i64) {
    let key = stack.key().await;
    let gate = stack.mocks.first.gate();
    let call = stack.envoys[0].spawn(Call::chat(&key, &body(0)));
    eventually("a call at the provider", BOUND, || std::future::ready(gate.waiting() == 1)).await;
    let books = stack.books(&key).await;
    gate.open();
    let _ = call.await.unwrap().unwrap().expect(200);
    stack.closed_books(&key, 1).await;
    stack.mocks.first.forget();
    (books.tokens, books.held)
}

/// Makes all calls at once, half on each Envoy, holds the provider's answers until each call is decided, and tells the refusals and the
/// books while the calls are held and afterwards.
async fn race(stack: &Stack, key: &Key, admits: usize, decorate: impl Fn(Call) -> Call) -> (Vec<Response>, Books, Books) {
    stack.mocks.first.forget();
    let gate = stack.mocks.first.gate();
    let mut calls: Vec<_> = (0..PARALLEL).map(|number| stack.envoys[number % 2].spawn(decorate(Call::chat(key, &body(number))))).collect();
    eventually("every call is decided", BOUND * 2, || {
        let (waiting, ended) = (gate.waiting() as usize, calls.iter().filter(|call| call.is_finished()).count());
        std::future::ready(if waiting + ended == PARALLEL { Ok(()) } else { Err((waiting, ended)) })
    })
    .await;
    assert_eq!(gate.waiting() as usize, admits, "calls at the provider");
    let held = stack.books(key).await;
    gate.open();
    let mut answers = Vec::new();
    for call in &mut calls {
        answers.push(call.await.unwrap().unwrap());
    }
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), admits);
    assert_eq!(stack.mocks.first.calls(ANY), admits, "calls that a provider saw");
    let refusals = answers.into_iter().filter(|answer| answer.status != 200).collect();
    (refusals, held, stack.closed_books(key, admits).await)
}

fn assert_refused(refusals: &[Response], code: &str, limit: &str) {
    assert_eq!(refusals.len(), PARALLEL - CEILING);
    for refusal in refusals {
        let refusal = refusal.clone().expect(429);
        assert_eq!((refusal.code().as_str(), &refusal.json()["error"]["param"]), (code, &json!(limit)));
    }
}

async fn admissions(stack: &Stack, control_plane: usize) -> u64 {
    let metrics = stack.control_planes[control_plane].admin().send(&Call::new("GET", "/metrics")).await.expect(200).text();
    let of_admissions = metrics.lines().filter(|line| line.starts_with("proxium_admissions_total"));
    of_admissions.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_200_parallel_calls_exactly_those_pass_that_a_request_ceiling_leaves() {
    let stack = two_of_each().await;
    let (tokens, money) = hold(&stack).await;
    for limit in ["calls_per_hour", "requests_per_minute"] {
        let key = stack.key_with(json!({}), json!({"ceilings": {limit: CEILING}})).await;
        let (refusals, held, closed) = race(&stack, &key, CEILING, |call| call).await;
        assert_refused(&refusals, "tenant_capped", limit);
        assert!(refusals.iter().all(|refusal| refusal.header("x-ratelimit-remaining-requests") == Some("0")));
        let holds = CEILING as i64;
        assert_eq!((held.calls, held.requests, held.tokens, held.held), (holds, holds, holds * tokens, holds * money));
        assert_eq!((closed.calls, closed.requests, closed.count("call")), (holds, holds, CEILING));
    }
    // Both were asked: no control plane counts for itself.
    for control_plane in 0..2 {
        assert!(admissions(&stack, control_plane).await > 0, "control plane {control_plane} decided nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_200_parallel_calls_exactly_those_pass_whose_tokens_or_money_fit() {
    let stack = two_of_each().await;
    let (tokens, money) = hold(&stack).await;
    let holds = CEILING as i64;

    // Room for ten holds and almost an eleventh.
    let ceiling = (holds + 1) * tokens - 1;
    let key = stack.key_with(json!({}), json!({"ceilings": {"tokens_per_minute": ceiling}})).await;
    let (refusals, held, closed) = race(&stack, &key, CEILING, |call| call).await;
    assert_refused(&refusals, "tenant_capped", "tokens_per_minute");
    assert_eq!((held.calls, held.tokens), (holds, holds * tokens));
    // Three words in, five out: what was held and not used is free again, and refusals took nothing of it.
    assert_eq!((closed.calls, closed.tokens), (holds, holds * 8));
    let _ = stack.chat(&key, &body(900)).await.expect(200);

    let cap = NanoUsd((holds + 1) * money - 1).to_string();
    let key = stack.key_with(json!({"monthly_cap_usd": cap}), json!({})).await;
    let (refusals, held, closed) = race(&stack, &key, CEILING, |call| call).await;
    assert_refused(&refusals, "tenant_capped", "monthly_cap");
    assert_eq!((held.calls, held.held, held.spend), (holds, holds * money, 0));
    // Three tokens in at 1 USD a million, five out at 10.
    assert_eq!((closed.calls, closed.spend), (holds, holds * 53_000));
    let _ = stack.chat(&key, &body(900)).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_200_parallel_calls_of_a_new_sender_exactly_those_pass_that_its_ceiling_leaves() {
    let stack = two_of_each().await;
    for limit in ["calls_per_hour", "requests_per_minute"] {
        let key = stack.key().await;
        let sender = format!("/projects/{}/senders/batch", key.project);
        let _ = stack.admin().put(&sender, &json!({"ceilings": {limit: CEILING}})).await.expect(200);
        let (refusals, _, closed) = race(&stack, &key, CEILING, |call| call.header("x-proxium-source", "batch")).await;
        assert_refused(&refusals, "source_capped", limit);
        let window = stack.redis_client().await;
        let counted: i64 =
            fred::prelude::HashesInterface::hget(&window, name::sender_window(&key.project, "batch"), "c_sum").await.unwrap();
        assert_eq!((counted, closed.calls), (CEILING as i64, CEILING as i64), "a refusal counts in neither window");
        // The ceiling is the sender's, not the key's.
        let _ = stack.chat(&key, &body(900)).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_refusals_leave_room_for_a_call_that_fits() {
    let stack = two_of_each().await;
    let (tokens, _) = hold(&stack).await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"tokens_per_minute": 2 * tokens - 1, "calls_per_hour": 50}})).await;
    let gate = stack.mocks.first.gate();
    let first = stack.envoys[0].spawn(Call::chat(&key, &body(0)));
    eventually("the first call at the provider", BOUND, || std::future::ready(gate.waiting() == 1)).await;
    let before = stack.books(&key).await;
    let refused: Vec<_> = (1..=100).map(|number| stack.envoys[number % 2].spawn(Call::chat(&key, &body(number)))).collect();
    for call in refused {
        let _ = call.await.unwrap().unwrap().expect(429);
    }
    assert_eq!(stack.books(&key).await, before, "refusals consume nothing");
    let fitting = stack.envoys[1].spawn(Call::chat(&key, &{
        let mut small = body(101);
        small["max_tokens"] = json!(1);
        small
    }));
    eventually("the small call at the provider", BOUND, || std::future::ready(gate.waiting() == 2)).await;
    gate.open();
    for call in [first, fitting] {
        let _ = call.await.unwrap().unwrap().expect(200);
    }
    stack.closed_books(&key, 2).await;
}
