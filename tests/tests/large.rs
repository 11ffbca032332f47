//! Large requests and answers pass up to what is stated, and too many of them at once are refused without harm.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::{ANY, Behaviour};
use proxium_e2e::{BOUND, Call, Envoy, Key, Stack, chat, eventually};
use serde_json::json;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const MIB: usize = 1 << 20;

/// A chat request of exactly this many bytes.
fn request_of(bytes: usize) -> String {
    let frame = chat("fast", "").to_string().len();
    let body = chat("fast", &"a".repeat(bytes - frame)).to_string();
    assert_eq!(body.len(), bytes);
    body
}

fn sending(key: &Key, body: &str) -> Call {
    let call = Call::new("POST", "/v1/chat/completions").header("authorization", &format!("Bearer {}", key.text));
    call.header("content-type", "application/json").body(body)
}

/// A chat answer of a little more than this, for 3 tokens in and 4 out.
fn answer_of(mib: usize) -> String {
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": "b".repeat(mib * MIB)}, "finish_reason": "stop"});
    json!({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}).to_string()
}

/// Nothing the filter said, or Envoy about it, tells of a VM that died.
fn no_trap(envoy: &Envoy) {
    let log = envoy.process().log();
    for word in ["panicked", "Function: ", "wasm trap", "unreachable", "VM failed", "Wasm VM"] {
        assert!(!log.contains(word), "{word} in the log:\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_pass_whole_up_to_the_stated_limit() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({"monthly_cap_usd": 1_000}), json!({"ceilings": {"calls_per_hour": 100}})).await;
    for bytes in [32_769, MIB, 10 * MIB - 1, 10 * MIB] {
        stack.mocks.first.next("m1", [Behaviour::answer().text("read")]);
        let body = request_of(bytes);
        let answer = stack.call(&sending(&key, &body)).await.expect(200);
        assert_eq!(answer.header("x-proxium-model"), Some("m1"));
        // It went on as it came, but for the name of the model.
        let got = stack.mocks.first.requests().pop().unwrap().body;
        assert!(got == body.replacen("\"fast\"", "\"m1\"", 1).as_bytes(), "{bytes}: {} bytes arrived", got.len());
        stack.mocks.first.forget();
    }
    eventually("all are settled", BOUND, || async { stack.state(&key.project).await["held"] == "0" }).await;
    let windows = stack.windows(&key).await;

    for bytes in [10 * MIB + 1, 11 * MIB, 24 * MIB] {
        let refused = stack.call(&sending(&key, &request_of(bytes))).await.expect(413);
        assert_eq!((refused.code(), refused.header("content-type")), ("request_too_large".into(), Some("application/json")));
        assert!(refused.text().contains("10485760"), "{}", refused.text());
    }
    assert_eq!(stack.mocks.first.calls(ANY), 0);
    assert_eq!(stack.windows(&key).await["c_sum"], windows["c_sum"]);
    no_trap(&stack.envoys[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_answers_pass_byte_by_byte_and_one_too_large_goes_on_to_the_next_entry() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({"monthly_cap_usd": 1_000}), json!({})).await;
    for mib in [1, 2, 8, 24] {
        let sent = answer_of(mib);
        stack.mocks.first.next("m1", [Behaviour::raw(200, "application/json", sent.as_str())]);
        let answer = stack.chat(&key, &chat("fast", &format!("{mib} MiB"))).await.expect(200);
        assert!(answer.body == sent.as_bytes(), "{mib} MiB: {} bytes came", answer.body.len());
        assert_eq!(answer.header("x-proxium-cost-usd"), Some("0.000043"));
    }
    // One MiB is kept (unless Redis was slow), eight are not worth it.
    for (mib, cache) in [(1, "hit"), (8, "miss")] {
        let sent = answer_of(mib);
        stack.mocks.first.always("m1", Behaviour::raw(200, "application/json", sent.as_str()));
        eventually("the cache treats it so", BOUND, || async {
            let again = stack.chat(&key, &chat("fast", &format!("{mib} MiB"))).await.expect(200);
            assert!(again.body == sent.as_bytes(), "{mib} MiB: {} bytes came", again.body.len());
            again.header("x-proxium-cache") == Some(cache)
        })
        .await;
    }

    stack.mocks.first.next("m1", [Behaviour::raw(200, "application/json", answer_of(32))]);
    let answer = stack.chat(&key, &chat("fast", "more than fits")).await.expect(200);
    assert_eq!((answer.header("x-proxium-model"), answer.header("x-proxium-attempts")), (Some("m2"), Some("2")));
    no_trap(&stack.envoys[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_large_bodies_than_a_worker_can_hold_are_refused_without_a_trap() {
    /// Of 384 MiB, two for each of a body.
    const FIT: usize = 21;
    let stack = Arc::new(Stack::builder().concurrency(1).start().await);
    let key = stack.key_with(json!({"monthly_cap_usd": 1_000}), json!({"ceilings": {"calls_per_hour": 1_000}})).await;
    stack.mocks.first.always("m1", Behaviour::answer().text("read"));
    let large = sending(&key, &request_of(9 * MIB)).header("x-proxium-cache", "bypass");

    // One after the other, so that the worker is never too busy to talk to the control plane.
    let gate = stack.mocks.first.gate();
    let mut held = JoinSet::new();
    for number in 1..=FIT {
        let (stack, call) = (stack.clone(), large.clone());
        held.spawn(async move { stack.call(&call).await });
        eventually("the provider has it", BOUND, || std::future::ready(gate.waiting() as usize == number)).await;
    }
    for _ in 0..3 {
        let refused = stack.call(&large).await.expect(503);
        assert_eq!((refused.code(), refused.header("content-type")), ("overloaded".into(), Some("application/json")));
        assert!(refused.header("retry-after").is_some());
    }
    let _ = stack.chat(&key, &chat("m2", "small")).await.expect(200);
    gate.open();
    while let Some(answer) = held.join_next().await {
        let _ = answer.unwrap().expect(200);
    }

    // What they held is given back, and what was refused was never reserved.
    let _ = stack.call(&large).await.expect(200);
    eventually("all are settled", BOUND, || async { stack.state(&key.project).await["held"] == "0" }).await;
    assert_eq!(stack.windows(&key).await["c_sum"], (FIT + 2).to_string());
    no_trap(&stack.envoys[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_large_answers_than_a_worker_can_hold_are_refused_without_a_trap() {
    let stack = Arc::new(Stack::builder().concurrency(1).start().await);
    let key = stack.key_with(json!({"monthly_cap_usd": 1_000}), json!({"ceilings": {"calls_per_hour": 1_000}})).await;
    stack.mocks.first.always("m1", Behaviour::raw(200, "application/json", answer_of(20)));
    let gate = stack.mocks.first.gate();
    let mut calls = JoinSet::new();
    for number in 0..24 {
        let (stack, call) = (stack.clone(), Call::chat(&key, &chat("m1", &format!("question {number}"))));
        calls.spawn(async move { stack.call(&call).await });
    }
    eventually("all wait", BOUND, || std::future::ready(gate.waiting() == 24)).await;
    gate.open();
    let (mut answered, mut overloaded) = (0, 0);
    while let Some(ended) = calls.join_next().await {
        match ended.unwrap() {
            answer if answer.status == 200 => answered += 1,
            answer => {
                assert_eq!(answer.expect(503).code(), "overloaded");
                overloaded += 1;
            }
        }
    }
    assert_eq!(answered + overloaded, 24);
    assert!(answered >= 1);
    no_trap(&stack.envoys[0]);
    eventually("all is settled", BOUND, || async { stack.state(&key.project).await["held"] == "0" }).await;
    assert_eq!(stack.windows(&key).await["c_sum"], answered.to_string());
    stack.mocks.first.behave();
    let _ = stack.chat(&key, &chat("m1", "small")).await.expect(200);
}

/// What became of an upload that is never finished.
enum Upload {
    /// All but its end is sent, and nobody answered yet.
    Sent(TcpStream),
    /// This came instead.
    Answered(String),
}

/// Sends a call of 10 MiB but for its last byte, with or without its length, until somebody answers.
async fn hold_back(stack: &Stack, key: &Key, body: &str, announced: bool) -> Upload {
    let length = if announced { format!("content-length: {}", body.len()) } else { "transfer-encoding: chunked".to_owned() };
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: e2e\r\nauthorization: Bearer {}\r\n{length}\r\n\r\n", key.text);
    let mut socket = stack.envoys[0].connect().await;
    let (mut from, mut to) = socket.split();
    let send = async {
        to.write_all(head.as_bytes()).await?;
        for piece in body.as_bytes()[..body.len() - 1].chunks(MIB) {
            if announced {
                to.write_all(piece).await?;
            } else {
                to.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
                to.write_all(piece).await?;
                to.write_all(b"\r\n").await?;
            }
        }
        Ok::<_, std::io::Error>(())
    };
    let mut answer = vec![0; 4_096];
    let read = tokio::select! {
        biased;
        read = from.read(&mut answer) => read,
        // Closed behind an answer.
        sent = send => match sent {
            Ok(()) => return Upload::Sent(socket),
            Err(_) => from.read(&mut answer).await,
        }
    };
    Upload::Answered(String::from_utf8_lossy(&answer[..read.unwrap_or(0)]).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_uploads_that_never_end_take_no_worker_down() {
    /// Of 384 MiB, two for each that was announced; what comes unannounced counts as it comes.
    const FIT: usize = 38;
    let is_refusal = |answer: &str| answer.starts_with("HTTP/1.1 503") && answer.contains("\"overloaded\"");
    let stack = Arc::new(Stack::builder().concurrency(1).start().await);
    let key = stack.key_with(json!({"monthly_cap_usd": 1_000}), json!({"ceilings": {"calls_per_hour": 1_000}})).await;
    let body = Arc::new(request_of(10 * MIB));
    let mut uploads = JoinSet::new();
    for number in 0..200 {
        let (stack, key, body) = (stack.clone(), key.clone(), body.clone());
        uploads.spawn(async move { hold_back(&stack, &key, &body, number % 20 > 0).await });
    }
    let mut sent = Vec::new();
    while let Some(upload) = uploads.join_next().await {
        match upload.unwrap() {
            Upload::Sent(socket) => sent.push(socket),
            Upload::Answered(answer) => assert!(is_refusal(&answer), "{answer}"),
        }
    }
    // A refusal may still be on its way to those that sent everything.
    let held = Mutex::new(sent);
    eventually("what does not fit is refused", BOUND, || async {
        let mut answer = [0; 4_096];
        let mut held = held.lock().unwrap();
        held.retain(|socket| match socket.try_read(&mut answer) {
            Ok(read) => {
                let answer = String::from_utf8_lossy(&answer[..read]);
                assert!(is_refusal(&answer), "{answer}");
                false
            }
            Err(_) => true,
        });
        if held.len() <= FIT { Ok(()) } else { Err(held.len()) }
    })
    .await;
    assert!(!held.lock().unwrap().is_empty(), "some are held");
    no_trap(&stack.envoys[0]);
    assert_eq!(stack.envoys[0].call(&Call::new("GET", "/nowhere")).await.status, 404, "the worker serves");
    drop(held);
    eventually("what they held is free", BOUND, || async {
        let answer = stack.chat(&key, &chat("m1", "small again")).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    let _ = stack.call(&sending(&key, &body)).await.expect(200);
    eventually("all are settled", BOUND, || async { stack.state(&key.project).await["held"] == "0" }).await;
    no_trap(&stack.envoys[0]);
}
