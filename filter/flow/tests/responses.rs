#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, missing_docs)] // a surprise is a failed test
//! `/v1/responses`: native where the provider has it, else translated; whose a response is; streams through the router and without.

mod world;

use proxium_flow::config::Streams;
use proxium_flow::hop::Hop;
use proxium_flow::message::{Answer, Headers};
use proxium_flow::stage::outcome::Report;
use proxium_flow::{Effect, Event, Turn};
use proxium_wire::settlement::End;
use proxium_wire::{Admitted, Dialect, Endpoint, OwnCredential, ResponseOwner};
use serde_json::{Value, json};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;
use world::*;

const ASK: &str = r#"{"model":"fast","input":"hello","max_output_tokens":10}"#;
const ANSWERED: &str = r#"{"id":"resp_1","status":"completed","error":null,"output":[{"type":"message","id":"msg_1","content":[{"type":"output_text","text":"hi"}]}],"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":40},"output_tokens":7}}"#;

/// `small` speaks responses, `large` only chat, `spare` Anthropic's.
fn script() -> Script {
    Script::with_catalog(|catalog| {
        for model in &mut catalog.models {
            model.endpoints = vec![Endpoint::Responses.into()];
        }
        catalog.providers[1].chat_only = true;
        catalog.providers[2].dialect = Dialect::Anthropic.into();
    })
}

fn ask(script: &Script, body: &str) -> Turn {
    let turn = script.open_at("/v1/responses", &[]);
    turn.stage.step(Event::Body(body.as_bytes().to_vec()), script)
}

fn let_in(script: &Script, turn: Turn, with: Admitted) -> Turn {
    turn.stage.step(admitted(with), script)
}

fn sent(turn: &Turn) -> (Option<&str>, Value) {
    (callout(turn).headers.get(":path"), serde_json::from_slice(&callout(turn).body).unwrap())
}

fn own(provider: &str) -> Admitted {
    let credentials = vec![OwnCredential { provider: provider.into(), secret: "own".into() }];
    Admitted { credentials, ..Admitted::default() }
}

fn kept_by(provider: &str, own_credential: bool) -> Option<ResponseOwner> {
    Some(ResponseOwner { provider: provider.into(), own_credential })
}

#[test]
fn a_native_call_goes_on_as_it_came_and_its_id_is_recorded_with_its_owner() {
    let script = script();
    for (with, own) in [(Admitted::default(), false), (own("one"), true)] {
        let turn = let_in(&script, ask(&script, ASK), with);
        assert_eq!(callout(&turn).body, ASK.replace("\"fast\"", "\"small-v1\"").into_bytes());
        assert_eq!(callout(&turn).headers.get(":path"), Some("/v1/responses"));
        let turn = script.answer(turn, 200, ANSWERED);
        let settled = settle(&turn);
        assert_eq!((settled.usage.input, settled.usage.cached_input, settled.usage.output), (60, 40, 7));
        assert_eq!((settled.response_id.as_str(), settled.own_credential, settled.store.is_some()), ("resp_1", own, false));
    }
}

#[test]
fn a_failover_is_translated_for_those_who_have_no_responses() {
    let script = script();
    let turn = script.answer(
        let_in(&script, ask(&script, ASK), Admitted::default()),
        200,
        r#"{"status":"failed","error":{"code":"x"},"output":[]}"#,
    );
    let (path, body) = sent(&turn);
    assert_eq!(path, Some("/v1/chat/completions"));
    assert_eq!(body, json!({"model": "large-v1", "messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 10}));
    let turn = script.answer(turn, 500, "");
    assert_eq!(sent(&turn).0, Some("/v1/messages"));
    let message = r#"{"id":"m","type":"message","role":"assistant","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","usage":{"input_tokens":9,"output_tokens":2}}"#;
    let turn = script.answer(turn, 200, message);
    assert_eq!((settle(&turn).model.as_str(), settle(&turn).usage.output, settle(&turn).response_id.as_str()), ("spare", 2, ""));
    let turn = turn.stage.step(control_plane(proxium_wire::SettleReply {}), &script);
    let body: Value = serde_json::from_slice(&response(&turn).body).unwrap();
    assert_eq!((&body["output"][0]["content"][0]["text"], &body["usage"]["total_tokens"]), (&json!("hi"), &json!(11)));
    assert!(body["id"].as_str().unwrap().starts_with("resp_"));
}

#[test]
fn a_response_is_gone_on_from_only_where_it_was_made() {
    let script = script();
    let next = ASK.replace("\"input\"", "\"previous_response_id\":\"resp_1\",\"input\"");
    let turn = ask(&script, &next);
    assert_eq!(admission(&turn).previous_response_id, "resp_1");
    for (previous_response, credentials, status) in [
        (None, vec![], 404),
        (kept_by("one", true), vec![], 404),
        (kept_by("one", false), own("one").credentials, 404),
        (kept_by("two", false), vec![], 400),
        (kept_by("gone", false), vec![], 400),
    ] {
        let with = Admitted { previous_response, credentials, ..Admitted::default() };
        let turn = let_in(&script, ask(&script, &next), with);
        assert_eq!(code(&turn).0, status);
        assert!(matches!(settled(&turn).end, Some(End::Release(_))));
    }
    let with = || Admitted { previous_response: kept_by("one", false), ..Admitted::default() };
    let turn = script.answer(let_in(&script, ask(&script, &next), with()), 500, "");
    assert_eq!(code(&turn), (502, "providers_failed".into()));
}

#[test]
fn what_a_provider_stores_is_only_named_on_an_account_of_the_projects_own() {
    let script = script();
    let stored = r#"{"model":"small","input":"x","conversation":"conv_1"}"#;
    let turn = let_in(&script, ask(&script, stored), Admitted::default());
    assert_eq!(code(&turn), (400, "invalid_request".into()));
    assert!(matches!(settled(&turn).end, Some(End::Release(_))));
    let turn = let_in(&script, ask(&script, stored), own("one"));
    assert_eq!(sent(&turn).1["conversation"], "conv_1");
}

fn streamed() -> String {
    ASK.replace("\"input\"", "\"stream\":true,\"input\"")
}

#[test]
fn a_stream_by_callout_is_replayed_from_the_whole_answer() {
    let script = script();
    let turn = let_in(&script, ask(&script, &streamed()), Admitted::default());
    assert_eq!(sent(&turn).1.get("stream"), None);
    let turn = script.answer(turn, 200, ANSWERED);
    let turn = turn.stage.step(control_plane(proxium_wire::SettleReply {}), &script);
    let text = String::from_utf8(response(&turn).body.clone()).unwrap();
    assert!(text.starts_with("event: response.created\n") && text.contains("event: response.output_text.delta"), "{text}");
    assert!(text.contains("event: response.completed") && !text.contains("[DONE]"), "{text}");
}

#[test]
fn a_stream_through_the_router_passes_and_is_settled_by_its_last_event() {
    let mut script = script();
    script.config.streams = Streams::Router;
    let turn = let_in(&script, ask(&script, &streamed()), Admitted::default());
    let Effect::Route(route) = &turn.effects[0] else { panic!("{:?}", turn.effects) };
    let hop = &route.state.iter().find(|(key, _)| key == "proxium.hop0").unwrap().1;
    assert_eq!(serde_json::to_string(&Hop::read(hop).unwrap()).unwrap(), *hop);
    assert!(hop.contains("\"path\":\"/v1/responses\"") && hop.contains("\"provider\":\"responses\""), "{hop}");
    script.reports.borrow_mut().insert(0, Report { status: Some(200), ..Report::default() });
    let headers: Headers = [("content-type", "text/event-stream")].into_iter().collect();
    let turn = turn.stage.step(Event::Head(Answer { status: 200, headers, body: Vec::new() }), &script);
    let event = |kind: &str, response: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\",\"response\":{response}}}\n\n");
    let bytes = event("response.created", r#"{"id":"resp_9","usage":null}"#)
        + &event("response.completed", r#"{"id":"resp_9","usage":{"input_tokens":5,"output_tokens":2}}"#);
    let turn = turn.stage.step(Event::Chunk(bytes.into_bytes(), true), &script);
    assert_eq!(turn.effects, [], "it goes as it came");
    let turn = turn.stage.step(Event::Closed { by_client: false }, &script);
    let settled = settle(&turn);
    assert_eq!((settled.usage.input, settled.usage.output, settled.response_id.as_str()), (5, 2, "resp_9"));
    assert_eq!((settled.estimated, settled.abandoned, settled.attempts[0].outcome.as_str()), (false, false, "ok"));
}
