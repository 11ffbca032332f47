//! The endpoints of the short path: what they share with chat, for each of them; and that no other path reaches a provider.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::{ANY, Behaviour};
use proxium_e2e::{BOUND, Call, Key, Response, Stack, catalog, eventually};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// An endpoint, its chain and the chain's models, the member that is asked, and what an answer costs in nano-USD by either model.
struct Case {
    path: &'static str,
    chain: &'static str,
    models: [&'static str; 2],
    ask: fn(&str) -> Value,
    costs: [i64; 2],
    /// What the first model's price makes of a third of the body, where nobody counted.
    estimate: i64,
}

/// Three words; with `You said: ` before them the responses have five.
const CASES: [Case; 4] = [
    Case {
        path: "/v1/embeddings",
        chain: "embed",
        models: ["e1", "e2"],
        ask: |model| json!({"model": model, "input": "three little words"}),
        costs: [3 * 20, 3 * 130],
        estimate: 10 * 20,
    },
    Case {
        path: "/v1/moderations",
        chain: "moderate",
        models: ["o1", "o2"],
        ask: |model| json!({"model": model, "input": "three little words"}),
        costs: [0, 500_000],
        estimate: 0,
    },
    Case {
        path: "/v1/rerank",
        chain: "rank",
        models: ["r1", "r2"],
        ask: |model| json!({"model": model, "query": "little", "documents": ["a dog", "a little cat"]}),
        costs: [2_000_000, 6 * 50],
        estimate: 2_000_000,
    },
    Case {
        path: "/v1/responses",
        chain: "respond",
        models: ["p1", "p2"],
        ask: |model| json!({"model": model, "input": "three little words"}),
        costs: [3 * 1_000 + 5 * 10_000, 3 * 2_000 + 5 * 20_000],
        estimate: 10 * 1_000,
    },
];

impl Case {
    fn call(&self, key: &Key, model: &str) -> Call {
        Call::new("POST", self.path).header("authorization", &format!("Bearer {}", key.text)).json(&(self.ask)(model))
    }
}

async fn start(more: &str) -> Stack {
    Stack::builder().catalog(catalog::every_endpoint).and_catalog(more).start().await
}

fn usd(nano: i64) -> String {
    proxium_wire::NanoUsd(nano).to_string()
}

fn answered_by(answer: &Response) -> (Option<&str>, Option<&str>) {
    (answer.header("x-proxium-model"), answer.header("x-proxium-cost-usd"))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_endpoint_answers_fails_over_and_records_to_the_nano_usd() {
    let stack = start("breaker: {consecutive_failures: 100, min_requests: 100}").await;
    for case in CASES {
        let key = stack.key_with(json!({"monthly_cap_usd": 1}), json!({"ceilings": {"calls_per_hour": 100}})).await;
        let answer = stack.call(&case.call(&key, case.chain)).await.expect(200);
        assert_eq!(answered_by(&answer), (Some(case.models[0]), Some(usd(case.costs[0]).as_str())), "{}", case.path);
        assert_eq!((answer.header("x-proxium-cache"), answer.header("x-proxium-attempts")), (Some("bypass"), Some("1")));
        let sent = stack.mocks.first.requests().pop().unwrap();
        assert_eq!((sent.path.as_str(), &sent.json()["model"]), (case.path, &json!(case.models[0])));

        // The same call again is a call again; and what fails is followed by the next.
        for (failure, word) in [
            (Behaviour::status(500), "status_500"),
            (Behaviour::error_in_200(), "error_in_200"),
            (Behaviour::no_choices(), "no_"),
            (Behaviour::html(), "not_json"),
            (Behaviour::reset(), "reset"),
            // The last: it rests for a second.
            (Behaviour::status(429), "status_429"),
        ] {
            if case.path == "/v1/rerank" && word == "no_" {
                continue;
            }
            stack.mocks.first.next(case.models[0], [failure]);
            let answer = stack.call(&case.call(&key, case.chain).header("x-proxium-source", word)).await.expect(200);
            assert_eq!(answered_by(&answer), (Some(case.models[1]), Some(usd(case.costs[1]).as_str())), "{} {word}", case.path);
            stack.settled(&key.project, &answer).await;
            let record = stack.ledger(&key.project).await.pop().unwrap();
            assert!(record["attempts"].contains(word), "{record:?}");
        }
        let ledger = stack.ledger(&key.project).await;
        let books = stack.closed_books(&key, ledger.len()).await;
        assert!(books.spend >= case.costs[0] && books.count("call") == books.ledger.len());
        assert!(books.ledger.iter().all(|record| record["endpoint"] == case.path.trim_start_matches("/v1/")));
        assert!(books.ledger.iter().all(|record| record["requested_model"] == case.chain));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_limits_beats_every_other_and_reaches_no_provider() {
    let stack = start("").await;
    for case in CASES {
        for ceilings in [json!({"calls_per_hour": 0}), json!({"tokens_per_minute": 0})] {
            let capped = stack.key_with(json!({}), json!({"ceilings": ceilings, "allowed_models": ["m1"]})).await;
            for call in [
                case.call(&capped, case.chain),
                case.call(&capped, "nothing"),
                case.call(&capped, "m1"),
                Call::new("POST", case.path).header("authorization", &format!("Bearer {}", capped.text)).body("{"),
            ] {
                let refused = stack.call(&call).await.expect(429);
                assert_eq!(refused.code(), "tenant_capped", "{}", case.path);
            }
        }
        let broke = stack.key_with(json!({"monthly_cap_usd": "0.000000001"}), json!({})).await;
        let answer = stack.call(&case.call(&broke, case.chain)).await.expect(429);
        assert_eq!(answer.json()["error"]["param"], "monthly_cap");

        // With room, each fault has its own answer and gives back what it held.
        let narrow = stack.key_with(json!({}), json!({"allowed_models": ["m1"], "ceilings": {"calls_per_hour": 5}})).await;
        for (call, status) in [
            (case.call(&narrow, case.chain), 403),
            (case.call(&narrow, "nothing"), 404),
            (case.call(&narrow, "m1"), 404),
            (Call::new("POST", case.path).header("authorization", &format!("Bearer {}", narrow.text)).body("{"), 400),
        ] {
            let _ = stack.call(&call).await.expect(status);
        }
        let books = stack.closed_books(&narrow, 0).await;
        assert_eq!((books.calls, books.spend), (0, 0), "{}", case.path);
    }
    for mock in [&stack.mocks.first, &stack.mocks.second, &stack.mocks.third] {
        assert_eq!(mock.calls(ANY), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deadline_breaker_and_own_credential_work_as_they_do_for_chat() {
    let stack = start("breaker: {consecutive_failures: 3, cooldown: 60s}").await;
    for case in CASES {
        let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 100}})).await;
        let own = json!({"secret": "own-credential"});
        assert_eq!(stack.admin().put(&format!("/projects/{}/credentials/second", key.project), &own).await.status, 204);

        // A hung entry leaves time for the next; alone it ends at the caller's deadline, charged by its input.
        stack.mocks.first.always(case.models[0], Behaviour::hang());
        let begun = Instant::now();
        let answer = stack.call(&case.call(&key, case.chain).header("x-proxium-timeout-ms", "2000")).await.expect(200);
        assert_eq!(answer.header("x-proxium-model"), Some(case.models[1]), "{}", case.path);
        assert_eq!(stack.mocks.second.requests().pop().unwrap().header("authorization"), Some("Bearer own-credential"));
        let late = stack.call(&case.call(&key, case.models[0]).header("x-proxium-timeout-ms", "300")).await.expect(502);
        assert_eq!(late.code(), "deadline_exceeded");
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        let books = stack.closed_books(&key, 2).await;
        let abandoned = &books.ledger[1];
        assert_eq!((&abandoned["abandoned"], &abandoned["cost_nano_usd"]), (&"1".to_owned(), &case.estimate.to_string()), "{}", case.path);
    }

    // One credential, one breaker, whatever the endpoint.
    let key = stack.key().await;
    for case in &CASES[..3] {
        stack.mocks.first.always(case.models[0], Behaviour::status(500));
        let _ = stack.call(&case.call(&key, case.models[0])).await.expect(502);
    }
    stack.mocks.first.behave();
    eventually("the breaker is open", BOUND, || async {
        let refused = stack.call(&CASES[0].call(&key, "e1")).await;
        refused.status == 503 && refused.text().contains("breaker_open")
    })
    .await;
    stack.mocks.first.forget();
    for case in CASES {
        let answer = stack.call(&case.call(&key, case.chain)).await.expect(200);
        assert_eq!(answer.header("x-proxium-model"), Some(case.models[1]));
    }
    assert_eq!(stack.mocks.first.calls(ANY), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_and_a_token_have_their_prices_whoever_bills_them() {
    let stack = start("").await;
    let (key, rank) = (stack.key().await, &CASES[2]);
    let cohere = json!({"meta": {"billed_units": {"search_units": 3}}});
    for (model, told, cost, estimated) in [
        ("r1", cohere.clone(), 6_000_000, "0"),
        ("r1", json!({"usage": {"total_tokens": 5}}), 2_000_000, "1"),
        ("r2", json!({"usage": {"total_tokens": 1_000}}), 50_000, "0"),
        ("r2", json!({"usage": {"total_tokens": 0}}), 0, "0"),
        // A third of the 56 bytes of query and documents.
        ("r2", cohere, 19 * 50, "1"),
    ] {
        let mock = if model == "r1" { &stack.mocks.first } else { &stack.mocks.second };
        mock.next(model, [Behaviour::answer().usage(told)]);
        let answer = stack.call(&rank.call(&key, model)).await.expect(200);
        assert_eq!(answer.header("x-proxium-cost-usd"), Some(usd(cost).as_str()));
        stack.settled(&key.project, &answer).await;
        let record = stack.ledger(&key.project).await.pop().unwrap();
        assert_eq!((record["cost_nano_usd"].as_str(), record["estimated"].as_str()), (cost.to_string().as_str(), estimated));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_path_reaches_a_provider() {
    let stack = start("").await;
    let key = stack.key().await;
    let body = json!({"model": "p1", "input": "x", "messages": [{"role": "user", "content": "x"}], "stream": true});
    for (method, path) in [
        ("POST", "/v1/files"),
        ("POST", "/v1/images/generations"),
        ("POST", "/v1/audio/speech"),
        ("POST", "/v1/batches"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/responses/"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/input_tokens"),
        ("GET", "/v1/embeddings"),
        ("POST", "/v1/embeddings/x"),
        ("POST", "/v1//embeddings"),
        ("POST", "/v1/models"),
        ("DELETE", "/v1/models/p1"),
        ("GET", "/v1/models-of-others"),
        ("POST", "/v2/rerank"),
        ("POST", "/responses"),
    ] {
        let call = Call::new(method, path).header("authorization", &format!("Bearer {}", key.text)).json(&body);
        assert_eq!(stack.call(&call).await.status, 404, "{method} {path}");
    }
    for mock in [&stack.mocks.first, &stack.mocks.second, &stack.mocks.third] {
        assert_eq!(mock.calls(ANY), 0);
    }
}
