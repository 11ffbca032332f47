//! Every way proxium says no: status, code, headers, shape; and that it recovers by itself.

// Helpers of tests: a panic is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use proxium::mock_provider::{ANY, Behaviour};
use proxium_e2e::{BOUND, Call, Key, Response, Stack, chat, eventually};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

/// Asserts an OpenAI error with all that clients of it look at, and gives `error` out.
#[track_caller]
fn refused(answer: &Response, status: u16, code: &str, param: Value) -> Value {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert!(answer.header("x-proxium-request-id").is_some_and(|id| id.starts_with("req_")), "{:?}", answer.headers);
    for name in ["x-proxium-cache", "x-proxium-cost-usd", "x-proxium-model"] {
        assert_eq!(answer.header(name), None, "{name} is of answers");
    }
    let body = answer.json();
    let error = &body["error"];
    assert_eq!((&error["code"], &error["param"]), (&json!(code), &param), "{body}");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()) && error["type"].is_string(), "{body}");
    error.clone()
}

fn number(answer: &Response, name: &str) -> u64 {
    let text = answer.header(name).unwrap_or_else(|| panic!("no {name}: {:?}", answer.headers));
    text.trim_end_matches('s').parse().unwrap_or_else(|_| panic!("{name}: {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_429_and_says_which_and_when_to_come_back() {
    let stack = Stack::start().await;
    for (limit, at_most) in [("calls_per_hour", 3_660), ("requests_per_minute", 61)] {
        let key = stack.key_with(json!({}), json!({"ceilings": {limit: 1}})).await;
        let first = stack.chat(&key, &chat("m1", "one")).await.expect(200);
        assert_eq!((number(&first, "x-ratelimit-limit-requests"), number(&first, "x-ratelimit-remaining-requests")), (1, 0));
        let answer = stack.chat(&key, &chat("m1", "two")).await;
        let error = refused(&answer, 429, "tenant_capped", json!(limit));
        assert_eq!(error["type"], json!("rate_limit_error"));
        assert!((1..=at_most).contains(&number(&answer, "retry-after")), "{:?}", answer.headers);
        assert_eq!((number(&answer, "x-ratelimit-limit-requests"), number(&answer, "x-ratelimit-remaining-requests")), (1, 0));
        assert!(answer.header("x-ratelimit-reset-requests").is_some_and(|reset| reset.ends_with('s')));
        assert!((1..=at_most).contains(&number(&answer, "x-ratelimit-reset-requests")));
        assert_eq!(answer.header("x-ratelimit-limit-tokens"), None, "there is no such ceiling");
    }

    let key = stack.key_with(json!({}), json!({"ceilings": {"tokens_per_minute": 2000}})).await;
    let first = stack.chat(&key, &chat("m1", "one")).await.expect(200);
    assert_eq!(number(&first, "x-ratelimit-limit-tokens"), 2000);
    assert_eq!(first.header("x-ratelimit-limit-requests"), None, "there is no such ceiling");
    stack.settled(&key.project, &first).await;
    // What a model of 1000 output tokens and n = 2 could come to does not fit beside what was used.
    let answer = stack.chat(&key, &json!({"model": "m1", "n": 2, "messages": [{"role": "user", "content": "two"}]})).await;
    let _ = refused(&answer, 429, "tenant_capped", json!("tokens_per_minute"));
    assert!((1..=61).contains(&number(&answer, "retry-after")));
    assert!(number(&answer, "x-ratelimit-remaining-tokens") > 1900, "actual use replaced the hold: {:?}", answer.headers);

    let capped = stack.key_with(json!({"monthly_cap_usd": "0.001"}), json!({})).await;
    let answer = stack.chat(&capped, &chat("m1", "hi")).await;
    let _ = refused(&answer, 429, "tenant_capped", json!("monthly_cap"));
    assert_eq!(answer.header("retry-after"), None, "this call never fits");
    let nearly = stack.key_with(json!({"monthly_cap_usd": "0.0101"}), json!({})).await;
    let _ = stack.chat(&nearly, &chat("m1", "one")).await.expect(200);
    let closing = |text: &str| json!({"model": "m1", "max_tokens": 1000, "messages": [{"role": "user", "content": text}]});
    let answer = eventually("the cap is reached", BOUND, || async {
        Some(stack.chat(&nearly, &closing(&format!("{:?}", std::time::Instant::now()))).await).filter(|answer| answer.status != 200)
    });
    let answer = answer.await;
    let _ = refused(&answer, 429, "tenant_capped", json!("monthly_cap"));
    assert!(number(&answer, "retry-after") <= 31 * 86_400);

    let key = stack.key().await;
    let path = format!("/projects/{}/senders/app", key.project);
    let _ = stack.admin().put(&path, &json!({"ceilings": {"requests_per_minute": 1}})).await.expect(200);
    let from = |source: &str, text: &str| Call::chat(&key, &chat("m1", text)).header("x-proxium-source", source);
    let _ = stack.call(&from("app", "one")).await.expect(200);
    let _ = refused(&stack.call(&from("app", "two")).await, 429, "source_capped", json!("requests_per_minute"));
    let _ = stack.call(&from("another", "two")).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_no_provider_can_answer_the_status_says_why_and_the_message_what_was_tried() {
    let stack = Stack::builder().and_catalog("breaker: {consecutive_failures: 2, cooldown: 60s}").start().await;
    // Each with a credential of its own, so that neither rests nor breakers of one case are seen by the next.
    let key = || async {
        let key = stack.key_with(json!({}), json!({"ceilings": {"requests_per_minute": 100}})).await;
        for provider in ["first", "second", "third"] {
            let path = format!("/projects/{}/credentials/{provider}", key.project);
            let _ = stack.admin().put(&path, &json!({"secret": format!("own-credential-{provider}")})).await.expect(204);
        }
        key
    };
    let script = |first: Behaviour, second: Behaviour| {
        stack.mocks.first.always(ANY, first);
        stack.mocks.second.always(ANY, second);
    };
    let message = |error: Value, parts: &[&str]| {
        let message = error["message"].as_str().unwrap().to_owned();
        for part in parts {
            assert!(message.contains(part), "{part} in {message}");
        }
        assert!(!message.contains("credential"), "{message}");
    };

    let limited = key().await;
    script(Behaviour::status(429).header("retry-after", "40"), Behaviour::status(429).header("retry-after", "20"));
    let answer = stack.chat(&limited, &chat("fast", "hi")).await;
    message(refused(&answer, 429, "providers_failed", json!(null)), &["m1: status_429", "m2: status_429"]);
    assert!((19..=20).contains(&number(&answer, "retry-after")), "the smallest of the two: {:?}", answer.headers);
    assert_eq!(number(&answer, "x-ratelimit-remaining-requests"), 99, "as it stood at the admission");
    let answer = stack.chat(&limited, &chat("fast", "hi")).await;
    message(refused(&answer, 503, "providers_failed", json!(null)), &["m1: resting", "m2: resting"]);
    assert!((1..=20).contains(&number(&answer, "retry-after")));

    let failing = key().await;
    script(Behaviour::status(500), Behaviour::reset());
    let answer = stack.chat(&failing, &chat("fast", "hi")).await;
    message(refused(&answer, 502, "providers_failed", json!(null)), &["m1: status_500", "m2: "]);
    assert_eq!(answer.header("retry-after"), None);
    let _ = stack.chat(&failing, &chat("fast", "hi")).await.expect(502);
    let answer = stack.chat(&failing, &chat("fast", "hi")).await;
    message(refused(&answer, 503, "providers_failed", json!(null)), &["m1: breaker_open", "m2: breaker_open"]);
    assert!((1..=60).contains(&number(&answer, "retry-after")));

    let mixed = key().await;
    script(Behaviour::status(429), Behaviour::status(401));
    let answer = stack.chat(&mixed, &chat("fast", "hi")).await;
    message(refused(&answer, 502, "providers_failed", json!(null)), &["m1: status_429", "m2: status_401"]);

    let late = key().await;
    script(Behaviour::hang(), Behaviour::hang());
    let answer = stack.call(&Call::chat(&late, &chat("fast", "hi")).header("x-proxium-timeout-ms", "700")).await;
    message(refused(&answer, 502, "deadline_exceeded", json!(null)), &["x-proxium-timeout-ms"]);
    for key in [&limited, &failing, &mixed] {
        eventually("nothing is held and nothing spent", BOUND, || async {
            let state = stack.state(&key.project).await;
            if state["held"] == "0" && state["spend"] == "0" { Ok(()) } else { Err(state) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_names_the_member_or_header_at_fault() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 5}})).await;
    let message = json!([{"role": "user", "content": "hi"}]);
    for (body, param) in [
        (json!({"messages": message}), "model"),
        (json!({"model": 7, "messages": message}), "model"),
        (json!({"model": "", "messages": message}), "model"),
        (json!({"model": "m1"}), "messages"),
        (json!({"model": "m1", "messages": "hi"}), "messages"),
        (json!({"model": "m1", "messages": []}), "messages"),
        (json!({"model": "m1", "messages": [null]}), "messages"),
        (json!({"model": "m1", "messages": message, "n": 0}), "n"),
        (json!({"model": "m1", "messages": message, "max_tokens": -1}), "max_tokens"),
        (json!({"model": "m1", "messages": message, "stream": "yes"}), "stream"),
    ] {
        let error = refused(&stack.chat(&key, &body).await, 400, "invalid_request", json!(param));
        assert_eq!(error["type"], json!("invalid_request_error"));
    }
    for (name, value) in [
        ("x-proxium-timeout-ms", "0"),
        ("x-proxium-timeout-ms", "-1"),
        ("x-proxium-timeout-ms", "1e3"),
        ("x-proxium-timeout-ms", "1.5"),
        ("x-proxium-cache", "on"),
        ("x-proxium-source", "a b"),
        ("x-proxium-user", ""),
    ] {
        let answer = stack.call(&Call::chat(&key, &chat("m1", "hi")).header(name, value)).await;
        let error = refused(&answer, 400, "invalid_request", json!(name));
        assert!(error["message"].as_str().is_some_and(|message| message.contains(name)), "{error}");
    }
    assert!(stack.windows(&key).await.is_empty(), "nothing was reserved");
    assert_eq!(stack.mocks.first.calls(ANY), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_path_or_method_reaches_a_provider() {
    for other_paths in ["continue", "not_found"] {
        let stack = Stack::builder().render("--other-paths", other_paths).start().await;
        let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 0}})).await;
        let mut calls: Vec<(&str, &str)> = vec![
            ("GET", "/v1/chat/completions"),
            ("PUT", "/v1/chat/completions"),
            ("DELETE", "/v1/chat/completions"),
            ("PATCH", "/v1/chat/completions"),
            ("OPTIONS", "/v1/chat/completions"),
            ("GET", "/"),
            ("GET", "/healthz"),
        ];
        calls.extend(
            [
                "/v1/embeddings/x",
                "/v1/responses/resp_1",
                "/v1/completions",
                "/v1/files",
                "/v1/audio/speech",
                "/v1/chat/completions/",
                "/v1/chat/completions/x",
                "/v1//chat/completions",
                "/V1/chat/completions",
                "/chat/completions",
                "/v1/chat%2Fcompletions",
                "/v1/anything/else?model=m1",
                "//127.0.0.1/v1/chat/completions",
            ]
            .map(|path| ("POST", path)),
        );
        for (method, path) in calls {
            let call = Call::new(method, path).header("authorization", &format!("Bearer {}", key.text)).json(&chat("m1", "hi"));
            let answer = stack.call(&call).await;
            assert_eq!(answer.status, 404, "{other_paths}: {method} {path}: {}", answer.text());
            assert_eq!(answer.code(), "not_found", "{other_paths}: {method} {path}");
            // Left alone, or answered by the filter.
            assert_eq!(answer.header("x-proxium-request-id").is_some(), other_paths == "not_found", "{method} {path}");
        }
        for mock in [&stack.mocks.first, &stack.mocks.second, &stack.mocks.third] {
            assert_eq!((mock.calls(ANY), mock.accepted_connections()), (0, 0));
        }
        // The one way in is measured: a ceiling of 0.
        let _ = refused(&stack.chat(&key, &chat("m1", "hi")).await, 429, "tenant_capped", json!("calls_per_hour"));
    }
}

async fn fails_then_works(what: &str, stack: &Stack, key: &Key, status: u16) -> Response {
    eventually(what, BOUND, || async {
        let call = Call::chat(key, &chat("m1", "hi")).header("x-proxium-cache", "bypass");
        let answer = stack.call(&call).await;
        if answer.status == status { Ok(answer) } else { Err(format!("{} {}", answer.status, answer.text())) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_control_plane_or_redis_calls_are_503_and_recover_by_themselves() {
    let mut stack = Stack::start().await;
    let key = stack.key().await;
    let cold = stack.key().await;
    let _ = fails_then_works("a warm key", &stack, &key, 200).await;

    stack.control_planes[0].kill();
    let provider_calls = stack.mocks.first.calls(ANY);
    for key in [&key, &cold] {
        let answer = stack.chat(key, &chat("m1", "hi")).await;
        let _ = refused(&answer, 503, "control_plane_unavailable", json!(null));
        assert!(number(&answer, "retry-after") >= 1);
    }
    // A call without a key needs nobody to be refused.
    assert_eq!(stack.call(&Call::new("POST", "/v1/chat/completions")).await.code(), "missing_key");
    stack.control_planes[0].restart().await;
    let _ = fails_then_works("calls are served again", &stack, &key, 200).await;

    stack.redis.kill();
    for key in [&key, &cold] {
        let _ = refused(&stack.chat(key, &chat("m1", "hi")).await, 503, "control_plane_unavailable", json!(null));
    }
    assert_eq!(stack.mocks.first.calls(ANY), provider_calls + 1, "no call was made unmeasured");
    stack.redis.resume_service().await;
    let _ = fails_then_works("calls are served again", &stack, &key, 200).await;
    let _ = fails_then_works("the cold key is known", &stack, &cold, 200).await;
    eventually("what was given up holds nothing", BOUND, || async {
        let state = stack.state(&key.project).await;
        if state["held"] == "0" { Ok(()) } else { Err(state) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn allow_serves_a_known_key_without_the_control_plane_and_settles_when_it_is_back() {
    let mut stack = Stack::builder().render("--on-control-plane-failure", "allow").concurrency(1).start().await;
    let key = stack.key_with(json!({"cache": {"exact": false}}), json!({"ceilings": {"calls_per_hour": 100}})).await;
    let (cold, revoked) = (stack.key().await, stack.key().await);
    let first = stack.chat(&key, &chat("m1", "one")).await.expect(200);
    stack.settled(&key.project, &first).await;
    let _ = stack.chat(&revoked, &chat("m1", "one")).await.expect(200);
    let _ = stack.admin().patch(&format!("/projects/{}/keys/{}", revoked.project, revoked.id), &json!({"revoked": true})).await.expect(200);
    let _ = fails_then_works("the revocation is known", &stack, &revoked, 401).await;

    stack.control_planes[0].kill();
    let mut served = Vec::new();
    for text in ["two", "three"] {
        let answer = stack.chat(&key, &chat("m1", text)).await.expect(200);
        assert_eq!((answer.header("x-proxium-model"), answer.header("x-proxium-cost-usd")), (Some("m1"), Some("0.000031")));
        assert_eq!(answer.header("x-ratelimit-limit-requests"), None, "nobody knows where the ceilings stand");
        served.push(answer);
    }
    // Nothing is known of this key, and the other is known to be no more.
    let _ = refused(&stack.chat(&cold, &chat("m1", "hi")).await, 503, "control_plane_unavailable", json!(null));
    assert_ne!(stack.chat(&revoked, &chat("m1", "hi")).await.status, 200);

    stack.control_planes[0].restart().await;
    for answer in &served {
        stack.settled(&key.project, answer).await;
    }
    let ledger = stack.ledger(&key.project).await;
    assert_eq!(ledger.len(), 3, "each once: {ledger:?}");
    let sum = |field: &str| ledger.iter().map(|record| record[field].parse::<u64>().unwrap()).sum::<u64>();
    assert_eq!(stack.state(&key.project).await["spend"], sum("cost_nano_usd").to_string());
    let windows = stack.windows(&key).await;
    assert_eq!((windows["c_sum"].as_str(), windows["t_sum"].parse::<u64>().unwrap()), ("3", sum("tokens")));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_bodies_than_the_filter_may_hold_are_503_and_the_next_call_is_served() {
    let stack = Stack::builder().concurrency(1).and_catalog("limits: {max_body: 64MiB}").start().await;
    let key = stack.key().await;
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {}\r\ncontent-length: 60000000\r\n\r\n", key.text);
    let mut open = Vec::new();
    let mib = vec![b' '; 1 << 20];
    for _ in 0..3 {
        let mut socket = stack.envoys[0].connect().await;
        socket.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..57 {
            socket.write_all(&mib).await.unwrap();
        }
        open.push(socket);
    }
    // Envoy has read them when a body of half a limit no longer fits: 384 MiB for all bodies, each counted twice.
    let large = Call::chat(&key, &json!({})).body(vec![b' '; 40 << 20]);
    let answer = eventually("the budget is used up", BOUND, || async {
        stack.envoys[0].try_call(&large).await.ok().filter(|answer| answer.status == 503)
    });
    let answer = answer.await;
    let _ = refused(&answer, 503, "overloaded", json!(null));
    assert!(number(&answer, "retry-after") >= 1);
    // A small call still fits, and when the large ones are gone a large one does.
    let _ = stack.chat(&key, &chat("m1", "hi")).await.expect(200);
    drop(open);
    eventually("the budget is free again", BOUND, || async {
        stack.envoys[0].try_call(&large).await.ok().filter(|answer| answer.status == 400)
    })
    .await;
    assert!(stack.state(&key.project).await["held"] == "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn callouts_that_break_or_come_too_late_do_no_harm_to_later_calls() {
    let mut stack = Stack::builder().concurrency(1).and_catalog("breaker: {consecutive_failures: 1000, min_requests: 10000}").start().await;
    let key = stack.key_with(json!({"cache": {"exact": false}}), json!({})).await;
    stack
        .mocks
        .first
        .next("m1", [Behaviour::reset(), Behaviour::reset_mid_body(), Behaviour::empty(), Behaviour::raw(204, "text/plain", "")]);
    for _ in 0..4 {
        let _ = stack.chat(&key, &chat("m1", "hi")).await.expect(502);
    }
    // The client leaves while the provider works, and the answer comes after that.
    let gate = stack.mocks.first.gate();
    let body = chat("m1", "bye").to_string();
    let length = body.len();
    let bytes =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {}\r\ncontent-length: {length}\r\n\r\n{body}", key.text);
    let mut open = Vec::new();
    for _ in 0..5 {
        let mut socket = stack.envoys[0].connect().await;
        socket.write_all(bytes.as_bytes()).await.unwrap();
        open.push(socket);
    }
    eventually("the provider was called", BOUND, || async { gate.waiting() == 5 }).await;
    drop(open);
    gate.open();
    let _ = fails_then_works("the worker serves", &stack, &key, 200).await;

    // The control plane is silent while it is asked, and then gone.
    stack.control_planes[0].process().pause();
    let _ = refused(&stack.chat(&key, &chat("m1", "hi")).await, 503, "control_plane_unavailable", json!(null));
    stack.control_planes[0].restart().await;
    let _ = fails_then_works("the worker serves", &stack, &key, 200).await;
    assert_no_trap(&stack).await;
}

/// No VM of Envoy was lost or reloaded.
async fn assert_no_trap(stack: &Stack) {
    let envoy = &stack.envoys[0];
    let log = envoy.process().log();
    for word in ["panicked", "RuntimeError", "wasm trap", "Function: proxy_", "VM failed", "vm_reload"] {
        assert!(!log.contains(word), "{word} in Envoy's log:\n{log}");
    }
    let stats = envoy.admin("/stats?filter=wasm").await;
    let of_envoy = |line: &&str| !line.starts_with("wasmcustom.");
    for line in stats
        .lines()
        .filter(of_envoy)
        .filter(|line| line.contains("vm_reload") || line.contains("runtime_error") || line.contains("failed"))
    {
        assert!(line.ends_with(": 0"), "{line}");
    }
}
