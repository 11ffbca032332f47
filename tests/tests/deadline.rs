//! The time of a call: over the whole chain, shortened by the caller or by the operator.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::{ANY, Behaviour};
use proxium_e2e::{BOUND, Call, Key, Mocks, Response, Stack, catalog, chat, eventually};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const PATIENT: &str = "breaker: {consecutive_failures: 1000, min_requests: 1000}";
/// Input tokens of [`question`] where nobody counted them: a third of its 63 bytes.
const ESTIMATE: u64 = 21;

fn question(model: &str) -> Value {
    chat(model, "sixty bytes and more")
}

fn all_hang(mocks: &Mocks) {
    for mock in [&mocks.first, &mocks.second, &mocks.third] {
        mock.always(ANY, Behaviour::hang());
    }
}

async fn timed(stack: &Stack, key: &Key, model: &str, timeout_ms: Option<u64>) -> (Response, Duration) {
    let mut call = Call::chat(key, &question(model));
    if let Some(timeout_ms) = timeout_ms {
        call = call.header("x-proxium-timeout-ms", &timeout_ms.to_string());
    }
    let begun = Instant::now();
    (stack.call(&call).await, begun.elapsed())
}

/// A key whose calls and tokens are counted.
async fn counted_key(stack: &Stack) -> Key {
    stack.key_with(json!({"monthly_cap_usd": 1}), json!({"ceilings": {"calls_per_hour": 10, "tokens_per_minute": 100_000}})).await
}

/// Calls and tokens in the key's windows, once nothing is held any more.
async fn counted(stack: &Stack, key: &Key) -> [u64; 2] {
    eventually("nothing is held", BOUND, || async { stack.state(&key.project).await["held"] == "0" }).await;
    let windows = stack.windows(key).await;
    ["c_sum", "t_sum"].map(|sum| windows.get(sum).map_or(0, |text| text.parse().unwrap()))
}

async fn only_record(stack: &Stack, key: &Key) -> HashMap<String, String> {
    eventually("one ledger record", BOUND, || async {
        let mut ledger = stack.ledger(&key.project).await;
        if ledger.len() == 1 { Ok(ledger.remove(0)) } else { Err(ledger) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_first_entry_leaves_time_for_the_second() {
    let stack = Stack::start().await;
    let key = counted_key(&stack).await;
    stack.mocks.first.always("m1", Behaviour::hang());
    let (answer, took) = timed(&stack, &key, "fast", Some(4_000)).await;
    let answer = answer.expect(200);
    assert_eq!((answer.header("x-proxium-model"), answer.header("x-proxium-attempts")), (Some("m2"), Some("2")));
    assert!((Duration::from_millis(2_300)..Duration::from_millis(4_800)).contains(&took), "{took:?}");
    let record = only_record(&stack, &key).await;
    assert!(record["attempts"].starts_with("m1 timeout ") && record["attempts"].contains(", m2 ok "), "{}", record["attempts"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_bounds_the_whole_chain_and_a_short_one_of_the_caller_is_paid_for() {
    let stack = Stack::start().await;
    all_hang(&stack.mocks);
    let key = counted_key(&stack).await;
    let (failed, took) = timed(&stack, &key, "long", Some(3_000)).await;
    assert_eq!(failed.expect(502).code(), "deadline_exceeded");
    assert!((Duration::from_millis(2_900)..Duration::from_millis(3_600)).contains(&took), "{took:?}");
    let called = [stack.mocks.first.calls("m1"), stack.mocks.second.calls("m2"), stack.mocks.third.calls("m3")];
    assert_eq!(called, [1, 1, 1], "each had its share");

    // The call slot stays, and the input is settled as estimated at the model that was cut last: 3 USD a million.
    let record = only_record(&stack, &key).await;
    let told = ["kind", "model", "abandoned", "estimated", "calls", "cost_nano_usd", "output_tokens"].map(|name| record[name].as_str());
    assert_eq!(told, ["call", "m3", "1", "1", "1", "63000", "0"]);
    assert_eq!(counted(&stack, &key).await, [1, ESTIMATE]);
    assert_eq!(stack.state(&key.project).await["spend"], "63000");

    // What the last entry says after such a cut does not undo it: the first provider may have worked.
    let key = counted_key(&stack).await;
    stack.mocks.second.next("m2", [Behaviour::status(400)]);
    let (refused, _) = timed(&stack, &key, "fast", Some(3_000)).await;
    assert_eq!(refused.status, 400);
    let record = only_record(&stack, &key).await;
    assert_eq!([&record["model"], &record["abandoned"], &record["cost_nano_usd"]], ["m1", "1", "21000"]);
    assert_eq!(counted(&stack, &key).await, [1, ESTIMATE]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_timeouts_bound_every_call_and_give_back_what_they_end() {
    let brief = |mocks: &Mocks| {
        let model = "models:\n  brief: {provider: first, timeout: 200ms, price_usd_per_mtok: {input: 1, output: 10}}\n";
        catalog::three_providers(mocks).replacen("models:\n", model, 1)
    };
    let limits = "limits: {default_timeout: 2s, max_timeout: 3s}";
    let stack = Stack::builder().catalog(brief).and_catalog(PATIENT).and_catalog(limits).start().await;
    all_hang(&stack.mocks);
    let key = counted_key(&stack).await;

    for (asked_ms, bound_ms) in [(None, 2_000), (Some(600_000), 3_000)] {
        let (failed, took) = timed(&stack, &key, "fast", asked_ms).await;
        assert_eq!(failed.expect(502).code(), "deadline_exceeded");
        assert!((Duration::from_millis(bound_ms - 100)..Duration::from_millis(bound_ms * 12 / 10)).contains(&took), "{took:?}");
        assert_eq!(counted(&stack, &key).await, [0, 0]);
    }

    // As many as the key has slots, and one more.
    for _ in 0..10 {
        let failed = timed(&stack, &key, "brief", Some(1_500)).await.0.expect(502);
        assert_eq!(failed.code(), "providers_failed");
        assert!(failed.text().contains("brief: timeout"), "{}", failed.text());
    }
    assert_eq!(counted(&stack, &key).await, [0, 0]);
    assert!(stack.ledger(&key.project).await.is_empty());
    stack.mocks.first.behave();
    let _ = stack.chat(&key, &question("brief")).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_that_is_no_whole_number_of_milliseconds_is_refused_by_name() {
    let stack = Stack::start().await;
    let key = counted_key(&stack).await;
    for nonsense in ["0", "-1", "1.5", "1e3", "soon", ""] {
        let call = Call::chat(&key, &question("fast")).header("x-proxium-timeout-ms", nonsense);
        let refused = stack.call(&call).await.expect(400);
        assert_eq!(refused.code(), "invalid_request", "{nonsense:?}");
        assert!(refused.text().contains("x-proxium-timeout-ms"), "{}", refused.text());
    }
    assert_eq!(stack.mocks.first.calls(ANY), 0);
    assert_eq!(counted(&stack, &key).await, [0, 0]);
}
