//! Answers that were given before: to whom, for what, for how long.

// Helpers of tests: a panic is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand};
use proxium::mock_provider::Behaviour;
use proxium_e2e::{BOUND, Call, Key, Response, Stack, chat, eventually};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn label(answer: &Response) -> &str {
    answer.header("x-proxium-cache").unwrap_or_else(|| panic!("no x-proxium-cache: {} {}", answer.status, answer.text()))
}

/// Makes a call that must be answered; a miss is waited for until it is stored, so that the next call finds it.
async fn answered(stack: &Stack, key: &Key, call: &Call) -> Response {
    let answer = stack.call(call).await.expect(200);
    if label(&answer) == "miss" {
        stack.kept(&key.project, &answer).await;
    }
    answer
}

async fn asked(stack: &Stack, key: &Key, body: &Value) -> String {
    label(&answered(stack, key, &Call::chat(key, body)).await).to_owned()
}

/// The exact keys under which answers of a project are stored, hexadecimal.
async fn stored(stack: &Stack, project: &str) -> Vec<String> {
    let members: Vec<String> =
        stack.redis_client().await.zrange(proxium::store::name::answers(project), 0, -1, None, false, None, false).await.unwrap();
    members.iter().map(|member| member.split('|').next().unwrap().to_owned()).collect()
}

/// A stack whose filters keep no answers: what is gone from Redis is gone at once. Those that do are in `l1.rs`.
async fn of_redis_alone() -> Stack {
    Stack::builder().render("--l1-mib", "0").start().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capped_key_still_gets_an_exact_hit_and_it_takes_nothing() {
    let stack = Stack::start().await;
    let (known, new) = (chat("m1", "known"), chat("m1", "new"));
    for ceilings in [json!({"calls_per_hour": 1}), json!({"requests_per_minute": 1}), json!({"tokens_per_minute": 1})] {
        let key = stack.key_with(json!({}), json!({"ceilings": ceilings})).await;
        let first = answered(&stack, &key, &Call::chat(&key, &known)).await;
        let _ = stack.chat(&key, &new).await.expect(429);
        let (windows, state) = (stack.windows(&key).await, stack.state(&key.project).await);
        let hit = stack.chat(&key, &known).await.expect(200);
        assert_eq!((label(&hit), hit.header("x-proxium-cost-usd"), hit.header("x-proxium-attempts")), ("hit", Some("0"), Some("0")));
        assert_eq!((&hit.body, hit.header("content-type")), (&first.body, Some("application/json")));
        assert_eq!((stack.windows(&key).await, stack.state(&key.project).await), (windows, state));
        let hits = eventually("the hit is in the ledger", BOUND, || async {
            Some(stack.ledger(&key.project).await).filter(|ledger| ledger.iter().any(|record| record["kind"] == "hit"))
        });
        let hit = hits.await.pop().unwrap();
        assert_eq!((hit["cost_nano_usd"].as_str(), hit["calls"].as_str(), hit["cached"].as_str()), ("0", "0", "1"));
    }
    assert_eq!(stack.mocks.first.calls("m1"), 3);

    // A project whose cap is spent, and a ceiling of 0.
    let key = stack.key().await;
    assert_eq!(asked(&stack, &key, &known).await, "miss");
    let _ = stack.admin().patch(&format!("/projects/{}", key.project), &json!({"monthly_cap_usd": "0.000001"})).await.expect(200);
    let closed = stack.admin().key_of(&key.project, json!({"ceilings": {"calls_per_hour": 0}})).await;
    for key in [&key, &closed] {
        let _ = stack.chat(key, &new).await.expect(429);
        assert_eq!(asked(&stack, key, &known).await, "hit");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_are_a_projects_own_and_no_header_tells_a_key_or_a_hash() {
    let stack = Stack::start().await;
    let (one, other) = (stack.key().await, stack.key().await);
    let sibling = stack.admin().key_of(&one.project, json!({})).await;
    let body = chat("m1", "the same");
    let mut answers = Vec::new();
    for (key, wanted) in [(&one, "miss"), (&other, "miss"), (&one, "hit"), (&sibling, "hit"), (&other, "hit")] {
        let answer = answered(&stack, key, &Call::chat(key, &body)).await;
        assert_eq!(label(&answer), wanted);
        answers.push(answer);
    }
    assert_eq!(stack.mocks.first.calls("m1"), 2);
    let mut secret = [stored(&stack, &one.project).await, stored(&stack, &other.project).await].concat();
    assert_eq!(secret.len(), 2);
    assert_ne!(secret[0], secret[1]);
    for key in [&one, &other, &sibling] {
        secret.extend([key.text.clone(), key.id.clone(), key.project.clone(), hex::encode(Sha256::digest(&key.text))]);
    }
    secret.push("platform-credential".into());
    for answer in answers {
        let shown = format!("{:?}{}", answer.headers, answer.text()).to_lowercase();
        for secret in &secret {
            assert!(!shown.contains(&secret.to_lowercase()), "{secret} in {shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_can_change_an_answer_makes_another_entry() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    let plain = json!({"model": "m1", "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(asked(&stack, &key, &plain).await, "miss");
    let with = |name: &str, value: Value| {
        let mut body = plain.clone();
        body[name] = value;
        body
    };
    let tool = |name: &str| json!([{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}]);
    let different = [
        with("num_ctx", json!(2048)),
        with("num_ctx", json!(8192)),
        with("response_format", json!({"type": "json_object"})),
        with("stop", json!(["x"])),
        with("stop", json!("x")),
        with("seed", json!(1)),
        with("seed", json!(9_007_199_254_740_993_u64)),
        with("seed", json!(9_007_199_254_740_992_u64)),
        with("n", json!(2)),
        with("temperature", json!(0.1)),
        with("max_tokens", json!(9)),
        with("max_completion_tokens", json!(9)),
        with("tools", tool("a")),
        with("tools", tool("b")),
        with("tool_choice", json!("none")),
        with("thinking", json!({"type": "enabled"})),
        with("reasoning_effort", json!("low")),
        with("somebodys_extension", json!({"a": [1, 2]})),
        with("somebodys_extension", json!({"a": [2, 1]})),
        with("messages", json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}])),
        with(
            "messages",
            json!([{"role": "user", "content": "before"}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "hi"}]),
        ),
        with("messages", json!([{"role": "user", "content": "hi "}])),
    ];
    for (number, body) in different.iter().enumerate() {
        assert_eq!(asked(&stack, &key, body).await, "miss", "{number}: {body}");
    }
    let chat_call = || Call::chat(&key, &plain);
    let query = |query: &str| Call::new("POST", &format!("/v1/chat/completions?{query}")).header("x-api-key", &key.text).json(&plain);
    for call in [
        chat_call().header("openai-beta", "a=v1"),
        chat_call().header("openai-beta", "a=v2"),
        query("api-version=1"),
        query("api-version=2"),
    ] {
        assert_eq!(label(&answered(&stack, &key, &call).await), "miss", "{call:?}");
    }
    let provider_calls = stack.mocks.first.calls("m1");
    assert_eq!(provider_calls, 1 + different.len() + 4);

    // What does not change an answer makes none: who asks, spaces, the order of members, a stream that is not wanted.
    for body in [
        r#"{"messages":[{"content":"hi","role":"user"}],"model":"m1"}"#,
        "{ \"model\" : \"m1\",\n\t\"messages\": [ {\"role\":\"user\",\"content\":\"hi\"} ] }\r\n",
        r#"{"model":"m1","messages":[{"role":"user","content":"hi"}],"stream":false,"user":"jane","metadata":{"a":"b"},"stream_options":null}"#,
    ] {
        let call = Call::new("POST", "/v1/chat/completions").header("x-api-key", &key.text).header("user-agent", "other").body(body);
        assert_eq!(label(&stack.call(&call).await.expect(200)), "hit", "{body}");
    }
    for body in &different {
        assert_eq!(asked(&stack, &key, body).await, "hit", "{body}");
    }
    assert_eq!(stack.mocks.first.calls("m1"), provider_calls);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_bytes_hit_on_every_envoy_and_after_a_restart() {
    let mut stack = Stack::builder().envoys(2).start().await;
    let key = stack.key().await;
    let members: Vec<String> = (0..60).map(|number| format!("\"property_{}\":{{\"type\":\"string\"}}", (number * 37) % 60)).collect();
    let body = format!(
        r#"{{"model":"m1","messages":[{{"role":"user","content":"ünïcode \ud83e\udd80 \u0041"}}],"tools":[{{"type":"function","function":{{"name":"f","parameters":{{"type":"object","properties":{{{}}}}}}}}}]}}"#,
        members.join(",")
    );
    let call = Call::new("POST", "/v1/chat/completions").header("x-api-key", &key.text).body(body);
    assert_eq!(label(&answered(&stack, &key, &call).await), "miss");
    for envoy in &stack.envoys {
        for _ in 0..4 {
            assert_eq!(label(&envoy.call(&call).await.expect(200)), "hit");
        }
    }
    stack.restart_envoy(0).await;
    stack.control_planes[0].restart().await;
    let hit = eventually("an answer", BOUND, || async { Some(stack.call(&call).await).filter(|answer| answer.status == 200) }).await;
    assert_eq!(label(&hit), "hit");
    assert_eq!(stack.mocks.first.calls("m1"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_whole_answer_with_a_natural_end_is_kept() {
    let stack = Stack::builder().and_catalog("breaker: {consecutive_failures: 1000, min_requests: 10000}").start().await;
    let key = stack.key().await;
    let error = r#"{"error":{"message":"no","type":"x","param":null,"code":null}}"#;
    let with_length =
        r#"{"choices":[{"finish_reason":"stop","message":{"content":"a"}},{"finish_reason":"length","message":{"content":"b"}}]}"#;
    let not_kept = [
        ("400", Behaviour::raw(400, "application/json", error), 400),
        ("413", Behaviour::status(413), 413),
        ("422", Behaviour::status(422), 422),
        ("404", Behaviour::status(404), 404),
        ("500", Behaviour::status(500), 502),
        ("502", Behaviour::status(502), 502),
        ("429", Behaviour::status(429).header("retry-after", "0"), 429),
        ("an error in a 200", Behaviour::error_in_200(), 502),
        ("an empty body", Behaviour::empty(), 502),
        ("a page", Behaviour::html(), 502),
        ("half a body", Behaviour::reset_mid_body(), 502),
        ("length", Behaviour::answer().finish("length"), 200),
        ("content_filter", Behaviour::answer().finish("content_filter"), 200),
        ("one of two choices cut", Behaviour::raw(200, "application/json", with_length), 200),
        ("an unknown end", Behaviour::answer().finish("tired"), 200),
        ("more than 2 MiB", Behaviour::huge((2 << 20) + 1), 200),
    ];
    for (what, behaviour, status) in not_kept {
        let body = chat("m1", what);
        stack.mocks.first.next("m1", [behaviour]);
        let answer = stack.chat(&key, &body).await;
        assert_eq!(answer.status, status, "{what}: {}", answer.text());
        if status == 200 {
            stack.settled(&key.project, &answer).await;
        }
        let again = eventually("the provider answers", BOUND, || async {
            Some(stack.chat(&key, &body).await).filter(|answer| answer.status == 200)
        });
        let again = again.await;
        assert_eq!(label(&again), "miss", "{what}");
        stack.kept(&key.project, &again).await;
        assert_eq!(asked(&stack, &key, &body).await, "hit", "{what}: the good answer is kept");
    }
    let tool_calls = r#"{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"t1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
    stack.mocks.first.next("m1", [Behaviour::raw(200, "application/json", tool_calls)]);
    let body = chat("m1", "call a tool");
    for wanted in ["miss", "hit"] {
        let answer = answered(&stack, &key, &Call::chat(&key, &body)).await;
        assert_eq!((label(&answer), answer.text().as_str()), (wanted, tool_calls));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_kept_for_the_model_that_gave_it() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    stack.mocks.first.next("m1", [Behaviour::status(500)]);
    let answer = answered(&stack, &key, &Call::chat(&key, &chat("fast", "hi"))).await;
    assert_eq!((label(&answer), answer.header("x-proxium-model")), ("miss", Some("m2")));
    let of_m2 = stack.chat(&key, &chat("m2", "hi")).await.expect(200);
    assert_eq!((label(&of_m2), of_m2.header("x-proxium-model"), &of_m2.body), ("hit", Some("m2"), &answer.body));
    // The chain begins with m1, which has given no answer yet.
    let of_m1 = answered(&stack, &key, &Call::chat(&key, &chat("fast", "hi"))).await;
    assert_eq!((label(&of_m1), of_m1.header("x-proxium-model")), ("miss", Some("m1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_kept_even_if_recording_it_takes_longer_than_its_client_waits() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    let gate = stack.mocks.first.gate();
    let call = Call::chat(&key, &chat("m1", "hi"));
    let slow_redis = async {
        eventually("the provider has the call", BOUND, || async { gate.waiting() == 1 }).await;
        let pause = CustomCommand::new_static("CLIENT", ClusterHash::FirstKey, false);
        let () = stack.redis_client().await.custom(pause, vec!["PAUSE", "500", "WRITE"]).await.unwrap();
        gate.open();
    };
    let (answer, ()) = tokio::join!(stack.call(&call), slow_redis);
    stack.kept(&key.project, &answer.expect(200)).await;
    assert_eq!(asked(&stack, &key, &chat("m1", "hi")).await, "hit");
    assert_eq!(stack.ledger(&key.project).await.iter().filter(|record| record["kind"] == "call").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_may_pass_by_the_cache_or_renew_an_entry() {
    let stack = of_redis_alone().await;
    let key = stack.key().await;
    let body = chat("m1", "hi");
    let with = |mode: &str| Call::chat(&key, &body).header("x-proxium-cache", mode);
    let text = |answer: &Response| answer.json().pointer("/choices/0/message/content").unwrap().as_str().unwrap().to_owned();
    stack.mocks.first.next("m1", ["one", "two", "three", "four"].map(|text| Behaviour::answer().text(text)));
    let bypass = stack.call(&with("bypass")).await.expect(200);
    assert_eq!((label(&bypass), text(&bypass).as_str()), ("bypass", "one"));
    let miss = answered(&stack, &key, &Call::chat(&key, &body)).await;
    assert_eq!((label(&miss), text(&miss).as_str()), ("miss", "two"), "a bypass keeps nothing");
    let bypass = stack.call(&with("bypass")).await.expect(200);
    assert_eq!((label(&bypass), text(&bypass).as_str()), ("bypass", "three"), "a bypass reads nothing");
    assert_eq!(text(&answered(&stack, &key, &Call::chat(&key, &body)).await), "two");
    let renewed = answered(&stack, &key, &with("refresh")).await;
    assert_eq!((label(&renewed), text(&renewed).as_str()), ("miss", "four"));
    let hit = answered(&stack, &key, &Call::chat(&key, &body)).await;
    assert_eq!((label(&hit), text(&hit).as_str()), ("hit", "four"));

    let off = stack.key_with(json!({"cache": {"exact": false}}), json!({})).await;
    assert_eq!(asked(&stack, &off, &body).await, "bypass");
    assert_eq!(asked(&stack, &off, &body).await, "bypass");
    assert!(stored(&stack, &off.project).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_ends_with_its_time_and_by_purge() {
    let stack = of_redis_alone().await;
    let short = stack.key_with(json!({"cache": {"ttl_s": 1}}), json!({})).await;
    assert_eq!(asked(&stack, &short, &chat("m1", "hi")).await, "miss");
    eventually("a miss again", BOUND, || async { asked(&stack, &short, &chat("m1", "hi")).await == "miss" }).await;

    let (key, other) = (stack.key().await, stack.key().await);
    let bodies = [chat("m1", "a"), chat("m1", "b"), chat("m2", "a")];
    let mut ids = Vec::new();
    for body in &bodies {
        ids.push(answered(&stack, &key, &Call::chat(&key, body)).await.header("x-proxium-request-id").unwrap().to_owned());
        assert_eq!(asked(&stack, &other, body).await, "miss");
    }
    let labels = || async {
        let mut labels = Vec::new();
        for body in &bodies {
            labels.push(asked(&stack, &key, body).await);
        }
        labels
    };
    let path = format!("/projects/{}/cache", key.project);
    let purge = |query: String| {
        let (admin, path) = (stack.admin(), format!("{path}{query}"));
        async move { drop(admin.delete(&path).await.expect(204)) }
    };
    assert_eq!(labels().await, ["hit", "hit", "hit"]);
    purge(format!("?request_id={}", ids[1])).await;
    assert_eq!(labels().await, ["hit", "miss", "hit"]);
    purge("?model=m1".into()).await;
    assert_eq!(labels().await, ["miss", "miss", "hit"]);
    purge(String::new()).await;
    assert_eq!(labels().await, ["miss", "miss", "miss"]);
    purge("?request_id=req_nobody".into()).await;
    assert_eq!(labels().await, ["hit", "hit", "hit"]);
    for body in &bodies {
        assert_eq!(asked(&stack, &other, body).await, "hit", "another project's entries stay");
    }
    for wrong in ["?key=x", "?model=", "?model=m1&request_id=x"] {
        let _ = stack.admin().delete(&format!("{path}{wrong}")).await.expect(400);
    }
}
