//! Streams through Envoy's router as scripts: what the upstream filter reports, and what comes of it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

mod world;

use proxium_flow::config::Config;
use proxium_flow::message::Answer;
use proxium_flow::stage::outcome::Report;
use proxium_flow::{Effect, Event, Stage, Turn};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;
use world::*;

const STREAM: &str = r#"{"model":"fast","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
const WORD: &[u8] = b"data: {\"choices\":[{\"delta\":{\"content\":\"hello\"}}]}\n\n";

/// A stream that is with the router.
fn routed(script: &mut Script, headers: &[(&'static str, &str)]) -> Turn {
    script.config = Config::read(br#"{"control_plane_cluster":"cp","internal_secret":"s","streams":"router"}"#).unwrap();
    let turn = script.admitted(headers, STREAM);
    assert!(matches!(turn.effects[..], [Effect::Route(_)]), "{:?}", turn.effects);
    turn
}

fn report(script: &Script, attempt: usize, status: Option<u16>) {
    let report = Report { began_ms: script.now_ms.get(), status, ..Report::default() };
    script.reports.borrow_mut().insert(attempt, report);
}

/// The head that the router has.
fn head(script: &Script, turn: Turn, status: u16, content_type: &str) -> Turn {
    let headers = [("content-type", content_type)].into_iter().collect();
    turn.stage.step(Event::Head(Answer { status, headers, body: Vec::new() }), script)
}

fn text(turn: &Turn) -> String {
    String::from_utf8(response(turn).body.clone()).unwrap()
}

#[test]
fn a_first_event_that_never_comes_is_a_timeout_also_after_a_good_head() {
    for status in [None, Some(200)] {
        let mut script = Script::default();
        let turn = routed(&mut script, &[]);
        report(&script, 0, status);
        script.pass(20_000);
        report(&script, 1, Some(200));
        let turn = head(&script, turn, 200, "text/event-stream");
        assert!(matches!(turn.stage, Stage::Streaming(_)), "{:?}", turn.effects);
        let turn = turn.stage.step(Event::Closed { by_client: true }, &script);
        let words: Vec<_> = settle(&turn).attempts.iter().map(|attempt| attempt.outcome.as_str()).collect();
        assert_eq!(words, ["timeout", "abandoned"], "{status:?}");
    }
}

#[test]
fn a_404_before_a_hop_without_a_host_is_not_taken_for_its_answer() {
    let mut script = Script::default();
    let turn = routed(&mut script, &[]);
    report(&script, 0, Some(404));
    // Envoy's own: no healthy upstream.
    let turn = head(&script, turn, 503, "text/plain");
    let Stage::Attempting(_) = &turn.stage else { panic!("{:?}", turn.effects) };
    let turn = script.answer(turn, 500, "");
    let turn = script.answer(turn, 500, "");
    assert_eq!(response(&turn).status, 502);
    assert!(text(&turn).contains("small: status_404; large: status_500; spare: status_500"), "{}", text(&turn));
}

#[test]
fn a_stream_cut_at_its_deadline_speaks_against_nobody_if_the_caller_was_in_a_hurry() {
    for (deadline, after_ms, counts, abandoned) in
        [(Some("3000"), 3_000, false, true), (Some("20000"), 20_000, true, true), (None, 300_000, true, false), (None, 5_000, true, false)]
    {
        let mut script = Script::default();
        let header = deadline.map(|ms| ("x-proxium-timeout-ms", ms));
        for _ in 0..5 {
            script.pass(60_000);
            script.reports.borrow_mut().clear();
            let turn = routed(&mut script, header.as_slice());
            report(&script, 0, Some(200));
            let turn = head(&script, turn, 200, "text/event-stream");
            let turn = turn.stage.step(Event::Chunk(WORD.to_vec(), false), &script);
            script.pass(after_ms);
            let turn = turn.stage.step(Event::Closed { by_client: false }, &script);
            let settle = settle(&turn);
            let word = if deadline.is_some() || after_ms == 300_000 { "timeout" } else { "stream_broken" };
            assert_eq!((settle.attempts[0].outcome.as_str(), settle.abandoned, settle.estimated), (word, abandoned, true));
            assert!(settle.store.is_none());
        }
        // Five failures open the breaker: the first entry is not even planned.
        let turn = routed(&mut script, &[]);
        let Effect::Route(route) = &turn.effects[0] else { panic!() };
        let first = &route.state.iter().find(|(key, _)| key == "proxium.cluster0").unwrap().1;
        let expected = if counts { "provider-two-stream" } else { "provider-one-stream" };
        assert_eq!(first, expected, "{deadline:?} after {after_ms} ms");
    }
}

#[test]
fn where_a_stream_is_split_changes_neither_what_the_client_gets_nor_what_it_costs() {
    let text = |text: &str| format!("data: {{\"id\":\"1\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    let usage = "data: {\"id\":\"1\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3}}\n\n";
    let kept = [&text("a"), &text("of a"), &text(r"\n"), ": ping\n\n", &text("\u{e9}"), &text("word")].concat();
    for (sent, wanted, tokens) in [
        (format!("{kept}{usage}data: [DONE]\n\n"), format!("{kept}data: [DONE]\n\n"), (9, 3)),
        (format!("{kept}data: [DONE]\n\n"), format!("{kept}data: [DONE]\n\n"), (15, 5)),
    ] {
        let run = |pieces: &[&[u8]]| {
            let mut script = Script::with_key(|key| key.project_record.exact_cache = false);
            let turn = routed(&mut script, &[]);
            report(&script, 0, Some(200));
            let mut stage = head(&script, turn, 200, "text/event-stream").stage;
            let mut got = Vec::new();
            for (number, piece) in pieces.iter().enumerate() {
                let turn = stage.step(Event::Chunk(piece.to_vec(), number + 1 == pieces.len()), &script);
                match &turn.effects[..] {
                    [] => got.extend_from_slice(piece),
                    [Effect::Forward(bytes)] => got.extend_from_slice(bytes),
                    other => panic!("{other:?}"),
                }
                stage = turn.stage;
            }
            let turn = stage.step(Event::Closed { by_client: false }, &script);
            let usage = settle(&turn).usage;
            (String::from_utf8(got).unwrap(), (usage.input, usage.output))
        };
        let events: Vec<&[u8]> = sent.split_inclusive("\n\n").map(str::as_bytes).collect();
        let (whole, by_event) = (run(&[sent.as_bytes()]), run(&events));
        assert_eq!((&whole.0, &by_event.0), (&wanted, &wanted));
        assert_eq!((whole.1, by_event.1), (tokens, tokens));
        for at in 0..sent.len() {
            let (first, second) = sent.as_bytes().split_at(at);
            assert_eq!(run(&[first, second]), whole, "split at {at}");
        }
    }
}
