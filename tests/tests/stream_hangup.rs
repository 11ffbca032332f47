//! A client that leaves its stream: the provider is cancelled at once, what was generated is charged, nothing stays behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test
#![allow(clippy::print_stdout)] // figures for who asks (--nocapture)

use proxium::mock_provider::{ANY, Behaviour, Mock, Steps};
use proxium_e2e::{Ask, BOTH, BOUND, Key, Stack, catalog, eventually};
use serde_json::json;
use std::collections::HashMap;
use std::time::Instant;

async fn records(stack: &Stack, key: &Key, count: usize) -> Vec<HashMap<String, String>> {
    eventually("the ledger records", BOUND, || async {
        let ledger = stack.ledger(&key.project).await;
        if ledger.len() == count { Ok(ledger) } else { Err(ledger) }
    })
    .await
}

async fn closed(mock: &Mock) {
    eventually("the provider's connection is closed", BOUND, || {
        let open = mock.open_connections();
        std::future::ready(if open == 0 { Ok(()) } else { Err(open) })
    })
    .await;
}

fn told<const N: usize>(record: &HashMap<String, String>, names: [&str; N]) -> [String; N] {
    names.map(|name| record[name].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_middle_of_it() {
    let stack = Stack::builder().catalog(catalog::both_dialects).start().await;
    for ask in BOTH {
        for (model, events) in [("m1", 4), ("a1", 5)] {
            let row = format!("{ask:?} over {model}");
            let key = stack
                .key_with(json!({"monthly_cap_usd": 1}), json!({"ceilings": {"calls_per_hour": 5, "tokens_per_minute": 10_000}}))
                .await;
            let steps = Steps::new();
            stack.mocks.first.next(model, [Behaviour::answer().text("one two three four five six").stepped(&steps)]);
            steps.release(events);
            let mut stream = stack.stream(&ask.stream(&key, model, "is anybody listening to this?")).await;
            stream.until_text("three ").await;
            let begun = Instant::now();
            drop(stream);
            closed(&stack.mocks.first).await;
            println!("{row}: the provider's connection was closed after {:?}", begun.elapsed());
            let record = records(&stack, &key, 1).await.remove(0);
            let expected = ["call", model, "1", "5", "1", "1"].map(str::to_owned);
            assert_eq!(told(&record, ["kind", "model", "calls", "output_tokens", "abandoned", "estimated"]), expected, "{row}");
            assert!(record["attempts"].starts_with(&format!("{model} abandoned ")), "{row}: {record:?}");
            let input: i64 = record["input_tokens"].parse().unwrap();
            assert_eq!(record["cost_nano_usd"], (input * 1_000 + 50_000).to_string(), "{row}");
            let books = stack.closed_books(&key, 1).await;
            assert_eq!(books.tokens, input + 5, "{row}");
            // Not cached.
            stack.mocks.first.always(model, Behaviour::answer().header("connection", "close"));
            let again = stack.streamed(&ask.stream(&key, model, "is anybody listening to this?")).await.whole();
            assert_eq!(again.header("x-proxium-cache"), Some("miss"), "{row}");
            closed(&stack.mocks.first).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_first_byte() {
    let stack = Stack::builder().catalog(catalog::both_dialects_patient).start().await;
    for ask in BOTH {
        for model in ["m1", "a1"] {
            let row = format!("{ask:?} over {model}");
            let key = stack.key_with(json!({"monthly_cap_usd": 1}), json!({})).await;
            stack.mocks.first.next(model, [Behaviour::hang()]);
            let chain = format!("{model}-m2");
            let before = stack.mocks.first.calls(ANY);
            let call = stack.envoys[0].spawn(ask.stream(&key, &chain, "is anybody listening to this?"));
            eventually("the provider has the call", BOUND, || std::future::ready(stack.mocks.first.calls(ANY) == before + 1)).await;
            let begun = Instant::now();
            call.abort();
            closed(&stack.mocks.first).await;
            println!("{row}: before the first byte the provider's connection was closed after {:?}", begun.elapsed());
            let record = records(&stack, &key, 1).await.remove(0);
            let expected = [model, "0", "1", "1"].map(str::to_owned);
            assert_eq!(told(&record, ["model", "output_tokens", "abandoned", "estimated"]), expected, "{row}");
            let input: i64 = record["input_tokens"].parse().unwrap();
            assert_eq!(record["cost_nano_usd"], (input * 1_000).to_string(), "{row}: the input, and not the full price");
            stack.closed_books(&key, 1).await;
        }
    }
    assert_eq!(stack.mocks.second.calls(ANY), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zero_that_the_provider_told_stays_zero() {
    let stack = Stack::builder().catalog(catalog::both_dialects).start().await;
    let key = stack.key().await;
    let chunk = |content: &str| {
        format!(
            "data: {}\n\n",
            json!({"id": "1", "choices": [{"index": 0, "delta": {"content": content}}], "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}})
        )
    };
    let steps = Steps::new();
    stack.mocks.first.next("m1", [Behaviour::sse([chunk("one "), chunk("two")]).stepped(&steps)]);
    steps.release(1);
    let mut stream = stack.stream(&Ask::Chat.stream(&key, "m1", "hello")).await;
    stream.until_text("one ").await;
    drop(stream);
    let record = records(&stack, &key, 1).await.remove(0);
    let names = ["input_tokens", "output_tokens", "cost_nano_usd", "calls", "abandoned", "estimated"];
    assert_eq!(told(&record, names), ["0", "0", "0", "1", "1", "0"].map(str::to_owned));
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_callout_path_the_input_is_charged() {
    let stack = Stack::builder().catalog(catalog::both_dialects).render("--streams", "callout").start().await;
    for ask in BOTH {
        let key = stack.key().await;
        stack.mocks.first.next("m1", [Behaviour::hang()]);
        let before = stack.mocks.first.calls(ANY);
        let call = stack.envoys[0].spawn(ask.stream(&key, "m1", "is anybody listening to this?"));
        eventually("the provider has the call", BOUND, || std::future::ready(stack.mocks.first.calls(ANY) == before + 1)).await;
        call.abort();
        let record = records(&stack, &key, 1).await.remove(0);
        assert_eq!(told(&record, ["model", "output_tokens", "abandoned", "estimated"]), ["m1", "0", "1", "1"].map(str::to_owned));
        stack.closed_books(&key, 1).await;
    }
}

/// Resident memory of the first Envoy, KiB.
fn rss_kib(stack: &Stack) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", stack.envoys[0].process().pid())).unwrap();
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn half_of_two_hundred_over_ten_rounds() {
    const STREAMS: usize = 200;
    // Pools, arenas and the VM's heap fill for some rounds; over sixty, the last twenty add 25 KiB each (measured).
    const WARM: usize = 2;
    const ROUNDS: usize = 10;
    /// Of a stream, KiB: less than anything that a stream keeps.
    const FLAT: u64 = 4;
    let stack = Stack::builder().catalog(catalog::both_dialects_patient).start().await;
    let key = stack
        .key_with(json!({"monthly_cap_usd": 1_000}), json!({"ceilings": {"calls_per_hour": 100_000, "tokens_per_minute": 100_000_000}}))
        .await;
    let (begun, mut memory) = (Instant::now(), Vec::new());
    for round in 0..ROUNDS {
        let steps = Steps::new();
        let slow = Behaviour::answer().text("one two three four five six").stepped(&steps).header("connection", "close");
        stack.mocks.first.always(ANY, slow);
        steps.release(4);
        let opened: Vec<_> = (0..STREAMS)
            .map(|number| {
                let ask = BOTH[number % 2];
                let model = ["m1", "a1"][number / 2 % 2];
                let call = ask.stream(&key, model, &format!("round {round}, stream {number}"));
                let caller = stack.envoys[0].caller();
                tokio::spawn(async move { caller.stream(&call).await })
            })
            .collect();
        let mut streams = Vec::new();
        for stream in opened {
            let mut stream = stream.await.unwrap();
            assert_eq!(stream.status, 200, "round {round}");
            stream.until_text("two ").await;
            streams.push(stream);
        }
        let stay = streams.split_off(STREAMS / 2);
        drop(streams);
        eventually("the provider sees the others only", BOUND, || {
            let open = stack.mocks.first.open_connections();
            std::future::ready(if open == (STREAMS / 2) as u64 { Ok(()) } else { Err(open) })
        })
        .await;
        steps.open();
        for stream in stay {
            let whole = stream.rest().await;
            assert!(whole.is_terminated(), "{}", whole.raw());
        }
        closed(&stack.mocks.first).await;
        memory.push(rss_kib(&stack));
    }
    println!("{ROUNDS} rounds of {STREAMS} streams took {:?}; Envoy's memory after each, KiB: {memory:?}", begun.elapsed());
    let books = stack.closed_books(&key, ROUNDS * STREAMS).await;
    let abandoned = books.ledger.iter().filter(|record| record["abandoned"] == "1").count();
    assert_eq!(abandoned, ROUNDS * STREAMS / 2);
    let (warm, late) = (memory[WARM - 1], memory[ROUNDS - 1]);
    assert!(late <= warm + FLAT * ((ROUNDS - WARM) * STREAMS) as u64, "memory grows: {memory:?}");
    let active = stack.envoys[0].admin("/stats?filter=upstream_rq_active").await;
    let providers: Vec<&str> = active.lines().filter(|line| !line.contains("control-plane") && !line.ends_with(": 0")).collect();
    assert!(providers.is_empty(), "{providers:?}");
}
