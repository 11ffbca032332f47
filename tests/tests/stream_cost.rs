//! What a stream costs: the same as its unary twin, whoever asked for usage and however the provider tells it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::{Behaviour, End as ProviderEnd};
use proxium_e2e::{Ask, BOTH, BOUND, Key, Mocks, Stack, catalog, eventually, streamed};
use serde_json::{Value, json};
use std::collections::HashMap;

fn with_an_alias(mocks: &Mocks) -> String {
    let alias = "models:\n  alias: {provider: first, upstream: vendor/m-2026, price_usd_per_mtok: {input: 5, output: 50}, max_output_tokens: 100}\n";
    catalog::both_dialects(mocks).replacen("models:\n", alias, 1) + "  name: [alias]\n"
}

async fn counted_key(stack: &Stack) -> Key {
    let ceilings = json!({"calls_per_hour": 1000, "requests_per_minute": 1000, "tokens_per_minute": 10_000_000});
    stack.key_with(json!({"monthly_cap_usd": 100}), json!({"ceilings": ceilings})).await
}

async fn records(stack: &Stack, key: &Key, count: usize) -> Vec<HashMap<String, String>> {
    eventually("the ledger records", BOUND, || async {
        let ledger = stack.ledger(&key.project).await;
        if ledger.len() == count { Ok(ledger) } else { Err(ledger) }
    })
    .await
}

fn openai(input: u64, cached: u64, output: u64) -> Value {
    json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output, "prompt_tokens_details": {"cached_tokens": cached}})
}

fn anthropic(input: u64, written: u64, read: u64, output: u64) -> Value {
    json!({"input_tokens": input, "cache_creation_input_tokens": written, "cache_read_input_tokens": read, "output_tokens": output})
}

async fn a_stream_costs_what_its_unary_twin_costs(path: &str) {
    let stack = Stack::builder().catalog(catalog::both_dialects).render("--streams", path).start().await;
    // At 1 USD a million in, 0.1 cached, 2 written, 10 out; tokens: input, cached, written, output.
    let rows = [
        ("m1", openai(1_000, 400, 50), 600 * 1_000 + 400 * 100 + 50 * 10_000, [600, 400, 0, 50]),
        ("m1", openai(12, 0, 4), 52_000, [12, 0, 0, 4]),
        ("m1", openai(7, 9, 1), 700 + 10_000, [0, 7, 0, 1]),
        ("m1", openai(0, 0, 0), 0, [0, 0, 0, 0]),
        ("a1", anthropic(9, 0, 0, 3), 39_000, [9, 0, 0, 3]),
        ("a1", anthropic(3, 12_304, 0, 550), 3_000 + 12_304 * 2_000 + 5_500_000, [3, 0, 12_304, 550]),
        ("a1", anthropic(4, 0, 2_455, 23), 4_000 + 245_500 + 230_000, [4, 2_455, 0, 23]),
        ("a1", anthropic(0, 0, 0, 0), 0, [0, 0, 0, 0]),
    ];
    for ask in BOTH {
        for (model, usage, cost, tokens) in &rows {
            let row = format!("{path}: {ask:?} over {model}: {usage}");
            let key = counted_key(&stack).await;
            for mode in ["unary", "streamed"] {
                stack.mocks.first.next(model, [Behaviour::answer().usage(usage.clone())]);
                let body = ask.body(model, mode);
                let body = if mode == "unary" { body } else { streamed(body) };
                let answer = stack.streamed(&ask.call(&key, &body)).await;
                assert_eq!((answer.status, answer.is_terminated()), (200, mode == "streamed"), "{row}: {}", answer.raw());
            }
            let sum: u64 = tokens.iter().sum();
            for record in records(&stack, &key, 2).await {
                let names = ["input_tokens", "cached_input_tokens", "cache_write_5m_tokens", "output_tokens"];
                assert_eq!(names.map(|name| record[name].parse::<u64>().unwrap()), *tokens, "{row}: {record:?}");
                let names = ["kind", "model", "cost_nano_usd", "calls", "tokens", "estimated", "abandoned"];
                let expected = ["call", model, &cost.to_string(), "1", &sum.to_string(), "0", "0"];
                assert_eq!(names.map(|name| record[name].as_str()), expected, "{row}");
            }
            let books = stack.closed_books(&key, 2).await;
            assert_eq!((books.spend, books.tokens), (2 * cost, 2 * sum as i64), "{row}");
        }
        // Nothing told: an estimate, and flagged.
        for model in ["m1", "a1"] {
            let key = counted_key(&stack).await;
            stack.mocks.first.next(model, [Behaviour::answer().text("thirteen here").without_usage()]);
            let _ = stack.streamed(&ask.stream(&key, model, "sixteen letters.")).await.whole();
            let record = records(&stack, &key, 1).await.remove(0);
            assert_eq!(record["estimated"], "1", "{path}: {ask:?} over {model}: {record:?}");
            let tokens = ["input_tokens", "output_tokens"].map(|name| record[name].parse::<i64>().unwrap());
            assert!(tokens[0] >= 6 && tokens[1] >= 5, "{path}: {ask:?} over {model}: {tokens:?}");
            assert_eq!(record["cost_nano_usd"], (tokens[0] * 1_000 + tokens[1] * 10_000).to_string());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_as_its_unary_twin() {
    a_stream_costs_what_its_unary_twin_costs("router").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_as_its_unary_twin_on_the_callout_path() {
    a_stream_costs_what_its_unary_twin_costs("callout").await;
}

async fn usage_is_seen_by_who_asked(path: &str) {
    let stack = Stack::builder().catalog(catalog::both_dialects).render("--streams", path).start().await;
    let key = counted_key(&stack).await;
    let options = [
        (None, false),
        (Some(json!(null)), false),
        (Some(json!({})), false),
        (Some(json!({"include_usage": false})), false),
        (Some(json!({"include_usage": false, "include_obfuscation": false})), false),
        (Some(json!({"include_usage": true})), true),
    ];
    let mut count = 0;
    for (model, usage) in [("m1", openai(12, 2, 4)), ("a1", anthropic(10, 0, 2, 4))] {
        for (number, (options, wanted)) in options.iter().enumerate() {
            let row = format!("{path}: {model} with {options:?}");
            stack.mocks.first.next(model, [Behaviour::answer().usage(usage.clone())]);
            let mut body = streamed(Ask::Chat.body(model, &format!("number {number}")));
            if let Some(options) = options {
                body["stream_options"] = options.clone();
            }
            let answer = stack.streamed(&Ask::Chat.call(&key, &body)).await.whole();
            let events = answer.json();
            let usages: Vec<&Value> = events.iter().filter_map(|event| event.get("usage").filter(|usage| !usage.is_null())).collect();
            if *wanted {
                assert_eq!(usages.len(), 1, "{row}: {}", answer.raw());
                let (last, usage) = (events.last().unwrap(), usages[0]);
                assert_eq!(last["choices"], json!([]), "{row}: the last before [DONE]");
                let told = ["/prompt_tokens", "/completion_tokens", "/total_tokens", "/prompt_tokens_details/cached_tokens"];
                assert_eq!(told.map(|at| usage.pointer(at).and_then(Value::as_u64)), [12, 4, 16, 2].map(Some), "{row}: {usage}");
            } else {
                assert!(usages.is_empty(), "{row}: {}", answer.raw());
                assert!(events.iter().all(|event| event["choices"] != json!([])), "{row}: {}", answer.raw());
            }
            let sent = stack.mocks.first.requests().pop().unwrap().json();
            match (path, model) {
                ("router", "m1") => {
                    assert_eq!(sent["stream_options"]["include_usage"], true, "{row}: {sent}");
                    let other = options.as_ref().and_then(|options| options.get("include_obfuscation"));
                    assert_eq!(sent["stream_options"].get("include_obfuscation"), other, "{row}");
                }
                _ => assert!(sent.get("stream_options").is_none(), "{row}: {sent}"),
            }
            count += 1;
            let record = records(&stack, &key, count).await.pop().unwrap();
            let names = ["input_tokens", "cached_input_tokens", "output_tokens", "estimated"];
            assert_eq!(names.map(|name| record[name].as_str()), ["10", "2", "4", "0"], "{row}");
        }
    }
    // The last event but one of a message has all of it, also over OpenAI's.
    for (model, usage) in [("m1", openai(12, 0, 4)), ("a1", anthropic(12, 0, 0, 4))] {
        stack.mocks.first.next(model, [Behaviour::answer().usage(usage)]);
        let answer = stack.streamed(&Ask::Messages.stream(&key, model, "a message")).await.whole();
        let events = answer.json();
        let of = |kind: &str| events.iter().find(|event| event["type"] == kind).unwrap().clone();
        assert_eq!(of("message_delta")["usage"]["output_tokens"], 4, "{path}: {model}: {}", answer.raw());
        let input =
            [of("message_delta")["usage"]["input_tokens"].as_u64(), of("message_start")["message"]["usage"]["input_tokens"].as_u64()];
        assert!(input.contains(&Some(12)), "{path}: {model}: {}", answer.raw());
        if model == "m1" {
            assert_eq!(input[0], Some(12), "{path}: {}", answer.raw());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_always_asked_for_and_seen_by_who_asked() {
    usage_is_seen_by_who_asked("router").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_seen_by_who_asked_on_the_callout_path() {
    usage_is_seen_by_who_asked("callout").await;
}

fn chunk(content: &str, usage: Option<Value>) -> String {
    let mut chunk = json!({"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": null}]});
    if let Some(usage) = usage {
        chunk["usage"] = usage;
    }
    format!("data: {chunk}\n\n")
}

const STOP: &str = "data: {\"id\":\"1\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"id\":\"1\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

const MESSAGE: &str = "event: message_start\ndata: {\"type\": \"message_start\", \"message\": {\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"claude-x\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":84,\"output_tokens\":1}}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hé € 😀!\"}}\n\nevent: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":7}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

#[tokio::test(flavor = "multi_thread")]
async fn the_last_usage_of_a_stream_counts_and_none_is_summed() {
    let stack = Stack::builder().catalog(catalog::both_dialects).start().await;
    for ask in BOTH {
        let key = counted_key(&stack).await;
        let pieces = [
            chunk("one ", Some(openai(10, 0, 1))),
            chunk("two ", Some(openai(10, 0, 2))),
            chunk("three", Some(openai(10, 0, 3))),
            STOP.into(),
            "data: {\"id\":\"1\",\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":3}}\n\n".into(),
            DONE.into(),
        ];
        stack.mocks.first.next("m1", [Behaviour::sse(pieces)]);
        let answer = stack.streamed(&ask.stream(&key, "m1", "count")).await.whole();
        assert_eq!(answer.text(), "one two three");
        let record = records(&stack, &key, 1).await.remove(0);
        assert_eq!(["input_tokens", "output_tokens", "cost_nano_usd"].map(|name| record[name].as_str()), ["10", "3", "40000"], "{ask:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_pass_as_they_come_but_for_the_usage_that_nobody_asked_for() {
    let stack = Stack::builder().catalog(catalog::both_dialects).start().await;
    let key = counted_key(&stack).await;
    let kept = [
        ": PROCESSING\n\n".to_owned(),
        chunk("Hé €", None),
        ": ping\n\n".into(),
        "data:  {\"id\" : \"1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" 😀!\"}}], \"extra\": 1.50}\n\n".into(),
        STOP.into(),
    ];
    let mut count = 0;
    for line_feed in ["\n", "\r\n", "\r"] {
        let end = format!("{DONE}: bye\n");
        let whole = (kept.concat() + USAGE + &end).replace('\n', line_feed);
        let hidden = (kept.concat() + &end).replace('\n', line_feed);
        // In whole events, and byte by byte: a character of four bytes is split at each.
        for pieces in [vec![whole.clone().into_bytes()], whole.bytes().map(|byte| vec![byte]).collect()] {
            for (asked, expected) in [(true, &whole), (false, &hidden)] {
                let row = format!("{line_feed:?}, {} pieces, asked: {asked}", pieces.len());
                stack.mocks.first.next("m1", [Behaviour::sse(pieces.clone())]);
                let mut body = streamed(Ask::Chat.body("m1", &row));
                body["stream_options"] = json!({"include_usage": asked});
                let answer = stack.streamed(&Ask::Chat.call(&key, &body)).await.whole();
                assert_eq!(answer.raw(), *expected, "{row}");
                count += 1;
                let record = records(&stack, &key, count).await.pop().unwrap();
                assert_eq!(["input_tokens", "output_tokens", "estimated"].map(|name| record[name].as_str()), ["5", "3", "0"], "{row}");
                // And in the cache, and in the other dialect.
                stack.kept(&key.project, &answer.answer()).await;
                let hit = stack.streamed(&Ask::Chat.stream(&key, "m1", &row)).await.whole();
                assert_eq!((hit.header("x-proxium-cache"), hit.text().as_str()), (Some("hit"), "Hé € 😀!"), "{row}");
                stack.mocks.first.next("m1", [Behaviour::sse(pieces.clone())]);
                let other = stack.streamed(&Ask::Messages.stream(&key, "m1", &row)).await.whole();
                assert_eq!(other.text(), "Hé € 😀!", "{row}");
                assert!(!other.raw().contains(": ping") && !other.raw().contains("\r"), "{row}");
                count += 2;
            }
        }
        let whole = MESSAGE.replace('\n', line_feed);
        for pieces in [vec![whole.clone().into_bytes()], whole.bytes().map(|byte| vec![byte]).collect()] {
            let row = format!("a message: {line_feed:?}, {} pieces", pieces.len());
            stack.mocks.first.next("a1", [Behaviour::sse(pieces.clone())]);
            let answer = stack.streamed(&Ask::Messages.stream(&key, "a1", &row)).await.whole();
            assert_eq!(answer.raw(), whole, "{row}");
            stack.mocks.first.next("a1", [Behaviour::sse(pieces)]);
            let other = stack.streamed(&Ask::Chat.stream(&key, "a1", &row)).await.whole();
            assert_eq!(other.text(), "Hé € 😀!", "{row}");
            count += 2;
            // Each worker tells of its streams at a time of its own.
            let records = records(&stack, &key, count).await;
            for record in records.iter().filter(|record| record["model"] == "a1").rev().take(2) {
                assert_eq!(["input_tokens", "output_tokens", "estimated"].map(|name| record[name].as_str()), ["84", "7", "0"], "{row}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tokens_of_streams_fill_the_minute() {
    let stack = Stack::builder().catalog(catalog::both_dialects).start().await;
    for (ask, model, usage) in
        [(Ask::Chat, "m1", openai(100, 0, 50)), (Ask::Messages, "m1", openai(100, 0, 50)), (Ask::Messages, "a1", anthropic(100, 0, 0, 50))]
    {
        let key = stack.key_with(json!({}), json!({"ceilings": {"tokens_per_minute": 250}})).await;
        stack.mocks.first.always(model, Behaviour::answer().usage(usage));
        let call = |number: u32| {
            let mut body = streamed(ask.body(model, &format!("number {number}")));
            body["max_tokens"] = 20.into();
            ask.call(&key, &body)
        };
        for number in 0..2 {
            let answer = stack.streamed(&call(number)).await.whole();
            stack.settled(&key.project, &answer.answer()).await;
        }
        assert_eq!(stack.closed_books(&key, 2).await.tokens, 300, "an actual above its hold is recorded in full");
        let refused = stack.streamed(&call(2)).await;
        let json = refused.json_answer(429);
        ask.is_error(&json, "tenant_capped");
        assert_eq!(json["error"]["param"], "tokens_per_minute");
        stack.mocks.first.behave();
    }
    // A hold far above the actual is given back at the end of the stream.
    let key = stack.key_with(json!({}), json!({"ceilings": {"tokens_per_minute": 1_200}})).await;
    for number in 0..10 {
        let mut body = streamed(Ask::Chat.body("m1", &format!("short {number}")));
        body["max_tokens"] = 4_000.into();
        let answer = stack.streamed(&Ask::Chat.call(&key, &body)).await.whole();
        stack.settled(&key.project, &answer.answer()).await;
    }
    stack.closed_books(&key, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_stream_of_an_alias_has_the_price_of_its_model() {
    let stack = Stack::builder().catalog(with_an_alias).start().await;
    for (ask, asked) in [(Ask::Chat, "alias"), (Ask::Messages, "name")] {
        let key = counted_key(&stack).await;
        stack.mocks.first.next("vendor/m-2026", [Behaviour::answer().text("one two three four").broken(4, ProviderEnd::Cut)]);
        let answer = stack.streamed(&ask.stream(&key, asked, "hello")).await;
        assert_eq!(answer.text(), "one two three ");
        let record = records(&stack, &key, 1).await.remove(0);
        assert_eq!(["requested_model", "resolved_model", "model"].map(|name| record[name].as_str()), [asked, "alias", "alias"]);
        let input: i64 = record["input_tokens"].parse().unwrap();
        assert_eq!(record["cost_nano_usd"], (input * 5_000 + 5 * 50_000).to_string());
    }
}
