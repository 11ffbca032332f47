//! What a call costs, to the nano-USD, and who pays when its caller leaves.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand};
use proxium::mock_provider::{ANY, Behaviour, Mock};
use proxium::store::name;
use proxium_e2e::{BOUND, Call, Key, Mocks, Response, Stack, catalog, chat, eventually};
use serde_json::{Value, json};
use std::collections::HashMap;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Beside `m1` to `m3`, a model of each way to be priced. `alias` is sent under another name; `fine` costs half a nano-USD a token.
fn priced(mocks: &Mocks) -> String {
    let models = "models:
  thinking: {provider: first, price_usd_per_mtok: {input: 1, output: 10, reasoning_output: 4}}
  per-call: {provider: first, price_usd_per_mtok: {input: 1, output: 10}, price_usd_per_call: 0.0123456789}
  free: {provider: first, free: true}
  fine: {provider: first, price_usd_per_mtok: {input: 0.0005, output: 0.000499}}
  alias: {provider: first, upstream: vendor/model-2026, price_usd_per_mtok: {input: 5, output: 50}}\n";
    catalog::three_providers(mocks).replacen("models:\n", models, 1) + "  free-then-m2: [free, m2]\n"
}

async fn counted_key(stack: &Stack) -> Key {
    let ceilings = json!({"calls_per_hour": 100, "requests_per_minute": 100, "tokens_per_minute": 10_000_000});
    stack.key_with(json!({"monthly_cap_usd": 100}), json!({"ceilings": ceilings})).await
}

fn usage(input: u64, cached: u64, output: u64, reasoning: u64) -> Value {
    json!({
        "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
        "prompt_tokens_details": {"cached_tokens": cached}, "completion_tokens_details": {"reasoning_tokens": reasoning},
    })
}

async fn records(stack: &Stack, key: &Key, count: usize) -> Vec<HashMap<String, String>> {
    eventually("the ledger records", BOUND, || async {
        let ledger = stack.ledger(&key.project).await;
        if ledger.len() == count { Ok(ledger) } else { Err(ledger) }
    })
    .await
}

async fn state(stack: &Stack, key: &Key) -> [String; 2] {
    let state = stack.state(&key.project).await;
    ["spend", "held"].map(|name| state[name].clone())
}

async fn counted(stack: &Stack, key: &Key) -> [u64; 3] {
    let windows = stack.windows(key).await;
    ["c_sum", "r_sum", "t_sum"].map(|sum| windows.get(sum).map_or(0, |text| text.parse().unwrap()))
}

fn told(record: &HashMap<String, String>, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| record[*name].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_price_is_exact() {
    let stack = Stack::builder().catalog(priced).start().await;
    let echo = Behaviour::answer;
    // Model, answer, its cost in nano-USD by hand, tokens, whether it is an estimate.
    let rows = [
        // 600 x 1,000 + 400 x 100 + 50 x 10,000
        ("m1", echo().usage(usage(1_000, 400, 50, 0)), 1_140_000, 1_050, "0"),
        // All of it from the cache.
        ("m1", echo().usage(usage(7, 7, 1, 0)), 10_700, 8, "0"),
        // More from the cache than there was: never negative.
        ("m1", echo().usage(usage(7, 9, 1, 0)), 10_700, 8, "0"),
        // No details at all.
        ("m1", echo().usage(json!({"prompt_tokens": 3, "completion_tokens": 2})), 23_000, 5, "0"),
        // 100 x 1,000 + 40 x 10,000 + 60 x 4,000
        ("thinking", echo().usage(usage(100, 0, 100, 60)), 740_000, 200, "0"),
        // Reasoning without a price of its own is output: 100 x 1,000 + 100 x 10,000
        ("m1", echo().usage(usage(100, 0, 100, 60)), 1_100_000, 200, "0"),
        // 12,345,678.9 + 10 x 1,000 + 1 x 10,000, rounded once
        ("per-call", echo().usage(usage(10, 0, 1, 0)), 12_365_679, 11, "0"),
        ("free", echo().usage(usage(1_000_000, 0, 1_000_000, 0)), 0, 2_000_000, "0"),
        // 0.5 rounds up, 0.499 does not.
        ("fine", echo().usage(usage(1, 0, 0, 0)), 1, 1, "0"),
        ("fine", echo().usage(usage(0, 0, 1, 0)), 0, 1, "0"),
        // 0.5 + 0.499 twice: summed before it is rounded.
        ("fine", echo().usage(usage(2, 0, 2, 0)), 2, 4, "0"),
        // A zero that was told is a zero.
        ("m1", echo().usage(usage(0, 0, 0, 0)), 0, 0, "0"),
        // 2 x 5,000 + 4 x 50,000, at the price of the name in the catalog.
        ("alias", echo().usage(usage(2, 0, 4, 0)), 210_000, 6, "0"),
        // Nothing told: 59 bytes of input are 20 tokens, 61 of output 21.
        ("m1", echo().text("thirteen here").without_usage(), 20 * 1_000 + 21 * 10_000, 41, "1"),
        ("m1", echo().text("thirteen here").usage(json!({})), 20 * 1_000 + 21 * 10_000, 41, "1"),
        ("m1", echo().text("thirteen here").usage(json!("none")), 20 * 1_000 + 21 * 10_000, 41, "1"),
        ("m1", echo().text("thirteen here").usage(json!({"prompt_tokens": -1, "completion_tokens": 2})), 230_000, 41, "1"),
        ("free", echo().text("thirteen here").without_usage(), 0, 41, "1"),
    ];
    for (model, behaviour, cost, tokens, estimated) in rows {
        let row = format!("{model}: {behaviour:?}");
        let key = counted_key(&stack).await;
        let upstream = if model == "alias" { "vendor/model-2026" } else { model };
        stack.mocks.first.next(upstream, [behaviour]);
        let answer = stack.chat(&key, &chat(model, "sixteen letters.")).await.expect(200);
        let usd = proxium_wire::NanoUsd(cost).to_string();
        assert_eq!(answer.header("x-proxium-cost-usd"), Some(usd.as_str()), "{row}");
        let record = records(&stack, &key, 1).await.remove(0);
        let names = ["kind", "model", "cost_nano_usd", "calls", "tokens", "estimated", "abandoned"];
        assert_eq!(told(&record, &names), ["call", model, &cost.to_string(), "1", &tokens.to_string(), estimated, "0"], "{row}");
        assert_eq!(state(&stack, &key).await, [cost.to_string(), "0".into()], "{row}");
        assert_eq!(counted(&stack, &key).await, [1, 1, tokens], "{row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_kept_by_kind_and_a_failover_is_priced_by_who_answered() {
    let stack = Stack::builder().catalog(priced).start().await;
    let key = counted_key(&stack).await;
    stack.mocks.first.next("m1", [Behaviour::status(500)]);
    stack.mocks.second.next("m2", [Behaviour::answer().usage(usage(1_000, 400, 50, 20))]);
    let answer =
        stack.call(&Call::chat(&key, &chat("fast", "hello")).header("x-proxium-user", "u-1").header("x-proxium-source", "app")).await;
    // 600 x 2,000 + 400 x 200 + 50 x 20,000
    assert_eq!(answer.expect(200).header("x-proxium-cost-usd"), Some("0.00228"));
    let record = records(&stack, &key, 1).await.remove(0);
    let names = ["requested_model", "resolved_model", "model", "provider", "endpoint", "end_user", "source", "key_id", "cost_nano_usd"];
    assert_eq!(told(&record, &names), ["fast", "m1", "m2", "second", "chat", "u-1", "app", &key.id, "2280000"]);
    let names = ["input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "tokens"];
    assert_eq!(told(&record, &names), ["600", "400", "50", "20", "1050"]);
    let id = record["id"].clone();

    // A free first entry that fails: the second is paid for.
    stack.mocks.first.next("free", [Behaviour::status(500)]);
    stack.mocks.second.next("m2", [Behaviour::answer().usage(usage(10, 0, 10, 0))]);
    let answer = stack.chat(&key, &chat("free-then-m2", "hello")).await.expect(200);
    assert_eq!(answer.header("x-proxium-cost-usd"), Some("0.00022"));
    let ledger = records(&stack, &key, 2).await;
    assert_eq!(answer.header("x-proxium-request-id"), Some(ledger[1]["id"].as_str()));
    assert_ne!(id, ledger[1]["id"]);
    assert_eq!(state(&stack, &key).await, ["2500000", "0"]);

    // A hit costs nothing, whatever the first answer did.
    let hit = stack.chat(&key, &chat("m2", "hello")).await.expect(200);
    assert_eq!((hit.header("x-proxium-cache"), hit.header("x-proxium-cost-usd")), (Some("hit"), Some("0")));
    let record = records(&stack, &key, 3).await.remove(2);
    assert_eq!(told(&record, &["kind", "cost_nano_usd", "calls", "tokens", "cached"]), ["hit", "0", "0", "0", "1"]);
    assert_eq!(state(&stack, &key).await, ["2500000", "0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_gzip_gets_a_plain_answer_that_was_counted() {
    let stack = Stack::start().await;
    let key = counted_key(&stack).await;
    stack.mocks.first.always("m1", Behaviour::answer().gzip());
    let call = |text: &str| Call::chat(&key, &chat("m1", text)).header("accept-encoding", "gzip, br, zstd");
    for (number, cache) in ["miss", "hit"].into_iter().enumerate() {
        let answer: Response = stack.call(&call("hello there")).await.expect(200);
        assert_eq!((answer.header("content-encoding"), answer.header("x-proxium-cache")), (None, Some(cache)));
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "You said: hello there");
        let record = records(&stack, &key, number + 1).await.remove(0);
        assert_eq!(told(&record, &["input_tokens", "output_tokens", "estimated"]), ["2", "4", "0"]);
    }
}

/// Sends a call of `hello` on a connection of its own: dropping it is a hang-up.
async fn sent(stack: &Stack, key: &Key, model: &str) -> TcpStream {
    let body = chat(model, "sixteen letters.").to_string();
    let (text, length) = (&key.text, body.len());
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: proxium\r\nauthorization: Bearer {text}\r\ncontent-length: {length}\r\n\r\n");
    let mut socket = stack.envoys[0].connect().await;
    socket.write_all((head + &body).as_bytes()).await.unwrap();
    socket
}

async fn called(mock: &Mock, times: usize) {
    eventually("the provider has the call", BOUND, || std::future::ready(mock.calls(ANY) == times)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_leaves_pays_the_input_of_the_attempt_that_ran() {
    let stack = Stack::builder().catalog(priced).start().await;
    stack.mocks.first.always(ANY, Behaviour::hang());
    stack.mocks.second.always(ANY, Behaviour::hang());

    // 20 tokens at 5 USD a million, the price of the model and not of its alias.
    let key = counted_key(&stack).await;
    let socket = sent(&stack, &key, "alias").await;
    called(&stack.mocks.first, 1).await;
    drop(socket);
    let record = records(&stack, &key, 1).await.remove(0);
    let names = ["kind", "model", "cost_nano_usd", "calls", "input_tokens", "output_tokens", "abandoned", "estimated"];
    assert_eq!(told(&record, &names), ["call", "alias", "100000", "1", "20", "0", "1", "1"]);
    assert!(record["attempts"].starts_with("alias abandoned "), "{}", record["attempts"]);
    assert_eq!(state(&stack, &key).await, ["100000", "0"]);
    assert_eq!(counted(&stack, &key).await, [1, 1, 20], "the slot stays, the output that was held does not");

    // After a failover it is the model that was at work.
    let key = counted_key(&stack).await;
    stack.mocks.first.next("m1", [Behaviour::status(500)]);
    let socket = sent(&stack, &key, "fast").await;
    called(&stack.mocks.second, 1).await;
    drop(socket);
    let record = records(&stack, &key, 1).await.remove(0);
    assert_eq!(told(&record, &names[1..3]), ["m2", "40000"]);
    assert!(record["attempts"].starts_with("m1 status_500 ") && record["attempts"].contains(", m2 abandoned "));
    assert_eq!(state(&stack, &key).await, ["40000", "0"]);

    // Nothing of it is cached.
    stack.mocks.first.behave();
    let answer = stack.chat(&key, &chat("fast", "sixteen letters.")).await.expect(200);
    assert_eq!(answer.header("x-proxium-cache"), Some("miss"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_leaves_before_the_admission_is_back_leaves_no_hold() {
    // One worker, so that it knows the key: only the admission is asked for.
    let stack = Stack::builder().concurrency(1).start().await;
    let key = counted_key(&stack).await;
    stack.mocks.first.next("m1", [Behaviour::status(400)]);
    let _ = stack.chat(&key, &chat("m1", "hello")).await.expect(400);
    let redis = stack.redis_client().await;
    let released = async || {
        let keys = CustomCommand::new_static("KEYS", ClusterHash::FirstKey, false);
        let ids: Vec<String> = redis.custom(keys, vec![name::reservation(&key.project, "*")]).await.unwrap();
        let mut states = Vec::new();
        for id in ids {
            // A word: nothing can change it any more.
            states.push(redis.get::<String, _>(id).await.unwrap_or_else(|error| error.to_string()));
        }
        states
    };
    eventually("the first is released", BOUND, || async { released().await == ["released"] }).await;

    stack.control_planes[0].process().pause();
    let active = "cluster.proxium-control-plane.upstream_rq_active";
    let idle = stack.envoys[0].stat(active).await;
    let socket = sent(&stack, &key, "m1").await;
    eventually("the admission is asked for", BOUND, || async { stack.envoys[0].stat(active).await > idle }).await;
    drop(socket);
    eventually("Envoy knows", BOUND, || async { stack.envoys[0].stat("http.proxium.downstream_cx_active").await == 0 }).await;
    stack.control_planes[0].process().resume();

    eventually("both are released", BOUND, || async { released().await == ["released", "released"] }).await;
    let due: u64 = redis.zcard(name::due(&key.project)).await.unwrap();
    assert_eq!((state(&stack, &key).await, due), (["0".into(), "0".into()], 0));
    assert_eq!(counted(&stack, &key).await, [0, 0, 0]);
    assert_eq!(stack.mocks.first.calls(ANY), 1);
}
