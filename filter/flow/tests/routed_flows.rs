//! Streams as scripts: through the router, by callout, and from the cache.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

mod world;

use proxium_flow::config::Streams;
use proxium_flow::message::{Answer, Headers, Route};
use proxium_flow::stage::outcome::Report;
use proxium_flow::{Effect, Event, Stage, Turn};
use proxium_wire::settlement::End;
use proxium_wire::{AdmitReply, Admitted, Hit, StoredAnswer, Usage, admit_reply};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;
use world::*;

const STREAM: &str = r#"{"model":"fast","messages":[{"role":"user","content":"hello"}],"max_tokens":10,"stream":true}"#;
const CHUNK: &str =
    "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"hi\"},\"finish_reason\":null}]}\n\n";
const LAST: &str = "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":7}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn router() -> Script {
    let mut script = Script::default();
    script.config.streams = Streams::Router;
    script
}

fn routed(turn: &Turn) -> &Route {
    match &turn.effects[..] {
        [Effect::Route(route)] => route,
        other => panic!("not routed but {other:?}"),
    }
}

fn state<'a>(turn: &'a Turn, key: &str) -> Option<&'a str> {
    routed(turn).state.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
}

fn tell(script: &Script, attempt: usize, report: Report) {
    script.reports.borrow_mut().insert(attempt, Report { began_ms: script.now_ms.get(), ..report });
}

fn head(script: &Script, turn: Turn, status: u16, kind: &str) -> Turn {
    let headers: Headers = [("content-type", kind), ("openai-organization", "ours")].into_iter().collect();
    turn.stage.step(Event::Head(Answer { status, headers, body: Vec::new() }), script)
}

/// A stream whose first hop answers.
fn streaming(script: &Script, body: &str) -> Turn {
    let turn = script.admitted(&[], body);
    tell(script, 0, Report { status: Some(200), ..Report::default() });
    let turn = head(script, turn, 200, "text/event-stream");
    assert!(matches!(turn.effects[0], Effect::StreamHead(_)), "{:?}", turn.effects);
    turn
}

fn chunk(script: &Script, turn: Turn, bytes: &str, end: bool) -> (Turn, String) {
    let mut turn = turn.stage.step(Event::Chunk(bytes.as_bytes().to_vec(), end), script);
    match turn.effects.pop() {
        Some(Effect::Forward(bytes)) => (turn, String::from_utf8(bytes).unwrap()),
        None => (turn, bytes.to_owned()),
        other => panic!("nothing is forwarded but {other:?}"),
    }
}

fn closed(script: &Script, turn: Turn, by_client: bool) -> Turn {
    turn.stage.step(Event::Closed { by_client }, script)
}

#[test]
fn the_plan_goes_to_the_router_attempt_by_attempt() {
    let script = router();
    let turn = script.admitted(&[("x-envoy-max-retries", "9"), ("cookie", "c"), ("user-agent", "sdk")], STREAM);
    for (attempt, name) in ["one", "two", "three"].iter().enumerate() {
        assert_eq!(state(&turn, &format!("proxium.cluster{attempt}")), Some(format!("provider-{name}-stream").as_str()));
        assert_eq!(state(&turn, &format!("proxium.credential{attempt}")), Some(format!("authorization: Bearer sk-{name}").as_str()));
        assert!(!state(&turn, &format!("proxium.hop{attempt}")).unwrap().contains("sk-"), "a hop can be logged");
    }
    let headers = &routed(&turn).headers;
    assert_eq!((headers.get("x-envoy-max-retries"), headers.get("cookie"), headers.get("user-agent")), (Some("2"), None, Some("sdk")));
    assert_eq!(headers.get("x-envoy-upstream-rq-per-try-timeout-ms"), Some("20000"), "the largest first-byte timeout of the plan");
    assert_eq!(headers.get("x-envoy-upstream-rq-timeout-ms"), Some("300000"));
    assert_eq!(headers.get("authorization"), None);
}

#[test]
fn a_stream_passes_as_it_comes_and_hides_the_usage_that_nobody_asked_for() {
    let script = router();
    let turn = streaming(&script, STREAM);
    let Effect::StreamHead(headers) = &turn.effects[0] else { panic!() };
    assert_eq!((headers.get("x-proxium-model"), headers.get("openai-organization")), (Some("small"), None));
    let (turn, out) = chunk(&script, turn, CHUNK, false);
    assert_eq!(out, CHUNK);
    let (turn, out) = chunk(&script, turn, &[LAST, USAGE, DONE].concat(), false);
    assert_eq!(out, [LAST, DONE].concat());
    let (turn, out) = chunk(&script, turn, "", true);
    assert_eq!(out, "");
    let turn = closed(&script, turn, false);
    let settle = settle(&turn);
    assert_eq!(settle.usage, Usage { input: 100, output: 7, ..Usage::default() });
    assert_eq!((settle.cost_nano_usd, settle.estimated, settle.abandoned), (100 * 250 + 7 * 2_000, false, false));
    let stored = settle.store.as_ref().unwrap();
    let unary: serde_json::Value = serde_json::from_slice(&stored.answer.body).unwrap();
    assert_eq!(unary["choices"][0]["message"]["content"], "hi");
    let unary_key = admission(&script.call_with(&[], REQUEST)).normal.cache_key;
    assert_eq!(stored.cache_key, unary_key, "either mode is served from either");
}

#[test]
fn a_client_that_asks_for_usage_sees_it() {
    let script = router();
    let turn = streaming(&script, &STREAM.replace("\"stream\":true", "\"stream\":true,\"stream_options\":{\"include_usage\":true}"));
    let all = [CHUNK, LAST, USAGE, DONE].concat();
    assert_eq!(chunk(&script, turn, &all, true).1, all);
}

#[test]
fn failed_hops_are_noted_by_their_reports() {
    let script = router();
    let turn = script.admitted(&[], STREAM);
    tell(&script, 0, Report { status: Some(429), retry_after_ms: Some(7_000), ..Report::default() });
    script.pass(5);
    tell(&script, 1, Report { status: Some(200), word: Some("error_first_event".into()), ..Report::default() });
    script.pass(5);
    tell(&script, 2, Report { status: Some(200), ..Report::default() });
    let turn = head(&script, turn, 200, "text/event-stream");
    let (turn, _) = chunk(&script, turn, &[CHUNK, LAST, USAGE, DONE].concat(), true);
    let turn = closed(&script, turn, false);
    let outcomes: Vec<&str> = settle(&turn).attempts.iter().map(|attempt| attempt.outcome.as_str()).collect();
    assert_eq!(outcomes, ["status_429", "error_first_event", "ok"]);
    assert_eq!(settle(&turn).model, "spare");
    let next = script.admitted(&[], STREAM);
    assert_eq!(state(&next, "proxium.cluster0"), Some("provider-two-stream"), "the first model rests");
}

#[test]
fn a_stream_cut_by_its_provider_ends_in_an_error_and_counts_against_it() {
    let script = router();
    for _ in 0..5 {
        let (turn, _) = chunk(&script, streaming(&script, STREAM), CHUNK, false);
        let (turn, out) = chunk(&script, turn, "", true);
        assert!(out.starts_with("data: {\"error\"") && !out.contains("[DONE]"), "{out}");
        let turn = closed(&script, turn, false);
        let settle = settle(&turn);
        assert!(settle.estimated && !settle.abandoned && settle.store.is_none());
        assert_eq!(settle.attempts[0].outcome, "stream_broken");
    }
    let turn = script.admitted(&[], STREAM);
    assert_eq!(state(&turn, "proxium.cluster0"), Some("provider-two-stream"));
}

#[test]
fn a_client_that_leaves_pays_for_what_was_generated() {
    let script = router();
    let (turn, _) = chunk(&script, streaming(&script, STREAM), CHUNK, false);
    let turn = closed(&script, turn, true);
    assert!(settle(&turn).abandoned && settle(&turn).estimated);
    assert_eq!(settle(&turn).usage.output, 1, "two bytes");
}

#[test]
fn a_client_that_leaves_before_the_first_event_pays_the_input_if_anything_was_sent() {
    let script = router();
    let turn = closed(&script, script.admitted(&[], STREAM), true);
    assert!(matches!(settled(&turn).end, Some(End::Release(_))), "nothing was sent yet");
    let turn = script.admitted(&[], STREAM);
    tell(&script, 0, Report::default());
    let turn = closed(&script, turn, true);
    assert!(settle(&turn).abandoned && settle(&turn).usage.output == 0);
}

#[test]
fn what_the_router_cannot_try_goes_on_by_callouts() {
    let script = router();
    let turn = head(&script, script.admitted(&[], STREAM), 503, "text/plain");
    assert_eq!(callout(&turn).cluster, "provider-one", "no attempt began: no healthy host, or overflow");
    let body: serde_json::Value = serde_json::from_slice(&callout(&turn).body).unwrap();
    assert_eq!((body.get("stream"), body["model"].as_str()), (None, Some("small-v1")), "a callout is unary");

    let turn = script.admitted(&[], STREAM);
    tell(&script, 0, Report { status: Some(500), ..Report::default() });
    let turn = head(&script, turn, 503, "text/plain");
    assert_eq!(callout(&turn).cluster, "provider-two");
}

#[test]
fn the_callers_own_fault_is_returned_whole() {
    let script = router();
    let turn = script.admitted(&[], STREAM);
    tell(&script, 0, Report { status: Some(400), ..Report::default() });
    let turn = head(&script, turn, 400, "application/json");
    assert_eq!(turn.effects, [Effect::ReadAnswer]);
    let turn = turn.stage.step(Event::Body(b"{\"error\":{}}".to_vec()), &script);
    assert_eq!((response(&turn).status, response(&turn).body.as_slice()), (400, b"{\"error\":{}}".as_slice()));
    assert!(matches!(settled(&turn).end, Some(End::Release(_))));
}

#[test]
fn when_all_hops_failed_the_caller_gets_json() {
    let script = router();
    let turn = script.admitted(&[], STREAM);
    for attempt in 0..3 {
        tell(&script, attempt, Report { status: Some(500), ..Report::default() });
    }
    let turn = head(&script, turn, 500, "text/plain");
    assert_eq!(code(&turn), (502, "providers_failed".into()));
    assert!(matches!(settled(&turn).end, Some(End::Release(_))));
}

#[test]
fn a_deadline_that_ends_the_last_hop_is_told_and_charged_to_the_caller_who_set_it() {
    let script = router();
    let turn = script.admitted(&[("x-proxium-timeout-ms", "1000")], STREAM);
    assert_eq!(routed(&turn).headers.get("x-envoy-upstream-rq-per-try-timeout-ms"), Some("600"));
    tell(&script, 0, Report::default());
    script.pass(600);
    tell(&script, 1, Report::default());
    script.pass(400);
    let turn = head(&script, turn, 504, "text/plain");
    assert_eq!(code(&turn), (502, "deadline_exceeded".into()));
    assert!(settle(&turn).abandoned);
    assert_eq!(settle(&turn).model, "large");
}

#[test]
fn a_half_open_entry_is_planned_only_first() {
    let script = router();
    for _ in 0..5 {
        let turn = script.admitted(&[], &STREAM.replace("fast", "large"));
        tell(&script, 0, Report { status: Some(500), ..Report::default() });
        head(&script, turn, 500, "text/plain");
    }
    script.pass(30_000);
    let turn = script.admitted(&[], STREAM);
    let planned: Vec<_> = (0..3).filter_map(|attempt| state(&turn, &format!("proxium.cluster{attempt}"))).collect();
    assert_eq!(planned, ["provider-one-stream", "provider-three-stream"]);
    let turn = script.admitted(&[], &STREAM.replace("fast", "large"));
    assert_eq!(state(&turn, "proxium.cluster0"), Some("provider-two-stream"), "its claim was given back");
}

#[test]
fn a_provider_of_the_other_dialect_is_translated_as_it_streams() {
    let script = {
        let mut script = Script::with_catalog(|catalog| catalog.providers[0].dialect = 1);
        script.config.streams = Streams::Router;
        script
    };
    let turn = script.admitted(&[], STREAM);
    assert_eq!(state(&turn, "proxium.credential0"), Some("x-api-key: sk-one"));
    tell(&script, 0, Report { status: Some(200), ..Report::default() });
    let turn = head(&script, turn, 200, "text/event-stream");
    let events = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n",
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\n",
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":3}}\n\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    );
    let (turn, out) = chunk(&script, turn, events, true);
    assert!(out.contains("\"content\":\"hi\"") && out.contains("\"finish_reason\":\"stop\"") && out.ends_with(DONE), "{out}");
    let turn = closed(&script, turn, false);
    assert_eq!(settle(&turn).usage, Usage { input: 9, output: 3, ..Usage::default() });
}

#[test]
fn without_the_router_a_stream_is_replayed_from_a_whole_answer() {
    let script = Script::default();
    let turn = script.answer(script.admitted(&[], STREAM), 200, ANSWER);
    let turn = turn.stage.step(control_plane(proxium_wire::SettleReply {}), &script);
    let response = response(&turn);
    assert_eq!(response.headers.get("content-type"), Some("text/event-stream"));
    assert!(String::from_utf8_lossy(&response.body).ends_with(DONE));
}

#[test]
fn a_hit_is_replayed_with_its_usage_when_asked() {
    let script = router();
    let answer = StoredAnswer { body: ANSWER.into(), model: "small".into(), cost_nano_usd: 5, request_id: "req_0".into() };
    let reply = AdmitReply { outcome: Some(admit_reply::Outcome::Hit(Hit { answer, ..Hit::default() })) };
    let asked = STREAM.replace("\"stream\":true", "\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    let turn = script.call_with(&[], &asked).stage.step(control_plane(reply), &script);
    let text = String::from_utf8_lossy(&response(&turn).body).into_owned();
    assert!(text.contains("\"prompt_tokens\":100") && text.ends_with(DONE), "{text}");
}

#[test]
fn a_plan_with_a_cluster_from_elsewhere_goes_by_callout() {
    let mut script = Script::with_catalog(|catalog| catalog.providers[1].stream_cluster = String::new());
    script.config.streams = Streams::Router;
    let turn = script.call_with(&[], STREAM).stage.step(admitted(Admitted::default()), &script);
    assert!(matches!(turn.stage, Stage::Attempting(_)));
}
