//! Answers kept in the workers of Envoy: served without a word to anybody, and never beyond what the control plane would say.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use fred::prelude::*;
use proxium::mock_provider::{ANY, Behaviour};
use proxium::store::name;
use proxium_e2e::{Ask, BOTH, BOUND, Call, Key, Response, Stack, catalog, chat, eventually};
use serde_json::{Value, json};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The specification says 2 s; two busy cores get as much again.
const SOON: Duration = Duration::from_secs(4);
/// An Envoy that has not heard of the control plane for so long serves no kept answer.
const TRUSTED: Duration = Duration::from_secs(5);

/// Deletes all answers in Redis, behind everybody's back: what is a hit from now on is one of the filter's own.
async fn empty_redis(stack: &Stack, key: &Key) {
    let redis = stack.redis_client().await;
    let members: Vec<String> = redis.zrange(name::answers(&key.project), 0, -1, None, false, None, false).await.unwrap();
    for member in &members {
        let () = redis.del(name::answer(&key.project, member.split('|').next().unwrap())).await.unwrap();
    }
    assert!(!members.is_empty());
}

fn label(answer: &Response) -> (u16, Option<&str>) {
    (answer.status, answer.header("x-proxium-cache"))
}

/// How many hits the ledger tells of, and in how many records.
async fn hits_told(stack: &Stack, key: &Key) -> (u64, usize) {
    let ledger = stack.ledger(&key.project).await;
    let hits: Vec<u64> = ledger
        .iter()
        .filter(|record| record["kind"] == "hit")
        .map(|record| record.get("hits").map_or(1, |hits| hits.parse().unwrap()))
        .collect();
    (hits.iter().sum(), hits.len())
}

/// Waits until so many hits are told, and says in how many records.
async fn told(stack: &Stack, key: &Key, hits: u64) -> usize {
    let told = eventually("the hits are in the ledger", BOUND, || async {
        let told = hits_told(stack, key).await;
        if told.0 == hits { Ok(told.1) } else { Err(told) }
    });
    told.await
}

/// What `spend` says of calls and of hits among them.
async fn spend(stack: &Stack, key: &Key) -> (u64, u64) {
    let answer = stack.admin().get(&format!("/projects/{}/spend?by=key", key.project)).await.expect(200).json();
    let of = |field: &str| answer["rows"][0][field].as_u64().unwrap();
    (of("calls"), of("cached_calls"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_hit_asks_nobody_and_is_counted_also_through_an_outage_but_not_served_after_five_seconds_of_it() {
    let mut stack = Stack::builder().catalog(catalog::both_dialects).concurrency(1).start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 4}})).await;
    let hits = Cell::new(0);
    let count = || hits.set(hits.get() + 1);
    for ask in BOTH {
        for model in ["m1", "a2"] {
            // The first call pays, the second finds its answer in Redis; the filter has it then, for either mode.
            let unary = ask.call(&key, &ask.body(model, "hello"));
            let made = stack.call(&unary).await.expect(200);
            stack.kept(&key.project, &made).await;
            assert_eq!(label(&stack.call(&unary).await), (200, Some("hit")));
            count();
            empty_redis(&stack, &key).await;
            let from_memory = stack.call(&unary).await.expect(200);
            assert_eq!((label(&from_memory), &from_memory.body), ((200, Some("hit")), &made.body), "{ask:?} {model}");
            assert_eq!(["x-proxium-cost-usd", "x-proxium-model"].map(|name| from_memory.header(name)), [Some("0"), Some(model)]);
            let streamed = stack.streamed(&ask.stream(&key, model, "hello")).await.whole();
            assert_eq!(streamed.header("x-proxium-cache"), Some("hit"), "{ask:?} {model}");
            assert!(made.text().contains(&streamed.text()) && streamed.text().starts_with("You said"), "{}", streamed.raw());
            count();
            count();
        }
    }
    let calls = || stack.mocks.first.calls(ANY) + stack.mocks.second.calls(ANY);
    assert_eq!(calls(), 4);

    let _ = told(&stack, &key, hits.get()).await;
    assert_eq!(spend(&stack, &key).await, (4 + hits.get(), hits.get()));

    // The control plane dies: what was hot still is, for as long as no change can have been missed.
    let of_chat = Call::chat(&key, &Ask::Chat.body("m1", "hello"));
    stack.control_planes[0].kill();
    let dead = Instant::now();
    let refused = eventually("no hit any more", TRUSTED + SOON, || async {
        let answer = stack.call(&of_chat).await;
        if label(&answer) != (200, Some("hit")) {
            return Ok(answer);
        }
        count();
        Err("a hit")
    });
    let refused = refused.await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "control_plane_unavailable"));
    assert!(dead.elapsed() < TRUSTED + SOON);
    stack.control_planes[0].restart().await;

    // All are told, the batches that waited too, each once.
    let records = told(&stack, &key, hits.get()).await;
    eventually("the outbox is empty", BOUND, || async { stack.envoys[0].stat("wasmcustom.proxium_outbox_pending").await == 0 }).await;
    assert_eq!(told(&stack, &key, hits.get()).await, records);
    let told = hits.get();
    assert!(records < usize::try_from(told).unwrap(), "{told} hits in {records} records: told in batches");
    assert_eq!(spend(&stack, &key).await, (4 + told, told));
    assert_eq!(stack.windows(&key).await["c_sum"], "4", "a hit uses no slot");
    let metrics = stack.admin().try_send(&Call::new("GET", "/metrics")).await.unwrap().expect(200).text();
    assert!(metrics.contains("outcome=\"filter_hit\""), "{metrics}");
}

/// One project whose answer was hot in every worker, and how an answer shows that it is no longer served.
struct Case {
    what: &'static str,
    key: Key,
    text: String,
    is_over: fn(&Response, &str) -> bool,
    since: Instant,
}

impl Case {
    fn call(&self) -> Call {
        Call::chat(&self.key, &chat("m1", "the same of all"))
    }

    /// Six calls to each Envoy, each on a connection of its own.
    async fn ask(&self, stack: &Stack) -> Vec<Response> {
        stack.all_at_once(std::iter::repeat_n(self.call(), 6 * stack.envoys.len())).await
    }

    async fn is_over_everywhere(&self, stack: &Stack) -> bool {
        self.ask(stack).await.iter().all(|answer| (self.is_over)(answer, &self.text))
    }

    /// Nobody may be served it any longer than the bound after `since`.
    async fn ends(&self, stack: &Stack) {
        loop {
            let asked = Instant::now();
            if self.is_over_everywhere(stack).await {
                return;
            }
            assert!(asked < self.since + SOON, "{}: still served {:?} after", self.what, asked - self.since);
        }
    }
}

fn is_another(answer: &Response, text: &str) -> bool {
    answer.status == 200 && !answer.text().contains(text)
}

fn is_refused(answer: &Response, _: &str) -> bool {
    matches!(answer.status, 401 | 403)
}

fn is_charged(answer: &Response, _: &str) -> bool {
    answer.status == 200 && answer.header("x-proxium-cost-usd").is_some_and(|cost| cost != "0")
}

fn is_bypassed(answer: &Response, _: &str) -> bool {
    answer.header("x-proxium-cache") == Some("bypass")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_purged_expired_revoked_or_changed_is_no_longer_served_by_any_worker_within_two_seconds() {
    let stack = Stack::builder().envoys(2).control_planes(2).start().await;
    let admin = stack.admin();
    let hot = |what: &'static str, project: Value, is_over: fn(&Response, &str) -> bool| {
        let stack = &stack;
        async move {
            let key = stack.key_with(project, json!({})).await;
            let case = Case { what, text: format!("kept-for-{}", key.project), key, is_over, since: Instant::now() };
            stack.mocks.first.next("m1", [Behaviour::answer().text(&case.text)]);
            let made = stack.call(&case.call()).await.expect(200);
            stack.kept(&case.key.project, &made).await;
            for answer in case.ask(stack).await.iter().chain(&case.ask(stack).await) {
                assert_eq!(label(answer), (200, Some("hit")), "{what}");
                assert!(answer.text().contains(&case.text), "{what}: its own answer and nobody else's: {}", answer.text());
            }
            (case, made.header("x-proxium-request-id").unwrap().to_owned())
        }
    };
    let mut cases = Vec::new();
    for query in ["", "?model=m1", "?request_id="] {
        let (mut case, id) = hot("a purge", json!({}), is_another).await;
        let query = if query.ends_with('=') { format!("{query}{id}") } else { query.to_owned() };
        let _ = admin.delete(&format!("/projects/{}/cache{query}", case.key.project)).await.expect(204);
        case.since = Instant::now();
        cases.push(case);
    }
    for (what, change, is_over) in [
        ("a revoked key", json!({"revoked": true}), is_refused as fn(&Response, &str) -> bool),
        ("a key that may no longer use the model", json!({"allowed_models": ["m2"]}), is_refused),
        ("a key with a rule", json!({"rules": {"m1": ["m2"]}}), is_another),
    ] {
        let (mut case, _) = hot(what, json!({}), is_over).await;
        let _ = admin.patch(&format!("/projects/{}/keys/{}", case.key.project, case.key.id), &change).await.expect(200);
        case.since = Instant::now();
        cases.push(case);
    }
    for (what, change, is_over) in [
        ("a hit that costs", json!({"cached_answer_charge": 0.25}), is_charged as fn(&Response, &str) -> bool),
        ("a project without a cache", json!({"cache": {"exact": false}}), is_bypassed),
    ] {
        let (mut case, _) = hot(what, json!({}), is_over).await;
        let _ = admin.patch(&format!("/projects/{}", case.key.project), &change).await.expect(200);
        case.since = Instant::now();
        cases.push(case);
    }
    let (mut renewed, _) = hot("a renewed answer", json!({}), is_another).await;
    let answer = stack.call(&renewed.call().header("x-proxium-cache", "refresh")).await.expect(200);
    stack.kept(&renewed.key.project, &answer).await;
    renewed.since = Instant::now();
    cases.push(renewed);
    let (deleted, _) = hot("a deleted project", json!({}), is_refused).await;
    let _ = admin.delete(&format!("/projects/{}", deleted.key.project)).await.expect(204);
    cases.push(Case { since: Instant::now(), ..deleted });
    let ttl = Duration::from_secs(8);
    let (expiring, _) = hot("an answer whose time is over", json!({"cache": {"ttl_s": ttl.as_secs()}}), is_another).await;
    cases.push(Case { since: expiring.since + ttl, ..expiring });
    let (untouched, _) = hot("another project's", json!({}), is_another).await;

    for case in &cases {
        case.ends(&stack).await;
    }
    for case in &cases {
        assert!(case.is_over_everywhere(&stack).await, "{}: served again", case.what);
    }
    empty_redis(&stack, &untouched.key).await;
    let answers = stack.all_at_once(std::iter::repeat_n(untouched.call(), 8)).await;
    let kept = answers.iter().filter(|answer| answer.text().contains(&untouched.text)).count();
    assert!(kept > 0, "what nobody touched is still hot: {}", answers[0].text());
}
