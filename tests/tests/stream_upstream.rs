//! What reaches the providers of a stream, hop by hop: their own path, body and credential, an allow-list of headers, and large bodies.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::{ANY, Behaviour, Captured};
use proxium_e2e::{Ask, BOTH, Call, Key, Stack, catalog, streamed};
use serde_json::{Value, json};

/// Many failures on purpose must not open a breaker.
const PATIENT: &str = "breaker: {consecutive_failures: 1000, min_requests: 1000}";
const MIB: usize = 1 << 20;

/// Everything that a client might send and no provider may see, and what may pass.
const SENT: [(&str, &str); 29] = [
    ("accept", "text/event-stream"),
    ("user-agent", "a-client/1"),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("tracestate", "a=b"),
    ("anthropic-version", "2023-01-01"),
    ("anthropic-beta", "a-beta"),
    ("openai-beta", "o-beta"),
    ("accept-encoding", "gzip, br"),
    ("cookie", "session=secret"),
    ("idempotency-key", "again"),
    ("openai-organization", "org"),
    ("x-goog-api-key", "client-secret"),
    ("api-key", "client-secret"),
    ("x-stainless-lang", "js"),
    ("x-forwarded-for", "10.0.0.1"),
    ("x-forwarded-proto", "https"),
    ("x-request-id", "of-the-client"),
    ("x-proxium-user", "jane"),
    ("x-proxium-source", "app"),
    ("x-envoy-max-retries", "0"),
    ("x-envoy-attempt-count", "3"),
    ("x-envoy-upstream-rq-timeout-ms", "1"),
    ("x-envoy-upstream-rq-per-try-timeout-ms", "1"),
    ("x-envoy-retry-on", "gateway-error"),
    ("x-envoy-retriable-status-codes", "400"),
    ("x-envoy-expected-rq-timeout-ms", "1"),
    ("x-envoy-original-path", "/elsewhere"),
    ("x-envoy-upstream-alt-stat-name", "mine"),
    ("x-envoy-internal", "true"),
];

/// With the key in both accepted places.
fn call(ask: Ask, key: &Key, model: &str) -> Call {
    let path = if ask == Ask::Chat { "/v1/chat/completions?beta=true" } else { "/v1/messages?beta=true" };
    let call = Call::new("POST", path).header("authorization", &format!("Bearer {}", key.text)).header("x-api-key", &key.text);
    SENT.iter().fold(call, |call, (name, value)| call.header(name, value)).json(&streamed(ask.body(model, "hello")))
}

/// Fails unless the request has its provider's own path, credential and model, and nothing that is not on the allow-list.
fn is_as_decided(request: &Captured, ask: Ask, model: &str, credential: &str, attempt: usize, key: &Key) {
    let row = format!("{ask:?}, attempt {attempt} at {model}: {request:?}");
    let openai = model.starts_with('m');
    let same = openai == (ask == Ask::Chat);
    let query = if same { "?beta=true" } else { "" };
    assert_eq!(request.path, format!("/v1/{}{query}", if openai { "chat/completions" } else { "messages" }), "{row}");
    let mut expected = vec![
        ("accept", "text/event-stream".to_owned()),
        ("accept-encoding", "identity".into()),
        ("content-length", request.body.len().to_string()),
        ("content-type", "application/json".into()),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        ("tracestate", "a=b".into()),
        ("user-agent", "a-client/1".into()),
        ("x-envoy-attempt-count", attempt.to_string()),
    ];
    if openai {
        expected.push(("authorization", format!("Bearer {credential}")));
    } else {
        expected.push(("x-api-key", credential.into()));
        expected.push(("anthropic-version", if same { "2023-01-01" } else { "2023-06-01" }.into()));
    }
    if same {
        expected.extend([("anthropic-beta", "a-beta".into()), ("openai-beta", "o-beta".into())]);
    }
    if same && openai {
        expected.push(("anthropic-version", "2023-01-01".into()));
    }
    expected.sort();
    let mut seen: Vec<(&str, String)> = request
        .headers
        .iter()
        .filter(|(name, _)| *name != "host")
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap().to_owned()))
        .collect();
    seen.sort();
    assert_eq!(seen, expected, "{row}");
    let text = format!("{:?} {}", request.headers, String::from_utf8_lossy(&request.body));
    assert!(!text.contains(&key.text) && !text.contains("client-secret"), "{row}");
    let body = request.json();
    assert_eq!(body["model"], model, "{row}");
    assert_eq!(body["stream"], true, "{row}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_hop_gets_its_own_and_nothing_of_another() {
    let stack = Stack::builder().catalog(catalog::both_dialects).and_catalog(PATIENT).start().await;
    let key = stack.key().await;
    let credentials = ["platform-credential-of-first", "platform-credential-of-second", "platform-credential-of-third"];
    for ask in BOTH {
        for models in [["m1", "a2", "m3"], ["a1", "m2", "a3"], ["m1", "m2", "m3"], ["a1", "a2", "a3"]] {
            let mocks = [&stack.mocks.first, &stack.mocks.second, &stack.mocks.third];
            mocks.iter().for_each(|mock| mock.forget());
            stack.mocks.first.next(models[0], [Behaviour::status(500)]);
            stack
                .mocks
                .second
                .next(models[1], [Behaviour::sse(["data: {\"error\":{\"type\":\"x\",\"message\":\"m\"},\"type\":\"error\"}\n\n"])]);
            let answer = stack.streamed(&call(ask, &key, &models.join("-")).header("x-proxium-cache", "bypass")).await.whole();
            assert_eq!((answer.header("x-proxium-attempts"), answer.text().as_str()), (Some("3"), "You said: hello"));
            for (number, mock) in mocks.iter().enumerate() {
                let requests = mock.requests();
                assert_eq!(requests.len(), 1, "{ask:?} {models:?}");
                is_as_decided(&requests[0], ask, models[number], credentials[number], number + 1, &key);
            }
            let told = format!("{:?} {}", answer.headers, answer.raw());
            assert!(!told.contains("credential") && !told.contains("x-envoy"), "{told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_projects_own_credential_goes_to_its_provider_alone() {
    let stack = Stack::builder().catalog(catalog::both_dialects).and_catalog(PATIENT).start().await;
    let key = stack.key().await;
    let put = stack.admin().put(&format!("/projects/{}/credentials/second_a", key.project), &json!({"secret": "own-credential"})).await;
    assert!(put.status < 300, "{}", put.text());
    stack.mocks.first.always("m1", Behaviour::status(500));
    stack.mocks.second.always("a2", Behaviour::status(500));
    let answer = stack.streamed(&Ask::Chat.stream(&key, "m1-a2-m3", "hello")).await.whole();
    assert_eq!(answer.header("x-proxium-model"), Some("m3"));
    let seen = |requests: Vec<Captured>| -> Vec<Option<String>> {
        ["authorization", "x-api-key"].map(|name| requests[0].header(name).map(str::to_owned)).to_vec()
    };
    assert_eq!(seen(stack.mocks.first.requests()), [Some("Bearer platform-credential-of-first".into()), None]);
    assert_eq!(seen(stack.mocks.second.requests()), [None, Some("own-credential".into())]);
    assert_eq!(seen(stack.mocks.third.requests()), [Some("Bearer platform-credential-of-third".into()), None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cannot_steer_the_router() {
    let stack = Stack::builder().catalog(catalog::both_dialects).and_catalog(PATIENT).start().await;
    let key = stack.key().await;
    let spoofed = [
        ("x-envoy-max-retries", "0"),
        ("x-envoy-max-retries", "100"),
        ("x-envoy-attempt-count", "1"),
        ("x-envoy-attempt-count", "2"),
        ("x-envoy-upstream-rq-timeout-ms", "1"),
        ("x-envoy-upstream-rq-per-try-timeout-ms", "1"),
        ("x-envoy-hedge-on-per-try-timeout", "true"),
        ("x-envoy-retry-on", "retriable-4xx"),
    ];
    for (name, value) in spoofed {
        let row = format!("{name}: {value}");
        for mock in [&stack.mocks.first, &stack.mocks.second, &stack.mocks.third] {
            mock.forget();
        }
        stack.mocks.first.next("m1", [Behaviour::status(500)]);
        stack.mocks.second.next("a2", [Behaviour::status(503)]);
        let call = Ask::Chat.stream(&key, "m1-a2-m3", &row).header(name, value);
        let answer = stack.streamed(&call).await.whole();
        assert_eq!((answer.header("x-proxium-model"), answer.header("x-proxium-attempts")), (Some("m3"), Some("3")), "{row}");
        // All fail: each is called once, and no more.
        stack.mocks.first.next("m1", [Behaviour::status(500)]);
        stack.mocks.second.next("a2", [Behaviour::status(503)]);
        stack.mocks.third.next("m3", [Behaviour::status(500)]);
        let call = Ask::Chat.stream(&key, "m1-a2-m3", &format!("{row}, all fail")).header(name, value);
        assert_eq!(stack.streamed(&call).await.status, 502, "{row}");
        assert_eq!([&stack.mocks.first, &stack.mocks.second, &stack.mocks.third].map(|mock| mock.calls(ANY)), [2, 2, 2], "{row}");
    }
}

/// A body of this many bytes, and what its one message says.
fn sized(ask: Ask, model: &str, size: usize) -> (Value, String) {
    let empty = streamed(ask.body(model, "")).to_string().len();
    let text = "x".repeat(size - empty);
    let body = streamed(ask.body(model, &text));
    assert_eq!(body.to_string().len(), size);
    (body, text)
}

fn text_sent(request: &Captured) -> String {
    let body = request.json();
    let content = &body["messages"][0]["content"];
    content.as_str().or_else(|| content[0]["text"].as_str()).unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_stream_and_fail_over() {
    let stack = Stack::builder().catalog(catalog::both_dialects_patient).and_catalog(PATIENT).start().await;
    let key = stack.key().await;
    for size in [32_769, MIB - 1, MIB, MIB + 1, 10 * MIB] {
        for (ask, chain) in [(Ask::Chat, ["m1", "m2", "a3"]), (Ask::Messages, ["a1", "m2", "a3"])] {
            let row = format!("{ask:?} with {size} bytes over {chain:?}");
            let (body, text) = sized(ask, &chain.join("-"), size);
            stack.mocks.first.next(chain[0], [Behaviour::status(500)]);
            stack.mocks.second.next(chain[1], [Behaviour::reset()]);
            stack.mocks.third.next(chain[2], [Behaviour::answer().text("it has come")]);
            let answer = stack.streamed(&ask.call(&key, &body).header("x-proxium-cache", "bypass")).await.whole();
            assert_eq!((answer.text().as_str(), answer.header("x-proxium-attempts")), ("it has come", Some("3")), "{row}");
            for mock in [&stack.mocks.first, &stack.mocks.second, &stack.mocks.third] {
                let requests = mock.requests();
                assert_eq!(requests.len(), 1, "{row}");
                assert!(text_sent(&requests[0]) == text, "{row}: the text is whole");
                mock.forget();
            }
        }
    }
    for ask in BOTH {
        let (body, _) = sized(ask, "m1", 10 * MIB + 1);
        let refused = stack.streamed(&ask.call(&key, &body)).await;
        ask.is_error(&refused.json_answer(413), "request_too_large");
    }
    assert_eq!(stack.mocks.first.calls(ANY), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_stream_passes_in_bounded_memory() {
    let stack = Stack::builder().catalog(catalog::both_dialects).start().await;
    let key = stack.key().await;
    let piece = "z".repeat(128 << 10);
    let chunk = |content: &str, finish: Value| {
        format!("data: {}\n\n", json!({"id": "1", "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]}))
    };
    let mut pieces = vec![chunk(&piece, Value::Null); 64];
    pieces.extend([chunk("", json!("stop")), "data: [DONE]\n\n".into()]);
    for ask in BOTH {
        stack.mocks.first.next("m1", [Behaviour::sse(pieces.clone())]);
        let answer = stack.streamed(&ask.stream(&key, "m1", "a lot")).await.whole();
        assert_eq!(answer.text().len(), 8 * MIB, "{ask:?}");
        stack.settled(&key.project, &answer.answer()).await;
    }
}
