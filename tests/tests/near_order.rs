//! Near matches: who is asked when, what it costs, and where the store is not asked at all.

// Helpers of tests: a panic is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand};
use proxium::mock_provider::Behaviour;
use proxium::store::name;
use proxium_e2e::{Ask, BOUND, Call, Key, Response, Stack, catalog, chat, eventually};
use serde_json::{Value, json};
use std::time::Instant;

/// `embed` is a model of the third provider, which finds all texts the same, at a dime per thousand tokens.
async fn stack() -> Stack {
    stack_with("").await
}

async fn stack_with(catalog: &str) -> Stack {
    stack_on(catalog, &[]).await
}

async fn stack_on(catalog: &str, redis: &'static [&'static str]) -> Stack {
    let embed = "models:\n  embed: {provider: third, endpoints: [embeddings], price_usd_per_mtok: {input: 100}}\n";
    let stack = Stack::builder()
        .catalog(move |mocks| catalog::both_dialects(mocks).replace("models:\n", embed) + "embeddings: {model: embed}\n")
        .and_catalog(catalog)
        .redis(redis)
        .start()
        .await;
    stack.mocks.third.always("embed", vector(&[1.0, 2.0, 3.0]));
    stack
}

fn vector(numbers: &[f64]) -> Behaviour {
    let body = json!({"data": [{"embedding": numbers}], "usage": {"prompt_tokens": 3, "total_tokens": 3}});
    Behaviour::raw(200, "application/json", body.to_string())
}

fn near(more: Value) -> Value {
    let mut project = json!({"cache": {"near": {"enabled": true}}});
    project.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    project
}

fn label(answer: &Response) -> &str {
    answer.header("x-proxium-cache").unwrap_or_else(|| panic!("{} {}", answer.status, answer.text()))
}

/// Makes a call that must be answered; a miss is waited for until it can be found.
async fn answered(stack: &Stack, key: &Key, call: &Call) -> Response {
    let answer = stack.call(call).await.expect(200);
    if label(&answer) == "miss" {
        stack.kept(&key.project, &answer).await;
    }
    answer
}

async fn asked(stack: &Stack, key: &Key, text: &str) -> Response {
    answered(stack, key, &Call::chat(key, &chat("m1", text))).await
}

async fn vectors(stack: &Stack, key: &Key, count: u64) {
    let redis = stack.redis_client().await;
    eventually("so many vectors", BOUND, || async {
        redis.zcard::<u64, _>(name::vectors(&key.project)).await.is_ok_and(|there| there == count)
    })
    .await;
}

/// Embeddings made, answers made.
fn made(stack: &Stack) -> (usize, usize) {
    (stack.mocks.third.calls("embed"), stack.mocks.first.calls("m1"))
}

fn at(stack: &Stack, model: &str) -> Instant {
    let all = [stack.mocks.first.requests(), stack.mocks.third.requests()].concat();
    all.iter().rev().find(|request| request.model == model).unwrap().at
}

#[tokio::test(flavor = "multi_thread")]
async fn a_near_match_is_looked_for_after_the_exact_one_and_before_the_reservation() {
    let stack = stack().await;
    let key = stack.key_with(near(json!({})), json!({"ceilings": {"calls_per_hour": 10}})).await;
    let first = asked(&stack, &key, "How do I reset my password?").await;
    assert_eq!((label(&first), made(&stack)), ("miss", (1, 1)));
    assert!(at(&stack, "embed") < at(&stack, "m1"), "the vector comes before the provider");
    vectors(&stack, &key, 1).await;
    let books = stack.closed_books(&key, 2).await;
    assert_eq!((books.calls, books.sum("cost_nano_usd") > 300_000), (1, true));
    let embedding = books.ledger.iter().find(|record| record["endpoint"] == "embeddings").expect("the embedding is recorded");
    assert_eq!((embedding["cost_nano_usd"].as_str(), embedding["calls"].as_str(), embedding["model"].as_str()), ("300000", "0", "embed"));

    // The exact answer: nobody is asked.
    let hit = asked(&stack, &key, "How do I reset my password?").await;
    assert_eq!((label(&hit), hit.header("x-proxium-similarity"), made(&stack)), ("hit", None, (1, 1)));

    // A near one: the vector is paid, nothing else, and no slot is taken.
    let windows = stack.windows(&key).await;
    let question = "Please tell me how I can reset my password.";
    let answer = asked(&stack, &key, question).await;
    assert_eq!((label(&answer), made(&stack)), ("near", (2, 1)));
    for (name, value) in [
        ("x-proxium-similarity", "1.000000"),
        ("x-proxium-model", "m1"),
        ("x-proxium-cost-usd", "0"),
        ("x-proxium-attempts", "0"),
        ("x-proxium-cached-request-id", first.header("x-proxium-request-id").unwrap()),
    ] {
        assert_eq!(answer.header(name), Some(value), "{name}");
    }
    assert_eq!((&answer.body, stack.windows(&key).await), (&first.body, windows));
    let books = stack.closed_books(&key, 5).await;
    assert_eq!((books.count("hit"), books.calls, books.held), (2, 1, 0));
    // As a stream.
    let stream = stack.streamed(&Ask::Chat.stream(&key, "m1", question)).await.whole();
    assert_eq!((label(&stream.answer()), made(&stack)), ("near", (3, 1)));

    // Words, another's answers, another system prompt, another model: the vector alone is not enough.
    for other in [
        "How do I not reset my password?",
        "How do I reset my 2 passwords?",
        "How do I reset \"my\" password?",
        "How do I reset Ann's password?",
    ] {
        assert_eq!(label(&asked(&stack, &key, other).await), "miss", "{other}");
    }
    let other = stack.key_with(near(json!({})), json!({})).await;
    assert_eq!(label(&asked(&stack, &other, question).await), "miss");
    let with = |more: Value| {
        let mut body = chat("m1", "How might I reset my password?");
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Call::chat(&key, &body)
    };
    for different in [
        json!({"temperature": 0.5}),
        json!({"model": "m2"}),
        json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]}),
    ] {
        assert_eq!(label(&answered(&stack, &key, &with(different.clone())).await), "miss", "{different}");
    }
    assert_eq!(label(&answered(&stack, &key, &with(json!({"user": "ann"}))).await), "near");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_vector_is_bought_where_it_could_not_be_used() {
    let stack = stack().await;
    let key = stack.key_with(near(json!({"memory": true})), json!({})).await;
    let memories = format!("/projects/{}/memories", key.project);
    let _ = stack.admin().post(&memories, &json!({"text": "Ann likes tea.", "end_user": "ann"})).await.expect(201);
    let _ = stack.admin().post(&memories, &json!({"text": "The shop closes at six."})).await.expect(201);
    let plain = Call::chat(&key, &chat("m1", "What do I like?"));
    let messages = |messages: Value| Call::chat(&key, &json!({"model": "m1", "messages": messages}));
    let tool = json!([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "42"}]);
    let image = json!([{"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}]);
    for (why, call) in [
        ("an end user's memories", plain.clone().header("x-proxium-memory", "recall").header("x-proxium-user", "ann")),
        ("a tool's result", messages(tool)),
        ("an image", messages(image)),
        ("bypass", plain.clone().header("x-proxium-cache", "bypass")),
        ("refresh", plain.clone().header("x-proxium-cache", "refresh")),
    ] {
        let _ = stack.call(&call).await.expect(200);
        assert_eq!(stack.mocks.third.calls("embed"), 0, "{why}");
    }
    // The project's own memories are the same for everybody.
    let recalling = |text: &str| Call::chat(&key, &chat("m1", text)).header("x-proxium-memory", "recall");
    assert_eq!(label(&answered(&stack, &key, &recalling("When does it close?")).await), "miss");
    vectors(&stack, &key, 1).await;
    assert_eq!(label(&answered(&stack, &key, &recalling("Tell me when it closes.")).await), "near");

    // A full window, a spent month: the call would be refused.
    for ceilings in [json!({"calls_per_hour": 1}), json!({"requests_per_minute": 1}), json!({"tokens_per_minute": 60}), json!({})] {
        let key = stack.key_with(near(json!({})), json!({"ceilings": ceilings})).await;
        let _ = asked(&stack, &key, "one").await;
        let before = stack.closed_books(&key, 2).await;
        if ceilings == json!({}) {
            let _ = stack.admin().patch(&format!("/projects/{}", key.project), &json!({"monthly_cap_usd": "0.000001"})).await.expect(200);
        }
        let embeddings = stack.mocks.third.calls("embed");
        let _ = stack.chat(&key, &chat("m1", "another")).await.expect(429);
        assert_eq!(stack.mocks.third.calls("embed"), embeddings, "{ceilings}");
        assert_eq!(stack.books(&key).await, before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vector_that_fails_or_comes_too_late_costs_nothing_and_keeps_nobody() {
    let stack = stack_with("breaker: {consecutive_failures: 100, min_requests: 1000}").await;
    let key = stack.key_with(near(json!({})), json!({})).await;
    let failures = [
        Behaviour::status(500),
        Behaviour::status(400),
        Behaviour::html(),
        Behaviour::empty(),
        Behaviour::raw(200, "application/json", r#"{"data":[{"embedding":[0,0,0]}]}"#),
        Behaviour::reset(),
        Behaviour::hang(),
        Behaviour::status(429),
    ];
    let count = failures.len();
    for (number, failure) in failures.into_iter().enumerate() {
        stack.mocks.third.next("embed", [failure]);
        let _ = asked(&stack, &key, &format!("question of letter {}", char::from(b'a' + number as u8))).await;
    }
    let books = stack.closed_books(&key, count).await;
    assert!(books.ledger.iter().all(|record| record["endpoint"] == "chat"), "{:?}", books.ledger);
    vectors(&stack, &key, 0).await;

    // A call that is refused after its vector was made: the last slot went to another meanwhile.
    let key = stack.key_with(near(json!({})), json!({"ceilings": {"calls_per_hour": 1}})).await;
    eventually("the provider is asked again after its rest", BOUND, || async {
        let probe = stack.key_with(near(json!({})), json!({})).await;
        let before = stack.mocks.third.calls("embed");
        let _ = asked(&stack, &probe, "probe").await;
        stack.mocks.third.calls("embed") > before
    })
    .await;
    let before = stack.mocks.third.calls("embed");
    let gate = stack.mocks.third.gate();
    let slow = stack.envoys[0].spawn(Call::chat(&key, &chat("m1", "slow")));
    eventually("its vector is being made", BOUND, || async { stack.mocks.third.calls("embed") > before }).await;
    let quick = stack.call(&Call::chat(&key, &chat("m1", "quick")).header("x-proxium-cache", "bypass")).await.expect(200);
    gate.open();
    let _ = slow.await.unwrap().unwrap().expect(429);
    stack.settled(&key.project, &quick).await;
    let books = stack.closed_books(&key, 1).await;
    assert!(books.ledger.iter().all(|record| record["endpoint"] == "chat"), "{:?}", books.ledger);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_answer_is_purged_a_charged_one_is_charged_and_the_threshold_is_kept() {
    let stack = stack().await;
    let key = stack.key_with(near(json!({"cached_answer_charge": 0.25})), json!({})).await;
    let purge = async |query: &str| {
        let _ = stack.admin().delete(&format!("/projects/{}/cache{query}", key.project)).await.expect(204);
    };
    let first = asked(&stack, &key, "Why is the sky blue?").await;
    vectors(&stack, &key, 1).await;
    let paid: f64 = first.header("x-proxium-cost-usd").unwrap().parse().unwrap();
    let charged = asked(&stack, &key, "Please explain why the sky is blue.").await;
    assert_eq!(label(&charged), "near");
    let cost: f64 = charged.header("x-proxium-cost-usd").unwrap().parse().unwrap();
    assert!((cost - paid / 4.0).abs() < 1e-9, "{cost} {paid}");

    for query in [format!("?request_id={}", charged.header("x-proxium-cached-request-id").unwrap()), "?model=m1".to_owned(), String::new()]
    {
        purge(&query).await;
        assert_eq!(label(&asked(&stack, &key, "Tell me why the sky is blue.").await), "miss", "{query}");
        // The dead vector is gone, the new one is there.
        vectors(&stack, &key, 1).await;
        assert_eq!(label(&asked(&stack, &key, "Could you explain why the sky is blue?").await), "near");
    }
    let redis = stack.redis_client().await;
    let member: Vec<String> = redis.zrange(name::vectors(&key.project), 0, -1, None, false, None, false).await.unwrap();
    let set = name::vector_set(&key.project, member[0].split_once('|').unwrap().0);
    let command = |name: &'static str| CustomCommand::new_static(name, ClusterHash::FirstKey, false);
    let count: u64 = redis.custom(command("VCARD"), vec![set.as_str()]).await.unwrap();
    let ttl: i64 = redis.ttl(&set).await.unwrap();
    assert_eq!((count, (1..=3_600).contains(&ttl)), (1, true));

    // cos = 0.8: 0.81 is too much, 0.79 is not.
    for (threshold, wanted) in [(0.81, "miss"), (0.79, "near")] {
        let key = stack.key_with(json!({"cache": {"near": {"enabled": true, "threshold": threshold}}}), json!({})).await;
        stack.mocks.third.always("embed", vector(&[1.0, 0.0]));
        let _ = asked(&stack, &key, "Why is the sky blue?").await;
        vectors(&stack, &key, 1).await;
        stack.mocks.third.always("embed", vector(&[0.8, 0.6]));
        let answer = asked(&stack, &key, "Tell me why the sky is blue.").await;
        assert_eq!((label(&answer), answer.header("x-proxium-similarity")), (wanted, (wanted == "near").then_some("0.800000")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_vector_sets_near_matches_are_off_with_one_warning_and_all_else_works() {
    // As with a Redis before version 8, there are no such commands for the control plane.
    let stack = stack_on("", &["--user", "default", "on", "nopass", "~*", "&*", "+@all", "-vadd", "-vsim"]).await;
    let key = stack.key_with(near(json!({"memory": true, "monthly_cap_usd": "1"})), json!({"ceilings": {"calls_per_hour": 6}})).await;
    let ready = stack.admin().send(&Call::new("GET", "/readyz")).await.expect(200).json();
    let warnings: Vec<&str> = ready["warnings"].as_array().unwrap().iter().map(|warning| warning.as_str().unwrap()).collect();
    assert!(warnings.len() == 1 && warnings[0].starts_with("near matches are off"), "{warnings:?}");

    let questions = ["How do I reset my password?", "Please tell me how I can reset my password."];
    for question in questions {
        assert_eq!(label(&asked(&stack, &key, question).await), "miss");
    }
    for question in questions {
        assert_eq!(label(&asked(&stack, &key, question).await), "hit");
    }
    // Memories are taken newest first, and money is counted and bounded.
    let memories = format!("/projects/{}/memories", key.project);
    for number in 0..9 {
        let text = format!("{number} {}", "x".repeat(497));
        let _ = stack.admin().post(&memories, &json!({"text": text})).await.expect(201);
    }
    let recalling = |text: &str| Call::chat(&key, &chat("m1", text)).header("x-proxium-memory", "recall");
    for (number, wanted) in [(0, 200), (1, 200), (2, 200), (3, 200), (4, 429)] {
        let answer = stack.call(&recalling(&format!("number {number}"))).await.expect(wanted);
        assert_eq!(answer.header("x-proxium-memories"), (wanted == 200).then_some("5"));
    }
    let books = stack.closed_books(&key, 8).await;
    assert_eq!((books.calls, books.count("hit"), made(&stack)), (6, 2, (0, 6)), "no vector is bought");
    let log = stack.control_planes[0].process().log();
    assert_eq!(log.matches("near matches are off").count(), 1, "{log}");
}
