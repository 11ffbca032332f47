//! `/v1/responses`: whose a response is, streams on both data paths, and what goes to a provider that only speaks chat.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::{Behaviour, End};
use proxium_e2e::{Call, Key, Response, Stack, Streamed, catalog, streamed};
use serde_json::{Value, json};

fn ask(key: &Key, body: &Value) -> Call {
    Call::new("POST", "/v1/responses").header("authorization", &format!("Bearer {}", key.text)).json(body)
}

fn hello(model: &str) -> Value {
    json!({"model": model, "input": "three little words"})
}

fn after(model: &str, previous: &str) -> Value {
    json!({"model": model, "input": "and on", "previous_response_id": previous})
}

fn id(answer: &Response) -> String {
    answer.json()["id"].as_str().unwrap().to_owned()
}

async fn start(streams: &str) -> Stack {
    let builder = Stack::builder().catalog(catalog::every_endpoint).render("--streams", streams);
    builder.and_catalog("breaker: {consecutive_failures: 100, min_requests: 100}").start().await
}

/// The last event, and the data of it.
fn last(stream: &Streamed) -> (String, Value) {
    (stream.events.last().unwrap().name.clone(), stream.json().pop().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_belongs_to_the_project_the_provider_and_the_credential_that_made_it() {
    let stack = start("callout").await;
    let (own, other) = (stack.key().await, stack.key().await);
    let sibling = stack.admin().key_of(&own.project, json!({})).await;
    let of_first = id(&stack.call(&ask(&own, &hello("respond"))).await.expect(200));
    stack.mocks.first.next("p1", [Behaviour::status(500)]);
    let of_second = id(&stack.call(&ask(&own, &hello("respond"))).await.expect(200));
    let as_stream = stack.streamed(&ask(&own, &streamed(hello("p2")))).await;
    let of_stream = last(&as_stream).1["response"]["id"].as_str().unwrap().to_owned();

    // Each goes back to where it was made, whatever comes first in the chain, and to no other even if that fails.
    for (previous, model) in [(&of_first, "p1"), (&of_second, "p2"), (&of_stream, "p2")] {
        for key in [&own, &sibling] {
            let answer = stack.call(&ask(key, &after("respond", previous))).await.expect(200);
            assert_eq!(answer.header("x-proxium-model"), Some(model));
        }
        let mock = if model == "p1" { &stack.mocks.first } else { &stack.mocks.second };
        assert_eq!(mock.requests().pop().unwrap().json()["previous_response_id"], **previous);
        mock.next(model, [Behaviour::status(500)]);
        assert_eq!(stack.call(&ask(&own, &after("respond", previous))).await.expect(502).code(), "providers_failed");
        // Another project's is as good as none.
        let calls = (stack.mocks.first.calls("*"), stack.mocks.second.calls("*"));
        let refused = stack.call(&ask(&other, &after("respond", previous))).await.expect(404);
        assert_eq!((refused.code(), &refused.json()["error"]["param"]), ("response_not_found".into(), &json!("previous_response_id")));
        assert_eq!((stack.mocks.first.calls("*"), stack.mocks.second.calls("*")), calls);
    }
    let elsewhere = stack.call(&ask(&own, &after("p2", &of_first))).await.expect(400);
    assert_eq!(elsewhere.json()["error"]["param"], "previous_response_id");

    // With a credential of its own the project is on another account, where its earlier responses are not.
    let path = format!("/projects/{}/credentials/first", own.project);
    assert_eq!(stack.admin().put(&path, &json!({"secret": "own-credential"})).await.status, 204);
    let _ = stack.call(&ask(&own, &after("p1", &of_first))).await.expect(404);
    let _ = stack.call(&ask(&own, &after("p2", &of_second))).await.expect(200);
    let on_own = id(&stack.call(&ask(&own, &hello("p1"))).await.expect(200));
    let _ = stack.call(&ask(&own, &after("p1", &on_own))).await.expect(200);
    assert_eq!(stack.mocks.first.requests().pop().unwrap().header("authorization"), Some("Bearer own-credential"));
    // There it may also name what it stored.
    let file = json!({"model": "p1", "input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]});
    let _ = stack.call(&ask(&own, &file)).await.expect(200);
    for key in [&other, &own] {
        let mut file = file.clone();
        file["model"] = "p2".into();
        let refused = stack.call(&ask(key, &file)).await.expect(400);
        assert_eq!(refused.json()["error"]["param"], "input[0].content[0].file_id");
    }
    assert_eq!(stack.state(&own.project).await["held"], "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_metered_by_its_last_event_on_both_paths() {
    for streams in ["router", "callout"] {
        let stack = start(streams).await;
        for (model, price) in [("respond", 1), ("c3", 3), ("a3", 3)] {
            let key = stack.key().await;
            let parts =
                json!({"model": model, "input": [{"role": "user", "content": [{"type": "input_text", "text": "three little words"}]}]});
            let mut costs = Vec::new();
            // A string and parts, unary and streamed: metered the same.
            for body in [hello(model), parts.clone()] {
                let _ = stack.call(&ask(&key, &body)).await.expect(200);
                let stream = stack.streamed(&ask(&key, &streamed(body))).await;
                assert_eq!((stream.status, stream.end), (200, proxium_e2e::End::Whole), "{}", stream.raw());
                let (kind, data) = last(&stream);
                assert_eq!((kind.as_str(), data["response"]["usage"]["output_tokens"].as_u64()), ("response.completed", Some(5)));
                assert!(!stream.raw().contains("[DONE]"));
                costs.push(stream);
            }
            let books = stack.closed_books(&key, 4).await;
            let wanted = (price * (3 * 1_000 + 5 * 10_000)).to_string();
            assert!(books.ledger.iter().all(|record| record["cost_nano_usd"] == wanted && record["estimated"] == "0"), "{books:?}");
        }
        if streams == "router" {
            // The bytes of a native stream are the provider's own.
            let stream = stack.streamed(&ask(&stack.key().await, &streamed(hello("p1")))).await;
            assert!(stream.raw().starts_with("event: response.created\ndata: {"), "{}", stream.raw());
            assert_eq!(stack.mocks.first.requests().pop().unwrap().json(), streamed(hello("p1")));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_or_fails_is_told_and_settled_for_what_came() {
    let stack = start("router").await;
    let event = |kind: &str, more: Value| {
        let mut data = json!({"type": kind, "response": {"id": "resp_x", "status": "in_progress", "usage": null}});
        data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        format!("event: {kind}\ndata: {data}\n\n")
    };
    let usage = json!({"input_tokens": 3, "output_tokens": 2});
    let ended = |kind: &str, status: &str| event(kind, json!({"response": {"id": "resp_x", "status": status, "usage": usage}}));
    let begun = event("response.created", json!({})) + &event("response.output_text.delta", json!({"delta": "half an answer"}));
    let key = stack.key().await;

    // A failure before anything was said goes to the next entry.
    for first in [ended("response.failed", "failed"), "event: error\ndata: {\"type\":\"error\",\"message\":\"x\"}\n\n".to_owned()] {
        stack.mocks.first.next("p1", [Behaviour::sse([first])]);
        let stream = stack.streamed(&ask(&key, &streamed(hello("respond")))).await;
        assert_eq!((stream.header("x-proxium-model"), last(&stream).0.as_str()), (Some("p2"), "response.completed"));
    }
    let mut records = 2;
    for (events, ends, outcome, cost) in [
        (vec![begun.clone(), ended("response.failed", "failed")], "response.failed", "stream_broken", 3 * 1_000 + 2 * 10_000),
        (vec![begun.clone(), ended("response.incomplete", "incomplete")], "response.incomplete", "ok", 3 * 1_000 + 2 * 10_000),
        // Cut: our own error event; 10 tokens in and a third of 14 bytes out.
        (vec![begun.clone()], "error", "stream_broken", 10 * 1_000 + 5 * 10_000),
    ] {
        stack.mocks.first.next("p1", [Behaviour::sse(events)]);
        let stream = stack.streamed(&ask(&key, &streamed(hello("respond")))).await;
        let (kind, data) = last(&stream);
        assert_eq!((stream.header("x-proxium-model"), kind.as_str()), (Some("p1"), ends), "{}", stream.raw());
        if kind == "error" {
            assert_eq!(
                (&data["type"], &data["code"], &data["error"]["code"]),
                (&json!("error"), &json!("stream_broken"), &json!("stream_broken"))
            );
        }
        records += 1;
        let books = stack.closed_books(&key, records).await;
        let id = stream.header("x-proxium-request-id").unwrap();
        let record = books.ledger.iter().find(|record| record["id"] == id).unwrap();
        assert_eq!(record["cost_nano_usd"], cost.to_string(), "{ends}: {record:?}");
        assert!(record["attempts"].contains(outcome), "{record:?}");
    }
    // A translated stream that is cut ends in the same event.
    stack.mocks.third.next("c3", [Behaviour::answer().broken(3, End::Whole)]);
    let stream = stack.streamed(&ask(&key, &streamed(hello("c3")))).await;
    assert_eq!(last(&stream).1["error"]["code"], "stream_broken", "{}", stream.raw());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_only_speaks_chat_is_spoken_to_in_chat() {
    let stack = start("callout").await;
    let key = stack.key().await;
    let body = json!({
        "model": "c3", "instructions": "Be brief.", "input": "hello", "max_output_tokens": 9, "metadata": {"a": "b"},
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    });
    let answer = stack.call(&ask(&key, &body)).await.expect(200);
    assert_eq!((answer.header("x-proxium-model"), answer.header("x-proxium-dropped")), (Some("c3"), Some("metadata")));
    let told = answer.json();
    assert_eq!((&told["instructions"], &told["tools"], &told["metadata"]), (&body["instructions"], &body["tools"], &body["metadata"]));
    let sent = stack.mocks.third.requests().pop().unwrap();
    assert_eq!(sent.path, "/v1/chat/completions");
    assert_eq!(sent.json()["messages"], json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]));
    assert_eq!(sent.json()["max_completion_tokens"], 9);

    let _ = stack.call(&ask(&key, &hello("a3"))).await.expect(200);
    assert_eq!(stack.mocks.third.requests().pop().unwrap().path, "/v1/messages");

    let calls = stack.mocks.third.calls("*");
    for (more, param) in
        [(json!({"tools": [{"type": "web_search"}]}), "tools[0].type"), (json!({"conversation": "conv_1"}), "conversation")]
    {
        for model in ["c3", "a3"] {
            let mut body = hello(model);
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            assert_eq!(stack.call(&ask(&key, &body)).await.expect(400).json()["error"]["param"], param);
            assert_eq!(stack.streamed(&ask(&key, &streamed(body))).await.json_answer(400)["error"]["param"], param);
        }
    }
    assert_eq!(stack.mocks.third.calls("*"), calls);
    // A provider's own refusal comes back as it is.
    stack.mocks.third.next("c3", [Behaviour::status(422)]);
    assert_eq!(stack.call(&ask(&key, &hello("c3"))).await.expect(422).json()["error"]["type"], "mock_error");
}
