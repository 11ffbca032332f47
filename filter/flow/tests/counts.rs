#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, missing_docs)] // a surprise is a failed test
//! `/v1/messages/count_tokens`: a provider's count or the estimate; never reserved, never charged.

mod world;

use proxium_flow::message::Failure;
use proxium_flow::{Effect, Event, Turn};
use proxium_wire::Dialect;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;
use world::*;

const COUNT: &str = r#"{"model":"fast","messages":[{"role":"user","content":"hello"}]}"#;
/// Of [`COUNT`]'s 46 bytes without its model.
const ESTIMATE: &[u8] = br#"{"input_tokens":16}"#;

/// The models `small` and `spare` at Anthropic providers, `large` between them at an OpenAI one.
fn script() -> Script {
    Script::with_catalog(|catalog| {
        for provider in catalog.providers.iter_mut().filter(|provider| provider.name != "two") {
            provider.dialect = Dialect::Anthropic.into();
        }
    })
}

fn count(script: &Script, body: &str) -> Turn {
    let turn = script.open_at("/v1/messages/count_tokens?beta=true", &[("anthropic-beta", "token-counting-2024-11-01")]);
    assert!(matches!(turn.effects[..], [Effect::ReadBody { .. }]), "{:?}", turn.effects);
    turn.stage.step(Event::Body(body.as_bytes().to_vec()), script)
}

/// The turn's only effect is an answer.
fn answered(turn: &Turn) -> (u16, &[u8], Option<&str>) {
    assert!(matches!(turn.effects[..], [Effect::Respond(_)]), "{:?}", turn.effects);
    let response = response(turn);
    (response.status, &response.body, response.headers.get("x-proxium-cost-usd"))
}

#[test]
fn an_anthropic_provider_counts_and_nothing_is_reserved_or_settled() {
    let script = script();
    let turn = count(&script, COUNT);
    let call = callout(&turn);
    assert_eq!(
        (call.headers.get(":path"), call.headers.get("x-api-key"), call.headers.get("anthropic-beta")),
        (Some("/v1/messages/count_tokens?beta=true"), Some("sk-one"), Some("token-counting-2024-11-01"))
    );
    assert_eq!(call.body, COUNT.replace("fast", "small-v1").into_bytes());
    let turn = script.answer(turn, 200, r#"{"input_tokens": 9}"#);
    assert_eq!(answered(&turn), (200, br#"{"input_tokens": 9}"#.as_slice(), Some("0")));
}

#[test]
fn an_openai_provider_is_not_called_the_estimate_is_the_answer() {
    let turn = count(&Script::default(), COUNT);
    assert_eq!(answered(&turn), (200, ESTIMATE, Some("0")));
    assert_eq!(response(&turn).headers.get("x-proxium-model"), Some("small"));
    assert_eq!(response(&turn).headers.get("x-proxium-attempts"), Some("0"));
}

#[test]
fn a_count_fails_over_as_any_call_does() {
    let script = script();
    for (status, body) in [(500, ""), (429, ""), (200, "{}"), (200, r#"{"type":"error","error":{"type":"api_error"}}"#)] {
        let turn = script.answer(count(&script, COUNT.replace("fast", "small").as_str()), status, body);
        assert_eq!(code(&turn).1, "providers_failed", "{status} {body}");
        script.pass(120_000);
    }
    let turn = script.answer(count(&script, COUNT), 500, "");
    assert_eq!(answered(&turn), (200, ESTIMATE, Some("0")));
    assert_eq!(response(&turn).headers.get("x-proxium-model"), Some("large"));
}

#[test]
fn what_ends_a_count_without_an_answer_owes_nothing() {
    let script = script();
    let small = COUNT.replace("fast", "small");
    let turn = script.fail(count(&script, &small), Failure::Connect);
    assert_eq!(answered(&turn).0, 502);
    let turn = script.answer(count(&script, &small), 400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"no"}}"#);
    assert_eq!(answered(&turn).0, 400);
    let turn = count(&script, &small).stage.step(Event::Closed { by_client: true }, &script);
    assert_eq!(turn.effects, []);
    let turn = count(&script, &small).stage.step(Event::Overloaded, &script);
    assert_eq!(answered(&turn).0, 503);
}

#[test]
fn a_projects_own_credential_is_not_at_hand_and_the_platforms_is_not_used_for_it() {
    let with_own = Script::with_key(|key| key.project_record.own_credentials.push("one".into()));
    with_own.catalog.swap(&script().catalog);
    assert_eq!(answered(&count(&with_own, COUNT)).1, ESTIMATE);
}

#[test]
fn a_count_needs_no_max_tokens_and_is_never_streamed() {
    let turn = count(&Script::default(), r#"{"model":"fast","stream":true,"messages":[{"role":"user","content":"hello"}]}"#);
    assert_eq!(answered(&turn).1, ESTIMATE);
    let turn = count(&Script::default(), r#"{"model":"fast"}"#);
    assert_eq!(code(&turn), (400, "invalid_request".into()));
    let turn = count(&Script::default(), r#"{"model":"none","messages":[{"role":"user","content":"hello"}]}"#);
    assert_eq!(code(&turn), (404, "model_not_found".into()));
}
