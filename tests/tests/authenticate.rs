//! Whose key it is, and whether it may still call: before anything else is looked at, and nothing but the key decides.

// Helpers of tests: a panic is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use jiff::{SignedDuration, Timestamp};
use proxium::mock_provider::ANY;
use proxium_e2e::{BOUND, Call, Key, Response, Stack, chat, eventually};
use serde_json::{Value, json};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
/// The specification says 2 s; two busy cores get as much again.
const SOON: Duration = Duration::from_secs(4);

/// Calls that are wrong in some other way, without a key.
fn faulty_calls() -> [(&'static str, Call); 6] {
    let call = || Call::new("POST", CHAT);
    [
        ("broken JSON", call().body("{\"model\": ")),
        ("an oversize body", call().body(vec![b' '; 100_000])),
        ("a bad control header", call().json(&chat("m1", "hi")).header("x-proxium-timeout-ms", "soon")),
        ("a control header and a body that are bad", call().body("{").header("x-proxium-cache", "off")),
        ("an unknown model", call().json(&chat("no-such-model", "hi"))),
        ("no body", call()),
    ]
}

#[track_caller]
fn assert_401(answer: &Response, code: &str, what: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (401, code), "{what}: {}", answer.text());
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{what}");
    assert_eq!(answer.header("content-type"), Some("application/json"), "{what}");
    assert!(answer.header("x-proxium-request-id").is_some_and(|id| id.starts_with("req_")), "{what}");
    assert_eq!(answer.json()["error"]["type"], json!("authentication_error"), "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_good_key_is_401_whatever_else_is_wrong_with_it() {
    let stack = Stack::builder().and_catalog("limits: {max_body: 64KiB}").start().await;
    let (one, other) = (stack.key().await, stack.key().await);
    let bearer = |key: &str| format!("Bearer {key}");
    let no_key: [&[(&str, String)]; 6] = [
        &[],
        &[("authorization", "Basic cHg6MQ==".into())],
        &[("authorization", "Bearer".into())],
        &[("authorization", one.text.clone())],
        &[("x-api-key", String::new())],
        &[("x-goog-api-key", one.text.clone()), ("cookie", format!("key={}", one.text))],
    ];
    let bad_key: [&[(&str, String)]; 4] = [
        &[("authorization", bearer("px_0123456789012345678901234567890123456789012"))],
        &[("x-api-key", "sk-of-somebody-else".into())],
        &[("authorization", bearer(&one.text)), ("x-api-key", other.text.clone())],
        &[("authorization", bearer(&one.text)), ("authorization", bearer(&other.text))],
    ];
    let all = no_key.iter().map(|headers| (headers, "missing_key")).chain(bad_key.iter().map(|headers| (headers, "invalid_key")));
    for (headers, code) in all {
        for (what, call) in faulty_calls() {
            let call = headers.iter().fold(call, |call, (name, value)| call.header(name, value));
            assert_401(&stack.call(&call).await, code, &format!("{what} with {headers:?}"));
        }
    }
    let provider_calls = stack.mocks.first.calls(ANY) + stack.mocks.second.calls(ANY) + stack.mocks.third.calls(ANY);
    assert_eq!(provider_calls, 0);

    // The same calls with the key are refused for what is wrong with them.
    for ((what, call), status) in faulty_calls().into_iter().zip([400, 413, 400, 400, 404, 400]) {
        let answer = stack.call(&call.header("authorization", &bearer(&one.text))).await;
        assert_eq!(answer.status, status, "{what}: {}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_taken_as_bearer_or_as_x_api_key_and_reaches_no_provider() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({"cache": {"exact": false}}), json!({})).await;
    let bearer = format!("Bearer {}", key.text);
    let accepted: [&[(&str, &str)]; 5] = [
        &[("authorization", &bearer)],
        &[("AUTHORIZATION", &bearer)],
        &[("x-api-key", &key.text)],
        &[("X-Api-Key", &key.text), ("Authorization", &bearer)],
        // The other places that SDKs of providers put keys in are no place for ours, and are not passed on either.
        &[("authorization", &bearer), ("x-goog-api-key", &key.text), ("api-key", &key.text), ("cookie", &key.text), ("x-auth", &key.text)],
    ];
    for headers in accepted {
        let call = Call::new("POST", CHAT).json(&chat("m1", "hi"));
        let call = headers.iter().fold(call, |call, (name, value)| call.header(name, value));
        let _ = stack.call(&call).await.expect(200);
    }
    let requests = stack.mocks.first.requests();
    assert_eq!(requests.len(), accepted.len());
    for request in requests {
        assert_eq!(request.header("authorization"), Some("Bearer platform-credential-of-first"));
        let seen = format!("{} {:?} {}", request.path, request.headers, String::from_utf8_lossy(&request.body));
        assert!(!seen.contains(&key.text), "{seen}");
        assert!(!request.headers.contains_key("x-api-key") && !request.headers.contains_key("cookie"), "{seen}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_headers_on_the_allow_list_reach_a_provider_and_only_those_of_another_list_the_client() {
    use proxium::mock_provider::Behaviour;
    let stack = Stack::start().await;
    let key = stack.key().await;
    let answer = [("set-cookie", "account=1"), ("openai-organization", "org-of-the-operator"), ("x-ratelimit-remaining-tokens", "7")];
    let answer = answer.iter().fold(Behaviour::answer(), |answer, (name, value)| answer.header(name, value));
    stack.mocks.first.always("m1", answer.header("x-request-id", "of-the-provider").header("server", "theirs"));

    let allowed = [
        ("user-agent", "sdk/1"),
        ("accept", "application/json"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "a=b"),
        ("openai-beta", "assistants=v2"),
    ];
    let dropped = [
        ("idempotency-key", "abc"),
        ("openai-organization", "org-of-the-client"),
        ("openai-project", "proj"),
        ("x-proxium-source", "app"),
        ("x-proxium-user", "jane"),
        ("x-stainless-lang", "js"),
        ("x-forwarded-for", "203.0.113.7"),
        ("x-envoy-upstream-rq-timeout-ms", "1"),
        ("x-envoy-retry-on", "5xx"),
        ("x-envoy-original-path", "/elsewhere"),
        ("accept-language", "de"),
        ("referer", "https://client.example"),
    ];
    let call = allowed.iter().chain(&dropped).fold(Call::chat(&key, &chat("m1", "hi")), |call, (name, value)| call.header(name, value));
    let answer = stack.call(&call).await.expect(200);
    for name in ["set-cookie", "openai-organization", "x-ratelimit-remaining-tokens", "x-envoy-upstream-service-time"] {
        assert_eq!(answer.header(name), None, "{name}");
    }
    assert_eq!(answer.header("x-request-id"), Some("of-the-provider"));
    assert_eq!(answer.header("server"), Some("proxium"));

    let request = stack.mocks.first.requests().pop().unwrap();
    for (name, value) in allowed {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
    for (name, value) in dropped {
        assert_ne!(request.header(name), Some(value), "{name}");
    }
    // What Envoy itself adds on top (envoy-facts.md) is known by name: anything else is a leak.
    let known = ["host", "content-type", "content-length", "accept-encoding", "authorization", "x-forwarded-proto", "x-request-id"];
    let of_envoy =
        |name: &str| matches!(name, "x-envoy-internal" | "x-envoy-expected-rq-timeout-ms" | "x-envoy-attempt-count" | "transfer-encoding");
    for name in request.headers.keys().map(|name| name.as_str()) {
        assert!(known.contains(&name) || of_envoy(name) || allowed.iter().any(|(allowed, _)| *allowed == name), "{name} is on no list");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_project_comes_from_the_key_and_no_header_names_another() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({"rules": {"mine": ["m1"]}}), json!({})).await;
    let other = stack.key_with(json!({"rules": {"mine": ["m2"]}}), json!({})).await;
    let names =
        ["x-proxium-project", "x-project", "x-tenant-id", "x-proxium-tenant", "openai-project", "openai-organization", "x-proxium-key"];
    let call = Call::chat(&key, &chat("mine", "hi"));
    let call = names.iter().fold(call, |call, name| call.header(name, &other.project));
    let answer = stack.call(&call).await.expect(200);
    assert_eq!(answer.header("x-proxium-model"), Some("m1"));
    stack.settled(&key.project, &answer).await;
    let ledger = stack.ledger(&key.project).await;
    assert_eq!(ledger.len(), 1);
    assert_eq!(ledger[0]["key_id"], key.id);
    assert!(stack.ledger(&other.project).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_ends_at_its_instant_whatever_offset_that_was_written_in() {
    let stack = Stack::start().await;
    let end = Timestamp::now() + SignedDuration::from_secs(6);
    let in_tokyo = (end + SignedDuration::from_hours(9)).strftime("%Y-%m-%dT%H:%M:%S+09:00").to_string();
    let key = stack.key_with(json!({}), json!({"expires_at": in_tokyo})).await;
    let shown = stack.admin().get(&format!("/projects/{}/keys/{}", key.project, key.id)).await.expect(200).json();
    assert_eq!(shown["expires_at"], json!(end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()));
    let _ = stack.chat(&key, &chat("m1", "hi")).await.expect(200);
    // Warm in the filter by now, and still checked at each use.
    let ended = eventually("the key ends", BOUND, || async {
        let answer = stack.chat(&key, &chat("m1", "hi")).await;
        if answer.status == 401 { Ok(answer) } else { Err(answer.status) }
    });
    assert_401(&ended.await, "invalid_key", "an expired key");
    assert!(Timestamp::now() >= Timestamp::from_second(end.as_second()).unwrap(), "not a moment earlier");

    // A life is an instant with its offset; what could be read in two ways is refused.
    for text in ["2030-02-29T00:00:00Z", "2030-02-28", "2030-02-28T00:00:00", "1 month"] {
        let refused = stack.admin().post(&format!("/projects/{}/keys", key.project), &json!({"name": "k", "expires_at": text})).await;
        assert_eq!(refused.status, 400, "{text}: {}", refused.text());
        assert!(refused.text().contains("expires_at"), "{}", refused.text());
    }
}

/// Waits until all workers of all Envoys answer so.
async fn acts_everywhere(what: &str, stack: &Stack, key: &Key, status: u16, code: &str) {
    for envoy in &stack.envoys {
        eventually(what, SOON, || async {
            for _ in 0..6 {
                let answer = envoy.call(&Call::chat(key, &chat("m1", "hi"))).await;
                let got = if answer.status == 200 { String::new() } else { answer.code() };
                if (answer.status, got.as_str()) != (status, code) {
                    return Err(format!("{} {got}", answer.status));
                }
            }
            Ok(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_to_a_warm_key_acts_on_every_envoy_within_two_seconds() {
    let stack = Stack::builder().envoys(2).start().await;
    let admin = stack.admin();
    let warm = |settings: Value| {
        let stack = &stack;
        async move {
            let key = stack.key_with(json!({}), settings).await;
            acts_everywhere("the key works", stack, &key, 200, "").await;
            key
        }
    };
    let path = |key: &Key| format!("/projects/{}/keys/{}", key.project, key.id);

    let revoked = warm(json!({})).await;
    let _ = admin.patch(&path(&revoked), &json!({"revoked": true})).await.expect(200);
    acts_everywhere("the revoked key is refused", &stack, &revoked, 401, "invalid_key").await;

    let deleted = warm(json!({})).await;
    let _ = admin.delete(&path(&deleted)).await.expect(204);
    acts_everywhere("the deleted key is refused", &stack, &deleted, 401, "invalid_key").await;

    let changed = warm(json!({"allowed_models": ["m1", "m2"]})).await;
    let _ = admin.patch(&path(&changed), &json!({"allowed_models": ["m2"]})).await.expect(200);
    acts_everywhere("the key may no longer use m1", &stack, &changed, 403, "model_not_allowed").await;
    let _ = admin.patch(&path(&changed), &json!({"allowed_models": []})).await.expect(200);
    acts_everywhere("the key may use all models", &stack, &changed, 200, "").await;
    let _ = admin.patch(&path(&changed), &json!({"expires_at": "2020-01-01T00:00:00Z"})).await.expect(200);
    acts_everywhere("the key has ended", &stack, &changed, 401, "invalid_key").await;

    let orphan = warm(json!({})).await;
    let sibling = admin.key_of(&orphan.project, json!({})).await;
    acts_everywhere("its sibling works", &stack, &sibling, 200, "").await;
    let _ = admin.delete(&format!("/projects/{}", orphan.project)).await.expect(204);
    acts_everywhere("a key of a deleted project is refused", &stack, &orphan, 401, "invalid_key").await;
    acts_everywhere("so is the other", &stack, &sibling, 401, "invalid_key").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_is_refused_even_before_the_filter_hears_of_it() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({"cache": {"exact": false}}), json!({})).await;
    let _ = stack.chat(&key, &chat("m1", "hi")).await.expect(200);
    let _ = stack.admin().patch(&format!("/projects/{}/keys/{}", key.project, key.id), &json!({"revoked": true})).await.expect(200);
    // The admission asks Redis, so no call is paid for by a revoked key.
    assert_401(&stack.chat(&key, &chat("m1", "hi")).await, "invalid_key", "right after the revocation");
    assert_eq!(stack.mocks.first.calls("m1"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_misspelt_or_misplaced_setting_is_refused_and_a_saved_one_is_shown() {
    let stack = Stack::start().await;
    let admin = stack.admin();
    let project = admin.project(json!({})).await;
    let keys = format!("/projects/{project}/keys");
    for wrong in [
        json!({"name": "k", "calls_per_hour": 1}),
        json!({"name": "k", "ceilings": {"call_per_hour": 1}}),
        json!({"name": "k", "ceilings": {"monthly_cap_usd": 1}}),
        json!({"name": "k", "budget": {"max": 1}}),
        json!({"name": "k", "ceilings": {"calls_per_hour": "many"}}),
        json!({"name": "k", "ceilings": {"calls_per_hour": -1}}),
    ] {
        let refused = admin.post(&keys, &wrong).await;
        assert_eq!(refused.status, 400, "{wrong}: {}", refused.text());
    }
    assert_eq!(admin.get(&keys).await.json()["keys"], json!([]), "nothing of it was saved");
    let ceilings = json!({"calls_per_hour": 7, "requests_per_minute": 0, "tokens_per_minute": 1000, "max_parallel_calls": 3});
    let key = admin.key_of(&project, json!({"ceilings": ceilings, "allowed_models": ["m1"]})).await;
    let shown = admin.get(&format!("{keys}/{}", key.id)).await.expect(200).json();
    assert_eq!((&shown["ceilings"], &shown["allowed_models"]), (&ceilings, &json!(["m1"])));
    assert!(!shown.to_string().contains(&key.text), "a key is shown once");
    // A ceiling of 0 is a ceiling: everything is refused.
    let refused = stack.chat(&key, &chat("m1", "hi")).await.expect(429);
    assert_eq!(refused.json()["error"]["param"], json!("requests_per_minute"));
    assert_eq!(refused.header("retry-after"), None, "waiting does not help");
}
