//! What dies in the middle of calls: no slot and no money is lost or gained beyond the rule of holds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use fred::prelude::*;
use proxium::store::name;
use proxium_e2e::{BOUND, Call, Key, Response, Stack, chat, eventually};
use proxium_wire::admit_reply::Outcome;
use proxium_wire::settlement::End;
use proxium_wire::{AdmitReply, AdmitRequest, Alternative, Hold, Release, Settle, SettleReply, SettleRequest, Settlement, Usage, path};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// "call number 000" is three words in and, said back, five out: 3 at 1 USD a million and 5 at 10.
const COST: i64 = 53_000;
const TOKENS: i64 = 8;

fn body(number: usize) -> Value {
    chat("m1", &format!("call number {number:03}"))
}

type Running = tokio::task::JoinHandle<Result<Response, reqwest::Error>>;

/// Begins calls on an Envoy and waits until the provider has them all.
async fn held_at_the_provider(stack: &Stack, envoy: usize, key: &Key, numbers: std::ops::Range<usize>) -> Vec<Running> {
    let before = stack.mocks.first.calls("m1");
    let wanted = before + numbers.len();
    let calls = numbers.map(|number| stack.envoys[envoy].spawn(Call::chat(key, &body(number)))).collect();
    eventually("all calls are at the provider", BOUND, || {
        let there = stack.mocks.first.calls("m1");
        std::future::ready(if there == wanted { Ok(()) } else { Err(there) })
    })
    .await;
    calls
}

async fn all_answered(calls: Vec<Running>) {
    for call in calls {
        let _ = call.await.unwrap().unwrap().expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_control_plane_loses_neither_slot_nor_cost() {
    let mut stack = Stack::builder().control_planes(2).start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 1000}})).await;
    let gate = stack.mocks.first.gate();
    let mut calls = held_at_the_provider(&stack, 0, &key, 0..30).await;
    // Some are being admitted at the moment of the kill.
    calls.extend((30..60).map(|number| stack.envoys[0].spawn(Call::chat(&key, &body(number)))));
    stack.control_planes[0].kill();
    calls.extend((60..90).map(|number| stack.envoys[0].spawn(Call::chat(&key, &body(number)))));
    eventually("every call is decided", BOUND, || {
        let (waiting, ended) = (gate.waiting() as usize, calls.iter().filter(|call| call.is_finished()).count());
        std::future::ready(if waiting + ended == 90 { Ok(()) } else { Err((waiting, ended)) })
    })
    .await;
    gate.open();
    let mut served = 0;
    for (number, call) in calls.into_iter().enumerate() {
        let answer = call.await.unwrap().unwrap();
        match answer.status {
            200 => served += 1,
            // An admission was lost with the control plane: given back, whether or not it had been made.
            503 if number >= 30 => assert_eq!(answer.code(), "control_plane_unavailable"),
            _ => _ = answer.expect(200),
        }
    }
    assert!(served >= 30, "calls that were admitted are served");
    let closed = stack.closed_books(&key, served).await;
    assert_eq!((closed.count("call"), closed.spend), (served, served as i64 * COST));

    stack.control_planes[0].restart().await;
    let _ = stack.chat(&key, &body(900)).await.expect(200);
    stack.closed_books(&key, served + 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holds_of_a_killed_envoy_are_charged_at_their_estimate_once() {
    let mut stack = Stack::builder().control_planes(2).envoys(2).start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 10}})).await;
    let gate = stack.mocks.first.gate();
    let survivors = held_at_the_provider(&stack, 1, &key, 0..3).await;
    let due_before: Vec<String> = stack.due(&key.project).await.into_iter().map(|(id, _)| id).collect();
    let orphans: Vec<Running> =
        (10..15).map(|number| stack.envoys[0].spawn(Call::chat(&key, &body(number)).header("x-proxium-timeout-ms", "20000"))).collect();
    eventually("five more", BOUND, || std::future::ready(gate.waiting() == 8)).await;

    stack.envoys[0].kill();
    for orphan in orphans {
        assert!(orphan.await.unwrap().is_err(), "its connection is gone");
    }
    gate.open();
    all_answered(survivors).await;
    let mut due = Vec::new();
    eventually("only the holds of the dead one are left", BOUND, || async { stack.due(&key.project).await.len() == 5 }).await;
    let redis = stack.redis_client().await;
    for (id, at) in stack.due(&key.project).await {
        assert!(!due_before.contains(&id));
        let (admitted, _) = Stack::hold(&redis, &key.project, &id).await.unwrap();
        // The deadline of 20 s, less what had passed until the admission, and 30 s of grace.
        assert!((45_000.0..=50_000.0).contains(&(at - admitted)), "{}", at - admitted);
        due.push(id);
    }

    // Until then nothing is charged, and the slots stay taken: 3 and 5 of 10.
    let books = stack.books(&key).await;
    assert_eq!((books.calls, books.ledger.len(), books.spend), (8, 3, 3 * COST));
    let hold = books.held / 5;
    for number in 20..22 {
        let _ = stack.envoys[1].call(&Call::chat(&key, &body(number))).await.expect(200);
    }
    let refused = stack.envoys[1].call(&Call::chat(&key, &body(22))).await.expect(429);
    assert_eq!(refused.json()["error"]["param"], "calls_per_hour");

    // As if the time had come, for both control planes at the same moment.
    for id in &due {
        let _: () = redis.zadd(name::due(&key.project), Some(SetOptions::XX), None, false, false, (1.0, id.as_str())).await.unwrap();
    }
    let closed = stack.closed_books(&key, 10).await;
    assert_eq!((closed.count("call"), closed.count("expired")), (5, 5));
    assert_eq!(closed.calls, 10, "a slot that was used is not given back");
    assert_eq!(closed.spend, 5 * COST + 5 * hold);
    let expired: Vec<_> = closed.ledger.iter().filter(|record| record["kind"] == "expired").collect();
    assert!(expired.iter().all(|record| due.contains(&record["id"]) && record["estimated"] == "1"));

    // An expired one that is settled after all is corrected, without a second call.
    let late = settlement(&key, &due[0], Some(COST));
    let _: SettleReply = stack.control_planes[0].tell(path::SETTLE, &late).await.unwrap();
    let _: SettleReply = stack.control_planes[1].tell(path::SETTLE, &late).await.unwrap();
    let corrected = stack.closed_books(&key, 11).await;
    assert_eq!((corrected.count("correction"), corrected.calls, corrected.spend), (1, 10, 6 * COST + 4 * hold));

    stack.restart_envoy(0).await;
    let _ = stack.envoys[0].call(&Call::chat(&key, &body(30))).await.expect(429);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_redis_forgets_no_hold_and_no_window() {
    let mut stack = Stack::builder().control_planes(2).start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 12}})).await;
    let gate = stack.mocks.first.gate();
    let calls = held_at_the_provider(&stack, 0, &key, 0..10).await;
    let before = stack.books(&key).await;
    stack.redis.restart().await;
    assert_eq!(stack.books(&key).await, before);
    assert_eq!((before.calls, before.holds), (10, 10));
    gate.open();
    all_answered(calls).await;
    let closed = stack.closed_books(&key, 10).await;
    assert_eq!(closed.spend, 10 * COST);
    for number in 10..12 {
        eventually("calls pass again", BOUND, || async { stack.chat(&key, &body(number)).await.status == 200 }).await;
    }
    let _ = stack.chat(&key, &body(12)).await.expect(429);
    stack.closed_books(&key, 12).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_does_not_wait_for_a_dead_redis_and_its_cost_lands_later_once() {
    let mut stack = Stack::builder().control_planes(2).start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 100}})).await;
    let gate = stack.mocks.first.gate();
    let calls = held_at_the_provider(&stack, 0, &key, 0..10).await;
    stack.redis.kill();
    let opened = Instant::now();
    gate.open();
    all_answered(calls).await;
    // 50 ms are promised; a control plane gives Redis up after 2 s. Between them there is room for a busy machine.
    assert!(opened.elapsed() < Duration::from_millis(1500), "{:?}", opened.elapsed());

    let refused = stack.chat(&key, &body(99)).await.expect(503);
    assert_eq!(refused.code(), "control_plane_unavailable");

    stack.redis.resume_service().await;
    let closed = stack.closed_books(&key, 10).await;
    assert_eq!((closed.count("call"), closed.spend, closed.tokens), (10, 10 * COST, 10 * TOKENS));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_whose_reply_is_lost_counts_once() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 100}})).await;
    let gate = stack.mocks.first.gate();
    let calls = held_at_the_provider(&stack, 0, &key, 0..10).await;
    // Redis gets the first settlement and runs it later; nobody hears of that, so each is sent again.
    stack.redis.process().pause();
    gate.open();
    all_answered(calls).await;
    eventually("settlements were refused", BOUND, || async {
        let metrics = stack.admin().send(&Call::new("GET", "/metrics")).await.text();
        metrics.lines().any(|line| line.starts_with("proxium_requests_total") && line.contains("settle") && line.contains("503"))
    })
    .await;
    stack.redis.process().resume();
    let closed = stack.closed_books(&key, 10).await;
    assert_eq!((closed.count("call"), closed.spend, closed.tokens), (10, 10 * COST, 10 * TOKENS));
    eventually("the outbox is empty", BOUND, || async { stack.envoys[0].stat("wasmcustom.proxium_outbox_pending").await == 0 }).await;
    stack.closed_books(&key, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_state_of_a_project_refuses_its_calls_and_is_never_a_spend_of_zero() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({"monthly_cap_usd": "0.000001"}), json!({})).await;
    let _ = stack.chat(&key, &body(0)).await.expect(429);
    let redis = stack.redis_client().await;
    let _: i64 = redis.del(name::state(&key.project)).await.unwrap();
    let refused = stack.chat(&key, &body(0)).await.expect(503);
    assert_eq!(refused.code(), "control_plane_unavailable");
    assert_eq!(stack.mocks.first.calls("m1"), 0);
}

fn admission(key: &Key, id: &str) -> AdmitRequest {
    let hold = Hold { input_tokens: 10, output_tokens: 100, nano_usd: 1_000_000 };
    AdmitRequest {
        id: id.into(),
        project: key.project.clone(),
        key_id: key.id.clone(),
        normal: Alternative { hold, ..Alternative::default() },
        hold_ms: 60_000,
        ..AdmitRequest::default()
    }
}

/// `cost`: of a settle; none: a release.
fn settlement(key: &Key, id: &str, cost: Option<i64>) -> SettleRequest {
    let usage = Usage { input: 3, output: 5, ..Usage::default() };
    let end =
        cost.map_or(End::Release(Release {}), |cost_nano_usd| End::Settle(Box::new(Settle { usage, cost_nano_usd, ..Settle::default() })));
    let settlement = Settlement {
        id: id.into(),
        project: key.project.clone(),
        key_id: key.id.clone(),
        source: String::new(),
        end: Some(end),
        side_call: false,
    };
    SettleRequest { settlements: vec![settlement] }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_in_any_order_and_number_come_to_the_same_end() {
    let stack = Stack::builder().control_planes(2).envoys(0).start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 100}})).await;
    let [one, other] = &stack.control_planes[..] else { panic!("two control planes") };
    let admitted = |reply: AdmitReply| matches!(reply.outcome, Some(Outcome::Admitted(_)));

    // A release overtakes its admission.
    let _: SettleReply = one.tell(path::SETTLE, &settlement(&key, "overtaken", None)).await.unwrap();
    assert!(!admitted(other.tell(path::ADMIT, &admission(&key, "overtaken")).await.unwrap()), "nobody waits for it any more");
    let books = stack.closed_books(&key, 0).await;
    assert_eq!((books.calls, books.held), (0, 0));

    // An admission twice, its settlement three times.
    assert!(admitted(one.tell(path::ADMIT, &admission(&key, "twice")).await.unwrap()));
    assert!(admitted(other.tell(path::ADMIT, &admission(&key, "twice")).await.unwrap()));
    assert_eq!(stack.books(&key).await.calls, 1);
    for control_plane in [one, other, one] {
        let _: SettleReply = control_plane.tell(path::SETTLE, &settlement(&key, "twice", Some(COST))).await.unwrap();
    }
    let books = stack.closed_books(&key, 1).await;
    assert_eq!((books.calls, books.spend, books.tokens), (1, COST, TOKENS));
    // A release after it changes nothing.
    let _: SettleReply = other.tell(path::SETTLE, &settlement(&key, "twice", None)).await.unwrap();
    assert_eq!(stack.closed_books(&key, 1).await, books);

    // A settlement whose admission was never made is charged in full, and its admission comes too late.
    let _: SettleReply = one.tell(path::SETTLE, &settlement(&key, "unknown", Some(COST))).await.unwrap();
    assert!(!admitted(other.tell(path::ADMIT, &admission(&key, "unknown")).await.unwrap()));
    let books = stack.closed_books(&key, 2).await;
    assert_eq!((books.calls, books.spend, books.tokens), (2, 2 * COST, 2 * TOKENS));
}

#[tokio::test(flavor = "multi_thread")]
async fn control_planes_that_start_before_redis_count_together_once_it_is_there() {
    let mut stack = Stack::builder().control_planes(3).envoys(0).start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 3}})).await;
    stack.redis.kill();
    for control_plane in &mut stack.control_planes {
        control_plane.restart_unready();
    }
    for (number, control_plane) in stack.control_planes.iter().enumerate() {
        eventually("its port is open", BOUND, || async {
            let refused = control_plane.tell::<AdmitReply>(path::ADMIT, &admission(&key, &format!("early {number}"))).await.unwrap_err();
            if refused.starts_with("503") { Ok(()) } else { Err(refused) }
        })
        .await;
    }
    stack.redis.resume_service().await;
    for control_plane in &mut stack.control_planes {
        control_plane.ready().await;
    }
    let mut admitted = 0;
    for number in 0..9 {
        let id = format!("late {number}");
        let reply: AdmitReply = stack.control_planes[number % 3].tell(path::ADMIT, &admission(&key, &id)).await.unwrap();
        admitted += usize::from(matches!(reply.outcome, Some(Outcome::Admitted(_))));
    }
    assert_eq!(admitted, 3);
}
