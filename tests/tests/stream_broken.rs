//! A stream that breaks after its first event: no failover, no terminator, the partial cost, a failure for the breaker, nothing cached.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::{ANY, Behaviour, End as ProviderEnd};
use proxium_e2e::{Ask, BOTH, BOUND, End, Key, Stack, Streamed, catalog, eventually};
use serde_json::json;
use std::collections::HashMap;

/// Many failures on purpose must not open a breaker.
const PATIENT: &str = "breaker: {consecutive_failures: 1000, min_requests: 1000}";
/// Up to the word "three" of `TEXT`: the role and three words; the message's and the block's start and three words.
const TEXT: &str = "one two three four five six";

fn events_to_three(model: &str) -> usize {
    if model.starts_with('m') { 4 } else { 5 }
}

async fn record(stack: &Stack, key: &Key, answer: &Streamed) -> HashMap<String, String> {
    let id = answer.header("x-proxium-request-id").unwrap();
    eventually("the ledger record", BOUND, || async { stack.ledger(&key.project).await.into_iter().find(|record| record["id"] == id) })
        .await
}

/// What must be true of every broken stream.
async fn is_broken(stack: &Stack, key: &Key, model: &str, answer: &Streamed, row: &str) {
    assert_eq!(answer.status, 200, "{row}");
    assert!(
        !answer.is_terminated() && !answer.raw().contains("[DONE]") && !answer.raw().contains("message_stop"),
        "{row}: {}",
        answer.raw()
    );
    // Only the error's `stop_reason`s and `finish_reason`s that the provider sent may be there, and it sent none.
    let finished = answer.json().iter().any(|event| {
        event.pointer("/choices/0/finish_reason").or_else(|| event.pointer("/delta/stop_reason")).is_some_and(|reason| !reason.is_null())
    });
    assert!(!finished, "{row}: {}", answer.raw());
    assert_eq!((answer.header("x-proxium-model"), answer.header("x-proxium-attempts")), (Some(model), Some("1")), "{row}");
    assert_eq!(stack.mocks.second.calls(ANY), 0, "{row}: no failover after the first event");

    let record = record(stack, key, answer).await;
    let names = ["kind", "model", "calls", "abandoned", "estimated"];
    assert_eq!(names.map(|name| record[name].as_str()), ["call", model, "1", "0", "1"], "{row}: {record:?}");
    assert!(record["attempts"].starts_with(&format!("{model} stream_broken ")), "{row}: {record:?}");
    // "one two three " is 14 bytes: 5 tokens at 10 USD a million. The input: told by Anthropic's first event, else estimated.
    let (input, output): (i64, i64) = (record["input_tokens"].parse().unwrap(), record["output_tokens"].parse().unwrap());
    assert_eq!(output, 5, "{row}: {record:?}");
    assert_eq!(record["cost_nano_usd"], (input * 1_000 + output * 10_000).to_string(), "{row}: {record:?}");
    if model.starts_with('a') {
        assert_eq!(input, 6, "{row}: {record:?}");
    } else {
        assert!((10..60).contains(&input), "{row}: {record:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_way_the_provider_ends_it() {
    let stack = Stack::builder().catalog(catalog::both_dialects).and_catalog(PATIENT).start().await;
    let mut calls = 0;
    let key =
        stack.key_with(json!({"monthly_cap_usd": 10}), json!({"ceilings": {"calls_per_hour": 1000, "tokens_per_minute": 1_000_000}})).await;
    for ask in BOTH {
        for (model, second) in [("m1", "m2"), ("a1", "a2")] {
            for (end, reaches) in [(ProviderEnd::Whole, End::Whole), (ProviderEnd::Closed, End::Whole), (ProviderEnd::Cut, End::Incomplete)]
            {
                let row = format!("{ask:?} over {model}: {end:?}");
                stack.mocks.first.next(model, [Behaviour::answer().text(TEXT).broken(events_to_three(model), end)]);
                let call = ask.stream(&key, &format!("{model}-{second}"), "is this stream going to break?");
                let answer = stack.streamed(&call).await;
                assert_eq!(answer.end, reaches, "{row}: {}", answer.raw());
                assert_eq!(answer.text(), "one two three ", "{row}");
                match reaches {
                    End::Whole => {
                        let last = answer.json().pop().unwrap();
                        ask.is_error(&last, "stream_broken");
                        assert_eq!(answer.events.last().unwrap().name == "error", ask == Ask::Messages, "{row}");
                    }
                    End::Incomplete => assert!(answer.error().is_none(), "{row}"),
                }
                is_broken(&stack, &key, model, &answer, &row).await;
                calls += 1;
            }
        }
    }
    stack.closed_books(&key, calls).await;

    // Nothing of it was kept: the same call is a miss, and the next a hit.
    for (ask, model) in [(Ask::Chat, "m1"), (Ask::Messages, "a1")] {
        for cache in ["miss", "hit"] {
            let answer = stack.streamed(&ask.stream(&key, model, "is this stream going to break?")).await.whole();
            assert_eq!(answer.header("x-proxium-cache"), Some(cache));
            if cache == "miss" {
                stack.kept(&key.project, &answer.answer()).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_middle_of_an_event() {
    let stack = Stack::builder().catalog(catalog::both_dialects).and_catalog(PATIENT).start().await;
    let key = stack.key().await;
    let chunk = |word: &str| format!("data: {}\n\n", json!({"id": "1", "choices": [{"index": 0, "delta": {"content": word}}]}));
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"a1\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":6,\"output_tokens\":1}}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
    let delta = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"one two three \"}}\n\n";
    let openai = vec![chunk("one two three "), "data: {\"id\":\"1\",\"choices\":[{\"index\":0,\"del".to_owned()];
    let anthropic = vec![format!("{start}{delta}"), "event: content_block_delta\ndata: {\"type\":\"content_bl".to_owned()];
    for ask in BOTH {
        for (model, pieces) in [("m1", &openai), ("a1", &anthropic)] {
            for end in [ProviderEnd::Whole, ProviderEnd::Closed] {
                let row = format!("{ask:?} over {model}: {end:?}");
                stack.mocks.first.next(model, [Behaviour::sse(pieces.clone()).ends(end)]);
                let answer = stack.streamed(&ask.stream(&key, model, "is this stream going to break?")).await;
                assert_eq!(answer.end, End::Whole, "{row}");
                // Half an event does not swallow the error.
                ask.is_error(&serde_json::from_str(&answer.events.last().unwrap().data).unwrap(), "stream_broken");
                is_broken(&stack, &key, model, &answer, &row).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn by_an_error_of_the_provider() {
    let stack = Stack::builder().catalog(catalog::both_dialects).and_catalog(PATIENT).start().await;
    let key = stack.key().await;
    let openai = [
        "data: {\"id\":\"1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one two three \"}}]}\n\n",
        "data: {\"error\":{\"message\":\"too busy\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n",
        "data: [DONE]\n\n",
    ];
    let anthropic = [
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"a1\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":6,\"output_tokens\":1}}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"one two three \"}}\n\n",
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"too busy\"}}\n\n",
        "",
    ];
    for ask in BOTH {
        for (model, pieces) in [("m1", openai), ("a1", anthropic)] {
            let row = format!("{ask:?} over {model}");
            stack.mocks.first.next(model, [Behaviour::sse(pieces).broken(2, ProviderEnd::Whole)]);
            let answer = stack.streamed(&ask.stream(&key, model, "is this stream going to break?")).await;
            let errors: Vec<_> = answer.json().into_iter().filter(|event| event.get("error").is_some()).collect();
            assert_eq!(errors.len(), 1, "{row}: {}", answer.raw());
            assert_eq!(errors[0]["error"]["message"], "too busy", "{row}");
            assert_eq!(errors[0]["type"] == "error", ask == Ask::Messages, "{row}");
            is_broken(&stack, &key, model, &answer, &row).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn and_the_breaker_counts_it() {
    let stack = Stack::builder()
        .catalog(catalog::both_dialects)
        .and_catalog("breaker: {consecutive_failures: 3, min_requests: 1000}")
        .start()
        .await;
    let key = stack.key().await;
    for (number, end) in [ProviderEnd::Whole, ProviderEnd::Cut, ProviderEnd::Closed].into_iter().enumerate() {
        // One cut stream, or two, leave it closed.
        stack.mocks.first.next("m1", [Behaviour::answer().text(TEXT).broken(4, end)]);
        let answer = stack.streamed(&Ask::Chat.stream(&key, "m1-m2", &format!("number {number}"))).await;
        assert_eq!((answer.header("x-proxium-model"), answer.is_terminated()), (Some("m1"), false));
        let record = record(&stack, &key, &answer).await;
        assert!(record["attempts"].starts_with("m1 stream_broken"), "{record:?}");
    }
    let answer = stack.streamed(&Ask::Chat.stream(&key, "m1-m2", "and now?")).await.whole();
    assert_eq!((answer.header("x-proxium-model"), answer.header("x-proxium-attempts")), (Some("m2"), Some("1")));
    assert_eq!(stack.mocks.first.calls("m1"), 3);
    let record = record(&stack, &key, &answer).await;
    assert!(record["attempts"].starts_with("m1 breaker_open 0, m2 ok") || record["attempts"].contains("m1 breaker_open"), "{record:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn by_the_callers_own_deadline() {
    let stack = Stack::builder()
        .catalog(catalog::both_dialects)
        .and_catalog("breaker: {consecutive_failures: 2, min_requests: 1000}")
        .start()
        .await;
    let key = stack.key().await;
    for ask in BOTH {
        for number in 0..3 {
            stack.mocks.first.next("m1", [Behaviour::answer().text(TEXT).broken(4, ProviderEnd::Never)]);
            let call = ask.stream(&key, "m1-m2", &format!("number {number}")).header("x-proxium-timeout-ms", "500");
            let answer = stack.streamed(&call).await;
            let row = format!("{ask:?} {number}: {}", answer.raw());
            assert_eq!((answer.status, answer.end), (200, End::Incomplete), "{row}");
            assert_eq!(answer.header("x-proxium-model"), Some("m1"), "a caller's short deadline does not open a breaker for others: {row}");
            assert!(!answer.is_terminated(), "{row}");
            let record = record(&stack, &key, &answer).await;
            let names = ["abandoned", "estimated", "output_tokens"];
            assert_eq!(names.map(|name| record[name].as_str()), ["1", "1", "5"], "{row}: {record:?}");
            assert!(record["attempts"].starts_with("m1 timeout "), "{row}: {record:?}");
        }
    }
    stack.closed_books(&key, 6).await;
    eventually("the provider is left alone", BOUND, || std::future::ready(stack.mocks.first.open_connections() == 0)).await;
}
