//! Calls at once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::Behaviour;
use proxium_e2e::{BOUND, Call, Key, Stack, chat, eventually};
use serde_json::json;

fn call(key: &Key) -> Call {
    Call::chat(key, &chat("m1", "hello")).header("x-proxium-cache", "bypass").header("x-proxium-source", "app")
}

#[tokio::test(flavor = "multi_thread")]
async fn over_all_envoys_only_so_many_calls_run_at_once() {
    let stack = Stack::builder().envoys(2).control_planes(2).start().await;
    for of_sender in [false, true] {
        let ceilings = json!({"ceilings": {"max_parallel_calls": 2}});
        let key = stack.key_with(json!({}), if of_sender { json!({}) } else { ceilings.clone() }).await;
        if of_sender {
            let _ = stack.admin().put(&format!("/projects/{}/senders/app", key.project), &ceilings).await.expect(200);
        }
        let gate = stack.mocks.first.gate();
        let running: Vec<_> = (0..2).map(|number| stack.envoys[number].spawn(call(&key))).collect();
        eventually("two wait for the provider", BOUND, || async { gate.waiting() == 2 }).await;
        for envoy in &stack.envoys {
            let refused = envoy.call(&call(&key)).await.expect(429);
            let code = if of_sender { "source_capped" } else { "tenant_capped" };
            assert_eq!((refused.code().as_str(), &refused.json()["error"]["param"]), (code, &json!("max_parallel_calls")));
            assert_eq!(refused.header("retry-after"), Some("1"));
        }
        drop(gate);
        for call in running {
            let _ = call.await.unwrap().unwrap().expect(200);
        }
        eventually("there is room again", BOUND, || async { stack.call(&call(&key)).await.status == 200 }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_call_gives_its_place_back() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"max_parallel_calls": 1}})).await;
    stack.mocks.first.always("m1", Behaviour::status(400));
    for _ in 0..5 {
        eventually("its place is free", BOUND, || async { stack.call(&call(&key)).await.status == 400 }).await;
    }
}
