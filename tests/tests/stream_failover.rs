//! A stream fails over until its first event: what comes of each failure, and what the caller is told when nobody answers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test
#![allow(clippy::print_stdout)] // figures for who asks (--nocapture)

use proxium::mock_provider::{ANY, Behaviour, End};
use proxium_e2e::{Ask, BOTH, BOUND, Key, Mocks, Port, Stack, Streamed, catalog, eventually};
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// As many failures as are made here on purpose must not open a breaker.
const PATIENT: &str = "breaker: {consecutive_failures: 1000, min_requests: 1000}";
const PRICED: &str = "price_usd_per_mtok: {input: 1, output: 10}, max_output_tokens: 100, first_byte_timeout: 1s";

/// Beside [`catalog::both_dialects`]: `gone` is refused, `nowhere` has a name that leads nowhere.
fn with_dead_ends(mocks: &Mocks, refusing: SocketAddr) -> String {
    let providers = format!(
        "providers:\n  refusing: {{dialect: openai, endpoint: \"http://{refusing}/v1\"}}\n  \
         unknown: {{dialect: anthropic, endpoint: \"http://nowhere.invalid:1/v1\"}}\n"
    );
    let models = format!("models:\n  gone: {{provider: refusing, {PRICED}}}\n  nowhere: {{provider: unknown, {PRICED}}}\n");
    catalog::both_dialects(mocks).replacen("providers:\n", &providers, 1).replacen("models:\n", &models, 1)
        + "  gone-m2: [gone, m2]\n  gone-a2: [gone, a2]\n  nowhere-m2: [nowhere, m2]\n  m1-nowhere: [m1, nowhere]\n  \
           m1-nowhere-a3: [m1, nowhere, a3]\n  m1-a2-nowhere: [m1, a2, nowhere]\n"
}

async fn stack(path: &str) -> (Stack, Port) {
    let refusing = Port::take();
    let addr = refusing.addr();
    let builder = Stack::builder().catalog(move |mocks| with_dead_ends(mocks, addr)).and_catalog(PATIENT).render("--streams", path);
    (builder.start().await, refusing)
}

/// Model and outcome of each attempt of this answer, as the ledger tells.
async fn attempts(stack: &Stack, key: &Key, answer: &Streamed) -> String {
    stack.settled(&key.project, &answer.answer()).await;
    let id = answer.header("x-proxium-request-id").unwrap();
    let record = stack.ledger(&key.project).await.into_iter().find(|record| record["id"] == id).unwrap();
    record["attempts"].split(", ").filter_map(|attempt| Some(attempt.rsplit_once(' ')?.0)).collect::<Vec<_>>().join(", ")
}

/// Waits until nothing is held any more, and fails if anything was charged.
async fn given_back(stack: &Stack, key: &Key) {
    let books = stack.closed_books(key, 0).await;
    assert_eq!((books.calls, books.requests, books.tokens, books.spend), (0, 0, 0, 0));
}

fn error_event(model: &str) -> String {
    match model.starts_with('m') {
        true => "data: {\"error\":{\"message\":\"too busy\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n".into(),
        false => "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"too busy\"}}\n\n".into(),
    }
}

fn ping(model: &str) -> String {
    if model.starts_with('m') { ": ping\n\n".into() } else { "event: ping\ndata: {\"type\":\"ping\"}\n\n".into() }
}

/// Failures of a first hop before its first event, and the ledger's word for them.
fn failures(model: &str) -> Vec<(Behaviour, String)> {
    let sse = |pieces: &[&str]| Behaviour::sse(pieces.iter().map(|piece| (*piece).to_owned()).collect::<Vec<_>>());
    let mut rows: Vec<(Behaviour, String)> = [408, 500, 502, 503, 504, 529, 401, 403, 404, 302]
        .into_iter()
        .map(|status| (Behaviour::status(status), format!("status_{status}")))
        .collect();
    rows.extend(
        [
            (Behaviour::status(429).header("retry-after-ms", "1"), "status_429"),
            (Behaviour::reset(), "connect_error"),
            (Behaviour::hang(), "timeout"),
            (sse(&[&error_event(model), "data: [DONE]\n\n"]), "error_first_event"),
            (sse(&[": hello\n\n", &ping(model), &error_event(model)]), "error_first_event"),
            (sse(&["data: {\"choi", "ces\": oops\n\n"]), "not_json"),
            (sse(&["data: [DONE]\n\n"]), if model.starts_with('m') { "empty_stream" } else { "not_json" }),
            (Behaviour::html(), "not_a_stream"),
            (Behaviour::raw(200, "application/json", r#"{"choices":[{"message":{"content":"hi"}}]}"#), "not_a_stream"),
            (Behaviour::raw(200, "text/event-stream", ""), "empty_stream"),
            (sse(&[]), "empty_stream"),
            (sse(&[]).ends(End::Closed), "empty_stream"),
            (sse(&[": hello\n\n", ": hello again\n\n", &ping(model)]), "empty_stream"),
            (sse(&[": hello\n\n"]).ends(End::Cut), "reset"),
            (sse(&[": hello\n\n", &ping(model)]).ends(End::Never), "timeout"),
        ]
        .map(|(behaviour, word)| (behaviour, word.to_owned())),
    );
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn every_failure_before_the_first_event_goes_on_to_the_next() {
    let (stack, _refusing) = stack("router").await;
    let key = stack.key().await;
    for (ask, first, second) in [
        (Ask::Chat, "m1", "m2"),
        (Ask::Messages, "a1", "a2"),
        (Ask::Chat, "a1", "m2"),
        (Ask::Messages, "m1", "a2"),
        (Ask::Chat, "m1", "a2"),
    ] {
        for (number, (behaviour, word)) in failures(first).into_iter().enumerate() {
            let row = format!("{ask:?} over {first}: {word} ({number})");
            stack.mocks.first.next(first, [behaviour]);
            let answer = stack.streamed(&ask.stream(&key, &format!("{first}-{second}"), &row)).await;
            let answer = if answer.status == 200 { answer } else { panic!("{row}: {}", answer.raw()) }.whole();
            assert_eq!(answer.header("x-proxium-model"), Some(second), "{row}");
            assert_eq!(answer.header("x-proxium-attempts"), Some("2"), "{row}");
            assert_eq!(answer.text(), format!("You said: {row}"));
            assert_eq!(attempts(&stack, &key, &answer).await, format!("{first} {word}, {second} ok"));
        }
    }
    let answer = stack.streamed(&Ask::Chat.stream(&key, "gone-a2", "is it gone?")).await.whole();
    assert_eq!(attempts(&stack, &key, &answer).await, "gone connect_error, a2 ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_callout_path_fails_over_as_well() {
    let (stack, _refusing) = stack("callout").await;
    let key = stack.key().await;
    for (ask, first, second) in [(Ask::Chat, "m1", "a2"), (Ask::Messages, "a1", "m2")] {
        for (behaviour, word) in [
            (Behaviour::status(500), "status_500"),
            (Behaviour::status(429).header("retry-after-ms", "1"), "status_429"),
            (Behaviour::status(401), "status_401"),
            (Behaviour::status(404), "status_404"),
            (Behaviour::reset(), "reset"),
            (Behaviour::error_in_200(), "error_in_200"),
            (Behaviour::html(), "not_json"),
            (Behaviour::empty(), "empty_body"),
            (Behaviour::sse(["data: [DONE]\n\n"]), "not_json"),
        ] {
            stack.mocks.first.next(first, [behaviour]);
            let answer = stack.streamed(&ask.stream(&key, &format!("{first}-{second}"), word)).await.whole();
            assert_eq!(answer.text(), format!("You said: {word}"));
            assert_eq!(attempts(&stack, &key, &answer).await, format!("{first} {word}, {second} ok"));
        }
    }
    let answer = stack.streamed(&Ask::Messages.stream(&key, "gone-m2", "is it gone?")).await.whole();
    assert_eq!(attempts(&stack, &key, &answer).await, "gone connect_error, m2 ok");
}

async fn a_refusal_of_the_request_is_returned(path: &str) {
    let (stack, _refusing) = stack(path).await;
    let key = stack.key().await;
    for status in [400, 413, 422, 409] {
        let openai = format!(
            "{{\"error\" : {{\"message\":\"said by the provider\", \"type\":\"invalid_request_error\",\"code\":null,\"param\":\"x{status}\"}}}}"
        );
        let anthropic = format!(
            "{{\"type\":\"error\" , \"error\":{{\"type\":\"invalid_request_error\",\"message\":\"said by the provider\"}},\"request_id\":\"r{status}\"}}"
        );
        for ask in BOTH {
            for (model, second, body) in [("m1", "m2", &openai), ("a1", "a2", &anthropic)] {
                let row = format!("{path}: {ask:?} over {model}: {status}");
                stack.mocks.first.next(model, [Behaviour::raw(status, "application/json", body.as_str()).header("x-request-id", "theirs")]);
                let answer = stack.streamed(&ask.stream(&key, &format!("{model}-{second}"), "hello")).await;
                let json = answer.json_answer(status);
                assert_eq!(answer.header("x-request-id"), Some("theirs"), "{row}");
                assert_eq!(answer.header("x-proxium-model"), Some(model), "{row}");
                if (ask == Ask::Chat) == (model == "m1") {
                    assert_eq!(answer.raw(), *body, "{row}");
                } else {
                    assert_eq!(json["type"] == "error", ask == Ask::Messages, "{row}: {json}");
                    assert_eq!(json["error"]["message"], "said by the provider", "{row}: {json}");
                }
                given_back(&stack, &key).await;
            }
        }
    }
    assert_eq!(stack.mocks.second.calls(ANY), 0);

    // A 404 is handed on only if nobody else answers.
    for (ask, model) in [(Ask::Chat, "m1"), (Ask::Messages, "a1")] {
        stack.mocks.first.next(model, [Behaviour::raw(404, "application/json", "{\"error\":{\"message\":\"no such model\"}}")]);
        let answer = stack.streamed(&ask.stream(&key, model, "hello")).await;
        assert_eq!(answer.json_answer(404)["error"]["message"], "no such model");
        given_back(&stack, &key).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_request_itself_is_returned_as_json_and_costs_nothing() {
    a_refusal_of_the_request_is_returned("router").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_request_itself_is_returned_on_the_callout_path_too() {
    a_refusal_of_the_request_is_returned("callout").await;
}

async fn a_failed_chain_is_told_in_the_callers_words(path: &str) {
    let (stack, _refusing) = stack(path).await;
    let key = stack.key().await;
    let message = |json: &serde_json::Value| json["error"]["message"].as_str().unwrap_or_default().to_owned();
    for ask in BOTH {
        stack.mocks.first.next("m1", [Behaviour::status(500).header("retry-after", "40")]);
        stack.mocks.second.next("a2", [Behaviour::status(503).header("retry-after", "9")]);
        let failed = stack.streamed(&ask.stream(&key, "m1-a2", "hello")).await;
        let json = failed.json_answer(502);
        ask.is_error(&json, "providers_failed");
        assert_eq!(message(&json), "No model could answer (m1: status_500; a2: status_503). Try again later.");
        assert_eq!(failed.header("retry-after"), Some("9"));
        given_back(&stack, &key).await;
    }
    for (ask, first, second) in [(Ask::Chat, "m1", "m2"), (Ask::Messages, "a1", "a2")] {
        let busy = |ms| Behaviour::status(429).header("retry-after-ms", ms);
        stack.mocks.first.next(first, [busy("30000")]);
        stack.mocks.second.next(second, [busy("20000")]);
        let chain = format!("{first}-{second}");
        let failed = stack.streamed(&ask.stream(&key, &chain, "hello")).await;
        ask.is_error(&failed.json_answer(429), "providers_failed");
        assert_eq!(failed.header("retry-after"), Some("20"));
        let failed = stack.streamed(&ask.stream(&key, &chain, "hello")).await;
        let json = failed.json_answer(503);
        ask.is_error(&json, "providers_failed");
        assert_eq!(message(&json), format!("No model could answer ({first}: resting; {second}: resting). Try again later."));
        given_back(&stack, &key).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_failed_whole_is_told_in_the_callers_words() {
    a_failed_chain_is_told_in_the_callers_words("router").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_failed_whole_is_told_in_the_callers_words_on_the_callout_path() {
    a_failed_chain_is_told_in_the_callers_words("callout").await;
}

async fn a_deadline_over_hung_providers(path: &str) {
    let (stack, _refusing) = stack(path).await;
    let key = stack.key().await;
    for (ask, chain) in [(Ask::Chat, "m1-a2"), (Ask::Messages, "m1-a2"), (Ask::Messages, "a1-m2-a3"), (Ask::Chat, "m1")] {
        for mock in [&stack.mocks.first, &stack.mocks.second, &stack.mocks.third] {
            mock.always(ANY, Behaviour::hang());
        }
        let begun = Instant::now();
        let call = ask.stream(&key, chain, "hello").header("x-proxium-timeout-ms", "600");
        let failed = stack.streamed(&call).await;
        ask.is_error(&failed.json_answer(502), "deadline_exceeded");
        let took = begun.elapsed();
        println!("{path}: {chain} with a deadline of 600 ms took {took:?}");
        assert!(took >= Duration::from_millis(600) && took < Duration::from_millis(1_200), "{path}: {ask:?} over {chain}: {took:?}");
        // The hung first entry left time for the second.
        let second = if chain.contains("a2") { "a2" } else { "m2" };
        if chain != "m1" {
            assert_eq!(stack.mocks.second.calls(second), 1, "{path}: {ask:?} over {chain}");
        }
        stack.mocks.second.forget();
    }
    // A caller's short deadline does not open a breaker for others, and pays the input of what it cut.
    let ledger = eventually("all is settled", BOUND, || async {
        let ledger = stack.ledger(&key.project).await;
        if ledger.len() == 4 { Ok(ledger) } else { Err(ledger) }
    });
    for record in ledger.await {
        assert_eq!((record["abandoned"].as_str(), record["output_tokens"].as_str()), ("1", "0"), "{record:?}");
    }
    stack.closed_books(&key, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_is_over_all_hung_providers() {
    a_deadline_over_hung_providers("router").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_is_over_all_hung_providers_on_the_callout_path() {
    a_deadline_over_hung_providers("callout").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capped_key_gets_a_clean_429_before_any_byte() {
    let (stack, _refusing) = stack("router").await;
    for (ask, model) in [(Ask::Chat, "m1"), (Ask::Messages, "m1"), (Ask::Messages, "a1")] {
        let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 1}})).await;
        let first = stack.streamed(&ask.stream(&key, model, "first")).await.whole();
        assert_eq!(first.header("x-ratelimit-remaining-requests"), Some("0"));
        let capped = stack.streamed(&ask.stream(&key, model, "second")).await;
        let json = capped.json_answer(429);
        ask.is_error(&json, "tenant_capped");
        assert!(capped.header("retry-after").is_some() && capped.header("x-ratelimit-limit-requests") == Some("1"));
    }
    assert_eq!(stack.mocks.first.calls(ANY), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_router_finds_no_host_callouts_go_on() {
    let (stack, _refusing) = stack("router").await;
    let key = stack.key().await;
    for ask in BOTH {
        let answer = stack.streamed(&ask.stream(&key, "nowhere-m2", "to m2")).await.whole();
        assert_eq!((answer.text().as_str(), answer.header("x-proxium-model")), ("You said: to m2", Some("m2")));
        assert_eq!(attempts(&stack, &key, &answer).await, "nowhere connect_error, m2 ok");

        stack.mocks.first.next("m1", [Behaviour::status(500)]);
        let answer = stack.streamed(&ask.stream(&key, "m1-nowhere-a3", "to a3")).await.whole();
        assert_eq!((answer.text().as_str(), answer.header("x-proxium-model")), ("You said: to a3", Some("a3")));
        assert_eq!(attempts(&stack, &key, &answer).await, "m1 status_500, nowhere connect_error, a3 ok");

        stack.mocks.first.next("m1", [Behaviour::hang()]);
        let answer = stack.streamed(&ask.stream(&key, "m1-nowhere-a3", "hung, to a3")).await.whole();
        assert_eq!(attempts(&stack, &key, &answer).await, "m1 timeout, nowhere connect_error, a3 ok");

        // Nobody is left: the failures are told, in JSON.
        stack.mocks.first.next("m1", [Behaviour::status(404)]);
        let failed = stack.streamed(&ask.stream(&key, "m1-nowhere", "nobody")).await;
        let json = failed.json_answer(502);
        ask.is_error(&json, "providers_failed");
        assert_eq!(json["error"]["message"], "No model could answer (m1: status_404; nowhere: connect_error). Try again later.");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_cluster_is_full_callouts_go_on() {
    let (stack, _refusing) = stack("router").await;
    let key = stack.key().await;
    // No request may wait for a connection to the first provider's stream clusters any more.
    let path = stack.envoys[0].files().join("cds.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut clusters: Vec<String> = text.split("  - \"@type\"").map(str::to_owned).collect();
    for cluster in clusters
        .iter_mut()
        .filter(|cluster| cluster.contains("proxium-upstream") && cluster.contains(&stack.mocks.first.addr().port().to_string()))
    {
        *cluster = cluster.replace("max_pending_requests: 10000", "max_pending_requests: 0");
    }
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, clusters.join("  - \"@type\"")).and_then(|()| std::fs::rename(&fresh, &path)).unwrap();
    eventually("the clusters are full", BOUND, || async {
        stack.envoys[0].admin("/config_dump").await.contains("\"max_pending_requests\": 0")
    })
    .await;
    for (ask, chain, to) in [(Ask::Chat, "m1-m2", "m1"), (Ask::Messages, "a1-a2", "a1")] {
        let answer = stack.streamed(&ask.stream(&key, chain, "hello")).await.whole();
        assert_eq!(answer.header("x-proxium-model"), Some(to), "by a callout, whose cluster is another");
        assert_eq!(answer.text(), "You said: hello");
        assert!(stack.mocks.first.requests().pop().unwrap().json().get("stream").is_none(), "it was a callout");
        stack.settled(&key.project, &answer.answer()).await;
    }
    stack.closed_books(&key, 2).await;
}
