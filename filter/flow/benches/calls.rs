//! Whole calls through the flow, for an instruction counter: `cargo bench -p proxium-flow -- miss 1000`, or the program it names under
//! `valgrind --tool=callgrind`. The difference of two counts is what so many calls more cost. Kinds: `miss`, `hit` (in Redis), `l1`, and
//! `stream`, of 100 events that are not cached and come one by one, or in pieces of a fourth argument's bytes.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../tests/world/mod.rs"]
mod world;

use proxium_flow::config::Config;
use proxium_flow::message::Answer;
use proxium_flow::stage::outcome::Report;
use proxium_flow::{Event, Stage};
use proxium_wire::{AdmitReply, Admitted, Hit, SettleReply, StoredAnswer, admit_reply};
use world::*;

/// As the benchmark's request, about 1 KiB, or as large as wanted.
fn request(bytes: usize, more: &str) -> String {
    let text: String =
        "A customer writes that the invoice of last month shows two charges for one order. ".chars().cycle().take(bytes).collect();
    format!(
        r#"{{"model":"small","messages":[{{"role":"system","content":"You are a concise assistant."}},{{"role":"user","content":"{text}"}}],"temperature":0.2,"max_tokens":256{more}}}"#
    )
}

fn answer() -> String {
    let text: String = "the quick brown fox jumps over the lazy dog ".chars().cycle().take(584).collect();
    format!(
        r#"{{"id":"chatcmpl-1","created":1760000000,"model":"gpt-4o-mini","object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}","refusal":null}},"logprobs":null,"finish_reason":"stop"}}],"usage":{{"prompt_tokens":180,"completion_tokens":100,"total_tokens":280,"prompt_tokens_details":{{"cached_tokens":0}}}}}}"#
    )
}

/// As the benchmark's provider streams.
fn chunks() -> Vec<String> {
    let chunk = |choices: &str, more: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"created\":1760000000,\"model\":\"gpt-4o-mini\",\"object\":\"chat.completion.chunk\",\"choices\":[{choices}]{more}}}\n\n"
        )
    };
    let text = |number: u32| {
        let end = if number == 100 { r#""stop""# } else { "null" };
        chunk(&format!(r#"{{"index":0,"delta":{{"content":"tok{number} "}},"finish_reason":{end}}}"#), "")
    };
    let usage = chunk("", r#","usage":{"prompt_tokens":180,"completion_tokens":100,"total_tokens":280}"#);
    (1..=100).map(text).chain([usage, "data: [DONE]\n\n".into()]).collect()
}

/// A whole stream, from its admission on.
fn stream(call: Stage, script: &Script, chunks: &[Vec<u8>]) {
    let turn = call.step(admitted(Admitted::default()), script);
    let report = Report { began_ms: START_MS, status: Some(200), ..Report::default() };
    script.reports.borrow_mut().insert(0, report);
    let headers = [("content-type", "text/event-stream")].into_iter().collect();
    let mut stage = turn.stage.step(Event::Head(Answer { status: 200, headers, body: Vec::new() }), script).stage;
    for chunk in chunks {
        stage = stage.step(Event::Chunk(chunk.clone(), false), script).stage;
    }
    stage = stage.step(Event::Chunk(Vec::new(), true), script).stage;
    assert_eq!(stage.step(Event::Closed { by_client: false }, script).effects.len(), 1);
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
    let streams = kind == "stream";
    let mut script = Script::with_key(|key| key.project_record.exact_cache = !streams);
    if streams {
        script.config = Config::read(br#"{"control_plane_cluster":"cp","internal_secret":"s","streams":"router"}"#).unwrap();
    }
    let (request, answer) = (request(bytes, if streams { r#","stream":true"# } else { "" }), answer());
    let chunks: Vec<Vec<u8>> = match number(3, 0) {
        0 => chunks().into_iter().map(String::into_bytes).collect(),
        size => chunks().concat().into_bytes().chunks(size).map(<[u8]>::to_vec).collect(),
    };
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
        if streams {
            stream(turn.stage, &script, &chunks);
            continue;
        }
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
