//! Every limit, alone and under parallel calls, on real time and real windows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use fred::prelude::*;
use proxium::mock_provider::{ANY, Behaviour};
use proxium::store::name;
use proxium_e2e::{BOUND, Call, Key, Mocks, Response, Stack, catalog, chat, eventually};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::task::JoinSet;

const LIMITS: [&str; 3] = ["calls_per_hour", "requests_per_minute", "tokens_per_minute"];

fn uncached(key: &Key, body: &Value) -> Call {
    Call::chat(key, body).header("x-proxium-cache", "bypass")
}

/// At most so many output tokens, so that the hold is known: 22 tokens and these.
fn small(model: &str, max_tokens: u64) -> Value {
    let mut body = chat(model, "hello");
    body["max_tokens"] = json!(max_tokens);
    body
}

async fn ceilings(stack: &Stack, key: &Key, ceilings: Value) {
    let path = format!("/projects/{}/keys/{}", key.project, key.id);
    let _ = stack.admin().patch(&path, &json!({"ceilings": ceilings})).await.expect(200);
}

async fn sender(stack: &Stack, key: &Key, source: &str, ceilings: Value) {
    let path = format!("/projects/{}/senders/{source}", key.project);
    let _ = stack.admin().put(&path, &json!({"ceilings": ceilings})).await.expect(200);
}

async fn cap(stack: &Stack, key: &Key, usd: Value) {
    let _ = stack.admin().patch(&format!("/projects/{}", key.project), &json!({"monthly_cap_usd": usd})).await.expect(200);
}

/// All that the limits of a key are made of.
async fn money_and_windows(stack: &Stack, key: &Key) -> (Vec<(String, String)>, Vec<(String, String)>) {
    let sorted = |fields: std::collections::HashMap<String, String>| {
        let mut fields: Vec<_> = fields.into_iter().filter(|(name, _)| !name.ends_with("_head") && name != "clock_ms").collect();
        fields.sort();
        fields
    };
    (sorted(stack.state(&key.project).await), sorted(stack.windows(key).await))
}

async fn settled(stack: &Stack, key: &Key) {
    eventually("nothing is held", BOUND, || async { stack.state(&key.project).await["held"] == "0" }).await;
}

#[track_caller]
fn refused(response: Response, code: &str, limit: &str) -> Response {
    let response = response.expect(429);
    let error = &response.json()["error"];
    assert_eq!((&error["code"], &error["param"], &error["type"]), (&json!(code), &json!(limit), &json!("rate_limit_error")));
    response
}

/// Sends all these calls at once, while no provider answers; those that passed and those that were refused.
async fn at_once(stack: &Arc<Stack>, calls: Vec<(usize, Call)>) -> (usize, Vec<Response>) {
    let gates = [stack.mocks.first.gate(), stack.mocks.second.gate()];
    let (mut running, count) = (JoinSet::new(), calls.len());
    for (envoy, call) in calls {
        let stack = stack.clone();
        running.spawn(async move { stack.envoys[envoy % stack.envoys.len()].call(&call).await });
    }
    let mut refused = Vec::new();
    let waiting = || gates.iter().map(proxium::mock_provider::Gate::waiting).sum::<u64>() as usize;
    eventually("all are decided", BOUND, || {
        while let Some(ended) = running.try_join_next() {
            refused.push(ended.unwrap());
        }
        let decided = waiting() + refused.len();
        std::future::ready(if decided == count { Ok(()) } else { Err(decided) })
    })
    .await;
    let passed = waiting();
    drop(gates);
    while let Some(ended) = running.join_next().await {
        let _ = ended.unwrap().expect(200);
    }
    (passed, refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_ceiling_refuses_by_name_and_a_refusal_consumes_nothing() {
    let stack = Stack::start().await;
    stack.mocks.first.always("m1", Behaviour::answer().usage(json!({"prompt_tokens": 20, "completion_tokens": 30})));
    for (limit, ceiling) in [("calls_per_hour", 2), ("requests_per_minute", 2), ("tokens_per_minute", 140)] {
        for (code, of_sender) in [("tenant_capped", false), ("source_capped", true)] {
            let key = stack.key().await;
            match of_sender {
                true => sender(&stack, &key, "app", json!({limit: ceiling})).await,
                false => ceilings(&stack, &key, json!({limit: ceiling})).await,
            }
            let call = uncached(&key, &small("m1", 60)).header("x-proxium-source", "app");
            let kind = if limit == "tokens_per_minute" { "tokens" } else { "requests" };
            for _ in 0..2 {
                let answer = stack.call(&call).await.expect(200);
                assert_eq!(answer.header(&format!("x-ratelimit-limit-{kind}")), Some(ceiling.to_string().as_str()));
                settled(&stack, &key).await;
            }
            let before = money_and_windows(&stack, &key).await;
            for _ in 0..20 {
                let answer = refused(stack.call(&call).await, code, limit);
                let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
                assert!((1..=if limit == "calls_per_hour" { 3_660 } else { 61 }).contains(&seconds), "{seconds}");
                let reset = answer.header(&format!("x-ratelimit-reset-{kind}")).unwrap();
                assert!(reset.ends_with('s'), "{reset}");
                assert!(answer.header("x-proxium-request-id").is_some());
            }
            assert_eq!(money_and_windows(&stack, &key).await, before, "{limit}");
            if of_sender {
                let _ = stack.call(&uncached(&key, &small("m1", 60)).header("x-proxium-source", "another")).await.expect(200);
                let _ = stack.call(&uncached(&key, &small("m1", 60))).await.expect(200);
            } else if limit == "tokens_per_minute" {
                // 100 are used: one that fits what is left passes.
                let _ = stack.call(&uncached(&key, &small("m1", 10))).await.expect(200);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ceiling_of_zero_refuses_everything() {
    let stack = Stack::start().await;
    for limit in LIMITS {
        let key = stack.key_with(json!({}), json!({"ceilings": {limit: 0}})).await;
        let answer = refused(stack.call(&uncached(&key, &small("m1", 1))).await, "tenant_capped", limit);
        assert_eq!(answer.header("retry-after"), None, "waiting does not help");
        let key = stack.key().await;
        sender(&stack, &key, "app", json!({limit: 0})).await;
        refused(stack.call(&uncached(&key, &small("m1", 1)).header("x-proxium-source", "app")).await, "source_capped", limit);
    }
    let key = stack.key_with(json!({"monthly_cap_usd": 0}), json!({})).await;
    refused(stack.call(&uncached(&key, &small("m1", 1))).await, "tenant_capped", "monthly_cap");
    assert_eq!(stack.mocks.first.calls(ANY), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_counted_as_used_not_by_the_call() {
    let stack = Stack::start().await;
    stack.mocks.first.always("m1", Behaviour::answer().usage(json!({"prompt_tokens": 50, "completion_tokens": 100})));
    let key = stack.key_with(json!({}), json!({"ceilings": {"tokens_per_minute": 30}})).await;
    // Its hold is clamped into the empty window; what it used is recorded in full.
    let answer = stack.call(&uncached(&key, &small("m1", 1_000))).await.expect(200);
    assert_eq!(answer.header("x-ratelimit-remaining-tokens"), Some("0"));
    settled(&stack, &key).await;
    assert_eq!(stack.windows(&key).await["t_sum"], "150");
    refused(stack.call(&uncached(&key, &small("m1", 1))).await, "tenant_capped", "tokens_per_minute");
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_calls_cannot_pass_together_what_fits_one() {
    let stack = Arc::new(Stack::builder().control_planes(2).envoys(2).start().await);
    let calls = |key: &Key, count: usize, body: &Value| -> Vec<(usize, Call)> {
        (0..count).map(|number| (number, uncached(key, body).header("x-proxium-source", "new"))).collect()
    };

    let key = stack.key_with(json!({}), json!({"ceilings": {"tokens_per_minute": 100}})).await;
    let (passed, others) = at_once(&stack, calls(&key, 5, &small("m1", 100))).await;
    assert_eq!(passed, 1);
    others.into_iter().for_each(|other| _ = refused(other, "tenant_capped", "tokens_per_minute"));

    // One holds 22 x 1,000 + 50 x 10,000 nano-USD; this is no room for two.
    let key = stack.key_with(json!({"monthly_cap_usd": "0.001"}), json!({})).await;
    let (passed, others) = at_once(&stack, calls(&key, 20, &small("m1", 50))).await;
    assert_eq!(passed, 1);
    others.into_iter().for_each(|other| _ = refused(other, "tenant_capped", "monthly_cap"));
    settled(&stack, &key).await;
    assert_eq!(stack.state(&key.project).await["spend"], "31000", "1 token in, 3 out");

    let key = stack.key().await;
    sender(&stack, &key, "new", json!({"calls_per_hour": 1})).await;
    let (passed, others) = at_once(&stack, calls(&key, 8, &small("m1", 50))).await;
    assert_eq!(passed, 1);
    others.into_iter().for_each(|other| _ = refused(other, "source_capped", "calls_per_hour"));
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_and_unknown_calls_take_no_slot() {
    let stack = Stack::start().await;
    let key =
        stack.key_with(json!({}), json!({"allowed_models": ["m1"], "ceilings": {"calls_per_hour": 1, "tokens_per_minute": 2_000}})).await;
    let bodies = [
        ("{\"model\": \"m1\", \"mess".to_owned(), 400),
        ("[]".to_owned(), 400),
        (json!({"model": "m1"}).to_string(), 400),
        (json!({"model": "m1", "messages": []}).to_string(), 400),
        (json!({"model": 7, "messages": [{}]}).to_string(), 400),
        (json!({"model": "m1", "messages": [{}], "max_tokens": "many"}).to_string(), 400),
        (chat("no-such-model", "hello").to_string(), 404),
        (chat("m2", "hello").to_string(), 403),
    ];
    for (body, status) in bodies {
        let call = Call::new("POST", "/v1/chat/completions").header("authorization", &format!("Bearer {}", key.text));
        assert_eq!(stack.call(&call.body(body.as_str())).await.status, status, "{body}");
    }
    assert!(stack.windows(&key).await.is_empty());
    let _ = stack.chat(&key, &chat("m1", "hello")).await.expect(200);
    refused(stack.chat(&key, &chat("m1", "hello again")).await, "tenant_capped", "calls_per_hour");
    // The exact cache still answers a key that is at its ceiling.
    assert_eq!(stack.chat(&key, &chat("m1", "hello")).await.expect(200).header("x-proxium-cache"), Some("hit"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_changed_during_traffic_acts_at_once_on_the_window_as_it_is() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 10}})).await;
    let call = uncached(&key, &small("m1", 50));
    let pass = async |count: usize| {
        for _ in 0..count {
            let _ = stack.call(&call).await.expect(200);
        }
    };
    pass(3).await;
    let gate = stack.mocks.first.gate();
    let in_flight = async {
        let answer = stack.call(&call).await.expect(200);
        assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("10"), "it keeps what it was admitted by");
    };
    let meanwhile = async {
        eventually("a call is in flight", BOUND, || std::future::ready(gate.waiting() == 1)).await;
        ceilings(&stack, &key, json!({"calls_per_hour": 2})).await;
        let answer = refused(stack.call(&call).await, "tenant_capped", "calls_per_hour");
        assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some("0"), "never below zero");
        gate.open();
    };
    tokio::join!(in_flight, meanwhile);

    ceilings(&stack, &key, json!({"calls_per_hour": 6})).await;
    pass(2).await;
    refused(stack.call(&call).await, "tenant_capped", "calls_per_hour");
    ceilings(&stack, &key, json!({"calls_per_hour": null})).await;
    pass(2).await;
    assert_eq!(stack.windows(&key).await["c_sum"], "8", "a ceiling that is gone is still counted");

    cap(&stack, &key, json!("0.000001")).await;
    refused(stack.call(&call).await, "tenant_capped", "monthly_cap");
    cap(&stack, &key, json!("1")).await;
    pass(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_free_first_entry_does_not_open_the_way_to_one_that_costs() {
    let free = |mocks: &Mocks| {
        catalog::three_providers(mocks).replacen("models:\n", "models:\n  free: {provider: first, free: true}\n", 1)
            + "  free-then-m2: [free, m2]\n"
    };
    let stack = Stack::builder().catalog(free).start().await;
    let key = stack.key_with(json!({"monthly_cap_usd": "0.000001"}), json!({})).await;
    stack.mocks.first.always("free", Behaviour::status(500));
    refused(stack.call(&uncached(&key, &small("free-then-m2", 50))).await, "tenant_capped", "monthly_cap");
    assert_eq!((stack.mocks.first.calls(ANY), stack.mocks.second.calls(ANY)), (0, 0));
    stack.mocks.first.behave();
    let _ = stack.call(&uncached(&key, &small("free", 50))).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_comes_up_last_is_found_and_nobody_counts_alone_meanwhile() {
    let mut stack = Stack::builder().control_planes(3).start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 2}})).await;
    let call = uncached(&key, &small("m1", 50));
    stack.redis.kill();
    stack.control_planes.iter_mut().for_each(proxium_e2e::ControlPlane::kill);
    let (planes, redis, envoy) = (&mut stack.control_planes, &mut stack.redis, &stack.envoys[0]);
    let [one, two, three] = planes.as_mut_slice() else { panic!("three control planes") };
    let redis_last = async {
        for _ in 0..5 {
            let answer = envoy.call(&call).await.expect(503);
            assert_eq!(answer.code(), "control_plane_unavailable");
        }
        redis.resume_service().await;
    };
    tokio::join!(one.restart(), two.restart(), three.restart(), redis_last);

    let stack = Arc::new(stack);
    eventually("calls are decided again", BOUND, || async { stack.call(&call).await.status == 200 }).await;
    let (passed, others) = at_once(&stack, (0..12).map(|number| (number, call.clone())).collect()).await;
    assert_eq!(passed, 1, "two in all");
    others.into_iter().for_each(|other| _ = refused(other, "tenant_capped", "calls_per_hour"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cost_that_redis_could_not_take_is_recorded_later() {
    let mut stack = Stack::start().await;
    let key = stack.key_with(json!({"monthly_cap_usd": 1}), json!({"ceilings": {"calls_per_hour": 10}})).await;
    let gate = stack.mocks.first.gate();
    let call = uncached(&key, &small("m1", 50));
    let (envoy, redis) = (&stack.envoys[0], &mut stack.redis);
    let in_flight = async { envoy.call(&call).await.expect(200) };
    let meanwhile = async {
        eventually("the call is at the provider", BOUND, || std::future::ready(gate.waiting() == 1)).await;
        redis.kill();
        gate.open();
    };
    let (answer, ()) = tokio::join!(in_flight, meanwhile);
    assert_eq!(answer.header("x-proxium-cost-usd"), Some("0.000031"), "the client does not wait for Redis");
    stack.redis.resume_service().await;
    settled(&stack, &key).await;
    assert_eq!(stack.state(&key.project).await["spend"], "31000");
    assert_eq!(stack.ledger(&key.project).await.len(), 1);
    assert_eq!(stack.windows(&key).await["c_sum"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_windows_are_no_free_hour() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 1}})).await;
    let answer = stack.call(&uncached(&key, &chat("m1", "hello"))).await.expect(200);
    stack.settled(&key.project, &answer).await;
    let redis = stack.redis_client().await;
    let gone: i64 = redis.del(name::key_window(&key.project, &key.id)).await.unwrap();
    assert_eq!(gone, 1);
    let refused = stack.call(&uncached(&key, &chat("m1", "hello"))).await.expect(429);
    assert_eq!(refused.json()["error"]["param"], "calls_per_hour");
}
