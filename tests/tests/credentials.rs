//! Which credential goes where, and that nothing else does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::{ANY, Behaviour, Captured, Mock};
use proxium_e2e::{BOUND, Call, Key, Response, Stack, chat, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const OWN: &str = "own-credential-of-the-project";
const PLATFORM: [&str; 3] = ["platform-credential-of-first", "platform-credential-of-second", "platform-credential-of-third"];
const PROMPT: &str = "what-a-person-asked";

async fn set_own(stack: &Stack, key: &Key, provider: &str, secret: &str) {
    let path = format!("/projects/{}/credentials/{provider}", key.project);
    assert_eq!(stack.admin().put(&path, &json!({"secret": secret})).await.status, 204);
}

async fn uncached(stack: &Stack, key: &Key, model: &str) -> Response {
    stack.call(&Call::chat(key, &chat(model, PROMPT)).header("x-proxium-cache", "bypass")).await
}

fn sent_credentials(mock: &Mock) -> Vec<String> {
    mock.requests().iter().map(|request| request.header("authorization").unwrap_or_default().to_owned()).collect()
}

fn bearer(secret: &str) -> String {
    format!("Bearer {secret}")
}

/// Every file below the stack's directory: logs, rendered configuration, the append-only file with all that Redis was ever told.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn whole(response: &Response) -> String {
    format!("{:?} {}", response.headers, response.text())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_projects_own_credential_beats_the_platforms_and_neither_is_seen_anywhere_else() {
    let stack = Stack::builder().and_catalog("breaker: {consecutive_failures: 100}").start().await;
    let (own, other) = (stack.key().await, stack.key().await);
    set_own(&stack, &own, "first", OWN).await;

    let mut seen = Vec::new();
    for key in [&own, &other] {
        seen.push(stack.chat(key, &chat("m1", PROMPT)).await.expect(200));
        stack.mocks.first.next("m1", [Behaviour::status(500), Behaviour::status(401)]);
        seen.push(uncached(&stack, key, "fast").await.expect(200));
        seen.push(uncached(&stack, key, "m1").await.expect(502));
        seen.push(stack.chat(key, &chat("m1", PROMPT)).await.expect(200));
    }
    let (own_bearer, platform) = (bearer(OWN), PLATFORM.map(bearer));
    let expected: Vec<&String> = std::iter::repeat_n(&own_bearer, 3).chain(std::iter::repeat_n(&platform[0], 3)).collect();
    assert_eq!(sent_credentials(&stack.mocks.first).iter().collect::<Vec<_>>(), expected);
    assert_eq!(sent_credentials(&stack.mocks.second), [platform[1].clone(), platform[1].clone()]);

    // A provider sees its own credential alone, and no key of ours.
    let secrets = [OWN, PLATFORM[0], PLATFORM[1], PLATFORM[2], &own.text, &other.text];
    for (mock, may_see) in [(&stack.mocks.first, [OWN, PLATFORM[0]]), (&stack.mocks.second, [PLATFORM[1]; 2])] {
        for request in mock.requests() {
            let all = format!("{} {:?} {}", request.path, request.headers, String::from_utf8_lossy(&request.body));
            for secret in secrets.iter().filter(|secret| !may_see.contains(secret)) {
                assert!(!all.contains(secret), "{secret}: {all}");
            }
        }
    }
    for response in &seen {
        assert!(secrets.iter().all(|secret| !whole(response).contains(secret)), "{}", whole(response));
    }
    for key in [&own, &other] {
        let records = if key.project == own.project { "own" } else { "other" };
        eventually(records, BOUND, || async { stack.ledger(&key.project).await.len() == 3 }).await;
        let admin = stack.admin();
        for path in ["", "/credentials", "/keys"] {
            let shown = admin.get(&format!("/projects/{}{path}", key.project)).await.expect(200);
            assert!(secrets.iter().all(|secret| !shown.text().contains(secret)), "{path}: {}", shown.text());
        }
    }

    let all = files(stack.envoys[0].files().parent().unwrap());
    let named = |part: &str| all.iter().filter(|path| path.to_string_lossy().contains(part)).count();
    assert!(named(".log") >= 3 && named("aof") >= 1 && named("ecds.yaml") == 1, "{all:?}");
    for path in all {
        let bytes = fs::read(&path).unwrap_or_default();
        for secret in secrets {
            assert!(!contains(&bytes, secret), "{secret} in {}", path.display());
        }
        assert!(path.extension().is_none_or(|end| end != "log") || !contains(&bytes, PROMPT), "a prompt in {}", path.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_own_credential_never_falls_back_to_the_platforms_and_trips_nobody_else() {
    let stack = Stack::start().await;
    let (own, other) = (stack.key().await, stack.key().await);
    set_own(&stack, &own, "first", OWN).await;
    stack.mocks.first.next("m1", [401, 403, 500, 401, 503].map(Behaviour::status));
    for _ in 0..2 {
        let failed = uncached(&stack, &own, "m1").await.expect(502);
        assert_eq!(failed.code(), "providers_failed");
    }
    for _ in 0..3 {
        assert_eq!(uncached(&stack, &own, "fast").await.expect(200).header("x-proxium-model"), Some("m2"));
    }
    assert!(uncached(&stack, &own, "m1").await.expect(503).text().contains("m1: breaker_open"));
    assert_eq!(sent_credentials(&stack.mocks.first), [(); 5].map(|()| bearer(OWN)));

    // The platform's credential is another one, with a breaker of its own.
    assert_eq!(uncached(&stack, &other, "fast").await.expect(200).header("x-proxium-model"), Some("m1"));
    assert_eq!(sent_credentials(&stack.mocks.first).last(), Some(&bearer(PLATFORM[0])));

    // Replaced or taken away, it acts on the next call.
    set_own(&stack, &other, "second", "another-own-credential").await;
    let _ = uncached(&stack, &other, "m2").await.expect(200);
    assert_eq!(sent_credentials(&stack.mocks.second).last(), Some(&bearer("another-own-credential")));
    assert_eq!(stack.admin().delete(&format!("/projects/{}/credentials/second", other.project)).await.status, 204);
    let _ = uncached(&stack, &other, "m2").await.expect(200);
    assert_eq!(sent_credentials(&stack.mocks.second).last(), Some(&bearer(PLATFORM[1])));
}

fn names(headers: &reqwest::header::HeaderMap) -> BTreeSet<&str> {
    headers.keys().map(reqwest::header::HeaderName::as_str).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_gets_the_allow_list_and_nothing_else() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    let passed = [
        ("content-type", "application/json; charset=utf-8"),
        ("accept", "application/json"),
        ("user-agent", "OpenAI/Python 2.0"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "vendor=value"),
        ("openai-beta", "assistants=v2"),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "context-1m"),
    ];
    let dropped = [
        ("x-api-key", key.text.as_str()),
        ("accept-encoding", "gzip, br"),
        ("idempotency-key", "1"),
        ("cookie", "session=1"),
        ("openai-organization", "org-of-the-client"),
        ("x-goog-api-key", "1"),
        ("api-key", "1"),
        ("proxy-authorization", "Basic 1"),
        ("x-forwarded-for", "203.0.113.7"),
        ("forwarded", "for=203.0.113.7"),
        ("via", "1.1 somewhere"),
        ("x-request-id", "of-the-client"),
        ("x-envoy-upstream-rq-timeout-ms", "1"),
        ("x-envoy-max-retries", "9"),
        ("x-envoy-internal", "true"),
        ("x-envoy-original-path", "/elsewhere"),
        ("x-proxium-source", "app"),
        ("x-proxium-user", "somebody"),
        ("x-proxium-cache", "refresh"),
        ("x-proxium-timeout-ms", "60000"),
        ("x-proxium-request-id", "req_of_the_client"),
        ("x-proxium-anything", "1"),
        ("x-stainless-lang", "python"),
        ("x-mock", "mock-error-500"),
    ];
    let body = json!({"model": "m1", "messages": [{"role": "user", "content": "ß 😀"}], "temperature": 0.50, "metadata": {"a": "b"}});
    let mut call = Call::new("POST", "/v1/chat/completions?beta=true&x=%20").header("authorization", &bearer(&key.text));
    for (name, value) in passed.iter().chain(&dropped) {
        call = call.header(name, value);
    }
    let text = format!(" {body}\n");
    let _ = stack.call(&call.body(text.as_str())).await.expect(200);

    let request: Captured = stack.mocks.first.requests().remove(0);
    let made = ["host", "authorization", "accept-encoding", "content-length"];
    let expected: BTreeSet<&str> = passed.iter().map(|(name, _)| *name).chain(made).collect();
    assert_eq!(names(&request.headers), expected, "{:#?}", request.headers);
    for (name, value) in passed {
        assert_eq!(request.header(name), Some(value));
    }
    assert_eq!(request.headers.len(), expected.len(), "each once");
    assert_eq!(request.header("authorization"), Some(bearer(PLATFORM[0]).as_str()));
    assert_eq!(request.header("accept-encoding"), Some("identity"));
    assert_eq!(request.header("host"), Some(stack.mocks.first.addr().to_string().as_str()));
    assert_eq!(request.path, "/v1/chat/completions?beta=true&x=%20");
    assert_eq!(String::from_utf8_lossy(&request.body), text, "the client's own bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_the_allow_list_and_nothing_else() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    let passed = [("x-request-id", "req-of-the-provider"), ("request-id", "req-too"), ("retry-after", "3")];
    let hidden = [
        ("set-cookie", "__cf=1"),
        ("openai-organization", "org-of-the-operator"),
        ("openai-processing-ms", "12"),
        ("x-ratelimit-remaining-requests", "17"),
        ("x-ratelimit-limit-tokens", "1000000"),
        ("anthropic-ratelimit-requests-limit", "50"),
        ("anthropic-organization-id", "org"),
        ("www-authenticate", "Bearer"),
        ("x-proxium-cost-usd", "99"),
        ("x-proxium-model", "of-the-provider"),
        ("x-envoy-degraded", "true"),
        ("via", "1.1 somewhere"),
    ];
    let with_headers =
        |behaviour: Behaviour| passed.iter().chain(&hidden).fold(behaviour, |behaviour, (name, value)| behaviour.header(name, value));
    stack.mocks.first.next("m1", [with_headers(Behaviour::answer()), with_headers(Behaviour::status(400))]);
    let always = [
        "content-type",
        "content-length",
        "date",
        "server",
        "x-proxium-request-id",
        "x-proxium-model",
        "x-proxium-cache",
        "x-proxium-attempts",
    ];
    for status in [200, 400] {
        let answer = stack.call(&Call::chat(&key, &chat("m1", "hello")).header("x-proxium-cache", "bypass")).await.expect(status);
        let paid: &[&str] = if status == 200 { &["x-proxium-cost-usd"] } else { &[] };
        let expected: BTreeSet<&str> = always.iter().chain(paid).copied().chain(passed.map(|(name, _)| name)).collect();
        // Envoy closes an HTTP/1 connection after any 400.
        let of_the_answer: BTreeSet<&str> = names(&answer.headers).into_iter().filter(|name| *name != "connection").collect();
        assert_eq!(of_the_answer, expected, "{:#?}", answer.headers);
        assert_eq!(answer.headers.len(), answer.headers.keys_len(), "each once");
        for (name, value) in passed {
            assert_eq!(answer.header(name), Some(value));
        }
        assert_eq!(answer.header("x-proxium-model"), Some("m1"));
        assert_eq!(answer.header("server"), Some("proxium"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_taken_from_either_header_and_reaches_no_provider() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    let body = chat("m1", "hello");
    for (number, lines) in [
        vec![("Authorization", bearer(&key.text))],
        vec![("authorization", format!("bearer  {} ", key.text))],
        vec![("X-API-Key", key.text.clone())],
        vec![("x-api-key", key.text.clone()), ("authorization", bearer(&key.text))],
        vec![("x-api-key", key.text.clone()), ("x-api-key", key.text.clone()), ("x-goog-api-key", key.text.clone())],
    ]
    .into_iter()
    .enumerate()
    {
        let call = Call::new("POST", "/v1/chat/completions").header("x-proxium-cache", "bypass").json(&body);
        let call = lines.iter().fold(call, |call, (name, value)| call.header(name, value));
        let _ = stack.call(&call).await.expect(200);
        let request: Value = json!(format!("{:?}", stack.mocks.first.requests()[number].headers));
        assert!(!request.to_string().contains(&key.text), "{request}");
    }
    assert_eq!(stack.mocks.first.calls(ANY), 5);
    let both = Call::chat(&key, &body).header("x-api-key", "px_another");
    assert_eq!(stack.call(&both).await.expect(401).code(), "invalid_key");
}
