//! Whole calls through the flow, for an instruction counter: `cargo bench -p proxium-flow -- miss 1000`, or the program it names under
//! `valgrind --tool=callgrind`. The difference of two counts is what so many calls more cost. Kinds: `miss`, `hit` (in Redis) and `l1`.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../tests/world/mod.rs"]
mod world;

use proxium_flow::Event;
use proxium_wire::{AdmitReply, Admitted, Hit, SettleReply, StoredAnswer, admit_reply};
use world::*;

/// As the benchmark's request, about 1 KiB, or as large as wanted.
fn request(bytes: usize) -> String {
    let text: String =
        "A customer writes that the invoice of last month shows two charges for one order. ".chars().cycle().take(bytes).collect();
    format!(
        r#"{{"model":"small","messages":[{{"role":"system","content":"You are a concise assistant."}},{{"role":"user","content":"{text}"}}],"temperature":0.2,"max_tokens":256}}"#
    )
}

fn answer() -> String {
    let text: String = "the quick brown fox jumps over the lazy dog ".chars().cycle().take(584).collect();
    format!(
        r#"{{"id":"chatcmpl-1","created":1760000000,"model":"gpt-4o-mini","object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}","refusal":null}},"logprobs":null,"finish_reason":"stop"}}],"usage":{{"prompt_tokens":180,"completion_tokens":100,"total_tokens":280,"prompt_tokens_details":{{"cached_tokens":0}}}}}}"#
    )
}

const HEADERS: &[(&str, &str)] = &[
    ("host", "bench"),
    ("content-type", "application/json"),
    ("content-length", "1024"),
    ("x-forwarded-proto", "http"),
    ("x-request-id", "6f8d7bb0-3b7c-4b0e-8f0a-2f1c0b9b7f52"),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let kind = args.first().map_or("miss", String::as_str);
    let number = |at: usize, default: usize| args.get(at).map_or(default, |text| text.parse().unwrap());
    let (calls, bytes) = (number(1, 1_000), number(2, 840));
    let (request, answer, script) = (request(bytes), answer(), Script::default());
    let stored = StoredAnswer { body: answer.clone().into_bytes(), model: "small".into(), cost_nano_usd: 1, request_id: "req_1".into() };
    let hit = || {
        let hit = Hit { answer: stored.clone(), expires_in_ms: 10_000, ..Hit::default() };
        control_plane(AdmitReply { outcome: Some(admit_reply::Outcome::Hit(hit)) })
    };
    if kind == "l1" {
        script.l1.borrow_mut().set_max_bytes(1 << 20);
        let _ = script.call_with(HEADERS, &request).stage.step(hit(), &script);
    }
    for _ in 0..calls {
        let turn = script.call_with(HEADERS, &request);
        let last = if kind == "l1" {
            turn
        } else if kind == "hit" {
            turn.stage.step(hit(), &script)
        } else {
            let turn = turn.stage.step(admitted(Admitted::default()), &script);
            let turn = script.answer(turn, 200, &answer);
            turn.stage.step(control_plane(SettleReply {}), &script)
        };
        assert_eq!(response(&last).status, 200);
        assert!(last.stage.step(Event::Closed { by_client: false }, &script).effects.is_empty());
    }
}
