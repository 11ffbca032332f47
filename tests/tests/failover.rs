//! What comes of an attempt, row by row of the outcome table, and what a chain says that failed whole.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::Behaviour;
use proxium_e2e::{BOUND, Key, Mocks, Port, Response, Stack, catalog, chat, eventually};
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

/// As many failures as are made here on purpose must not open a breaker.
const PATIENT: &str = "breaker: {consecutive_failures: 1000, min_requests: 1000}";
const PRICED: &str = "price_usd_per_mtok: {input: 1, output: 10}, max_output_tokens: 100";

/// Beside `m1` to `m3`: `gone` is refused, `brief` has little time, and `a0` to `a4` are models of the first provider that can rest each
/// for itself. The chain `<name>-m2` leads from each of them to `m2`.
fn with_more_models(mocks: &Mocks, refusing: SocketAddr) -> String {
    let names = ["gone", "brief", "a0", "a1", "a2", "a3", "a4"];
    let model = |name| match name {
        "gone" => format!("  gone: {{provider: refusing, {PRICED}}}\n"),
        "brief" => format!("  brief: {{provider: first, timeout: 300ms, {PRICED}}}\n"),
        name => format!("  {name}: {{provider: first, {PRICED}}}\n"),
    };
    let provider = format!("providers:\n  refusing: {{dialect: openai, endpoint: \"http://{refusing}/v1\"}}\n");
    let models = format!("models:\n{}", names.map(model).concat());
    let yaml = catalog::three_providers(mocks).replacen("providers:\n", &provider, 1).replacen("models:\n", &models, 1);
    yaml + &names.map(|name| format!("  {name}-m2: [{name}, m2]\n")).concat()
}

/// The stack and the port that refuses while it is held.
async fn stack() -> (Stack, Port) {
    let refusing = Port::take();
    let addr = refusing.addr();
    (Stack::builder().catalog(move |mocks| with_more_models(mocks, addr)).and_catalog(PATIENT).start().await, refusing)
}

/// Model and outcome of each attempt, as the ledger's newest of `records` tells.
async fn last_attempts(stack: &Stack, key: &Key, records: usize) -> String {
    let ledger = eventually("the ledger record", BOUND, || async {
        let ledger = stack.ledger(&key.project).await;
        if ledger.len() == records { Ok(ledger) } else { Err(ledger.len()) }
    });
    let attempts = ledger.await[records - 1]["attempts"].clone();
    attempts.split(", ").filter_map(|attempt| Some(attempt.rsplit_once(' ')?.0)).collect::<Vec<_>>().join(", ")
}

/// Waits until nothing is held any more, and fails if anything was charged.
async fn given_back(stack: &Stack, key: &Key) {
    eventually("all is given back", BOUND, || async {
        let (state, windows) = (stack.state(&key.project).await, stack.windows(key).await);
        let zero = |value: Option<&String>| value.is_none_or(|value| value == "0");
        let back = zero(state.get("held")) && ["c_sum", "r_sum", "t_sum"].iter().all(|sum| zero(windows.get(*sum)));
        if back { Ok(()) } else { Err((state, windows)) }
    })
    .await;
    assert_eq!(stack.state(&key.project).await["spend"], "0");
    assert!(stack.ledger(&key.project).await.is_empty());
}

fn message(response: &Response) -> String {
    response.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
}

fn retry_after(response: &Response) -> u64 {
    response.header("retry-after").expect("a retry-after").parse().expect("seconds")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_failure_of_an_entry_goes_on_to_the_next() {
    let (stack, _refusing) = stack().await;
    let key = stack.key().await;
    let rows = [
        ("m1", Some(Behaviour::reset()), "reset"),
        ("m1", Some(Behaviour::reset_mid_body()), "reset"),
        ("m1", Some(Behaviour::status(408)), "status_408"),
        ("m1", Some(Behaviour::status(500)), "status_500"),
        ("m1", Some(Behaviour::status(502)), "status_502"),
        ("m1", Some(Behaviour::status(503)), "status_503"),
        ("m1", Some(Behaviour::status(504)), "status_504"),
        ("m1", Some(Behaviour::status(529)), "status_529"),
        ("m1", Some(Behaviour::error_in_200()), "error_in_200"),
        ("m1", Some(Behaviour::empty()), "empty_body"),
        ("m1", Some(Behaviour::html()), "not_json"),
        ("m1", Some(Behaviour::raw(200, "application/json", r#"{"choices": [{"ind"#)), "not_json"),
        ("m1", Some(Behaviour::no_choices()), "no_choices"),
        ("m1", Some(Behaviour::status(401)), "status_401"),
        ("m1", Some(Behaviour::status(403)), "status_403"),
        ("m1", Some(Behaviour::status(404)), "status_404"),
        ("brief", Some(Behaviour::hang()), "timeout"),
        ("gone", None, "connect_error"),
    ];
    for (number, (model, behaviour, word)) in rows.into_iter().enumerate() {
        stack.mocks.first.next(model, behaviour);
        let chain = if model == "m1" { "fast".to_owned() } else { format!("{model}-m2") };
        let answer = stack.chat(&key, &chat(&chain, &format!("question {number}"))).await.expect(200);
        assert_eq!(answer.header("x-proxium-model"), Some("m2"), "{word}");
        assert_eq!(answer.header("x-proxium-attempts"), Some("2"), "{word}");
        assert_eq!(answer.json()["choices"][0]["message"]["content"], format!("You said: question {number}"));
        assert_eq!(last_attempts(&stack, &key, number + 1).await, format!("{model} {word}, m2 ok"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_429_goes_on_at_once_and_rests_its_model_as_long_as_it_says() {
    let (stack, _refusing) = stack().await;
    let key = stack.key().await;
    let busy = |header: &str, value: &str| Behaviour::status(429).header(header, value);
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(40));
    // The answer, the rest that the next caller may still be told of (a rest is at most a minute).
    let rows = [
        ("a0", busy("retry-after", "7"), 7, 7),
        ("a1", busy("retry-after", "600"), 600, 60),
        ("a2", busy("retry-after", &date), 40, 40),
        ("a3", busy("retry-after-ms", "20000"), 20, 20),
    ];
    for (model, behaviour, said, rests) in rows {
        stack.mocks.first.next(model, [behaviour]);
        let begun = Instant::now();
        let refused = stack.chat(&key, &chat(model, "hello")).await.expect(429);
        assert_eq!(refused.code(), "providers_failed");
        assert_eq!(message(&refused), format!("No model could answer ({model}: status_429). Try again later."));
        let told = retry_after(&refused);
        assert!((said - 2..=said).contains(&told), "{model}: {told}");

        let answer = stack.chat(&key, &chat(&format!("{model}-m2"), &format!("after {model}"))).await.expect(200);
        assert_eq!(answer.header("x-proxium-model"), Some("m2"));
        assert_eq!(answer.header("x-proxium-attempts"), Some("1"), "a resting model is passed over");
        let resting = stack.chat(&key, &chat(model, "hello")).await.expect(503);
        assert_eq!(message(&resting), format!("No model could answer ({model}: resting). Try again later."));
        assert!(retry_after(&resting) <= rests, "{model}: {}", retry_after(&resting));
        assert!(begun.elapsed() < BOUND, "nobody waits for a provider's retry-after");
        assert_eq!(stack.mocks.first.calls(model), 1, "{model}");
    }

    // Without a word it rests a second, and other models of the same credential do not.
    stack.mocks.first.next("a4", [Behaviour::status(429)]);
    let answer = stack.chat(&key, &chat("a4-m2", "no header")).await.expect(200);
    assert_eq!((answer.header("x-proxium-model"), answer.header("x-proxium-attempts")), (Some("m2"), Some("2")));
    let _ = stack.chat(&key, &chat("m1", "another model")).await.expect(200);
    eventually("a4 is called again", BOUND, || async { stack.chat(&key, &chat("a4", "again")).await.status == 200 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_request_itself_is_returned_as_it_is_and_costs_nothing() {
    let (stack, _refusing) = stack().await;
    let key = stack.key_with(json!({"monthly_cap_usd": 1}), json!({"ceilings": {"calls_per_hour": 1, "tokens_per_minute": 5000}})).await;
    for status in [400, 413, 422, 409, 418] {
        let body = format!("{{\"error\" : {{\"message\":\"said by the provider\", \"code\":{status}}}}}");
        stack.mocks.first.next("m1", [Behaviour::raw(status, "application/json", body.as_str()).header("x-request-id", "of-the-provider")]);
        let answer = stack.chat(&key, &chat("fast", "hello")).await.expect(status);
        assert_eq!(answer.text(), body);
        assert_eq!(answer.header("x-request-id"), Some("of-the-provider"));
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert!(answer.header("x-proxium-request-id").is_some());
        given_back(&stack, &key).await;
    }
    assert_eq!((stack.mocks.first.calls("m1"), stack.mocks.second.calls("m2")), (5, 0));

    // Nothing of it is cached, and a 404 is handed on only if nobody else answers.
    stack.mocks.first.next("m1", [Behaviour::raw(404, "application/json", "{\"error\":\"no such model\"}")]);
    assert_eq!(stack.chat(&key, &chat("m1", "hello")).await.expect(404).text(), "{\"error\":\"no such model\"}");
    given_back(&stack, &key).await;
    let _ = stack.chat(&key, &chat("fast", "hello")).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_kept_under_the_model_that_gave_it() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    stack.mocks.first.next("m1", [Behaviour::status(503)]);
    stack.mocks.second.next("m2", [Behaviour::answer().text("said by m2")]);
    let told = |answer: &Response| {
        let header = |name| answer.header(name).unwrap_or_default().to_owned();
        (header("x-proxium-cache"), header("x-proxium-model"))
    };
    let expected = |cache: &str, model: &str| (cache.to_owned(), model.to_owned());

    assert_eq!(told(&stack.chat(&key, &chat("fast", "hello")).await.expect(200)), expected("miss", "m2"));
    assert_eq!(told(&stack.chat(&key, &chat("fast", "hello")).await.expect(200)), expected("miss", "m1"));
    let kept = stack.chat(&key, &chat("m2", "hello")).await.expect(200);
    assert_eq!(told(&kept), expected("hit", "m2"));
    assert_eq!(kept.json()["choices"][0]["message"]["content"], "said by m2");
    assert_eq!(told(&stack.chat(&key, &chat("fast", "hello")).await.expect(200)), expected("hit", "m1"));
    assert_eq!((stack.mocks.first.calls("m1"), stack.mocks.second.calls("m2")), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_failed_whole_tells_each_attempt_and_the_shortest_wait() {
    let (stack, _refusing) = stack().await;
    let key = stack.key_with(json!({"monthly_cap_usd": 1}), json!({"ceilings": {"calls_per_hour": 1}})).await;
    let leaky = json!({"error": {"message": "bad key platform-credential-of-first"}}).to_string();

    stack.mocks.first.next("m1", [Behaviour::raw(500, "application/json", leaky.as_str()).header("retry-after", "40")]);
    stack.mocks.second.next("m2", [Behaviour::raw(401, "application/json", leaky.as_str())]);
    stack.mocks.third.next("m3", [Behaviour::status(503).header("retry-after", "9")]);
    let failed = stack.chat(&key, &chat("long", "hello")).await.expect(502);
    assert_eq!(failed.code(), "providers_failed");
    assert_eq!(message(&failed), "No model could answer (m1: status_500; m2: status_401; m3: status_503). Try again later.");
    assert_eq!(retry_after(&failed), 9);
    assert!(!format!("{:?} {}", failed.headers, failed.text()).contains("credential"));
    given_back(&stack, &key).await;

    let busy = |seconds: &str| [Behaviour::status(429).header("retry-after", seconds)];
    stack.mocks.first.next("a0", busy("50"));
    stack.mocks.second.next("m2", busy("20"));
    let failed = stack.chat(&key, &chat("a0-m2", "hello")).await.expect(429);
    assert_eq!(
        (message(&failed), retry_after(&failed)),
        ("No model could answer (a0: status_429; m2: status_429). Try again later.".into(), 20)
    );
    given_back(&stack, &key).await;

    let failed = stack.chat(&key, &chat("a0-m2", "hello")).await.expect(503);
    assert_eq!(message(&failed), "No model could answer (a0: resting; m2: resting). Try again later.");
    assert!((1..=20).contains(&retry_after(&failed)));
    given_back(&stack, &key).await;

    // One that is busy among others that fail is no reason to tell the caller to slow down.
    stack.mocks.first.next("m1", [Behaviour::status(500)]);
    let failed = stack.chat(&key, &chat("fast", "hello")).await.expect(502);
    assert_eq!(message(&failed), "No model could answer (m1: status_500; m2: resting). Try again later.");
    given_back(&stack, &key).await;
}
