//! What a call becomes by what the control plane says of its admission, or does not say.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

mod world;

use proxium_flow::config::OnFailure;
use proxium_flow::message::Failure;
use proxium_flow::{Effect, Event};
use proxium_wire::settlement::End;
use proxium_wire::{AdmitReply, Admitted, Hit, Limit, RateLimit, Refused, Settlement, StoredAnswer, Window, admit_reply};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;
use world::*;

#[test]
fn without_a_control_plane_calls_are_denied_or_allowed_as_configured() {
    let mut script = Script::default();
    script.known.borrow_mut().as_mut().unwrap().fresh = false;
    let turn = script.open(&[]);
    assert_eq!(code(&script.fail(turn, Failure::Connect)), (503, "control_plane_unavailable".into()));

    script.config.on_control_plane_failure = OnFailure::Allow;
    let turn = script.fail(script.open(&[]), Failure::Connect);
    let turn = turn.stage.step(Event::Body(REQUEST.into()), &script);
    let turn = script.fail(turn, Failure::Timeout);
    assert_eq!(callout(&turn).cluster, "provider-one");
    assert_eq!(settle(&script.answer(turn, 200, ANSWER)).cost_nano_usd, 30_000);
}

#[test]
fn an_admission_whose_answer_is_lost_is_released() {
    let script = Script::default();
    let turn = script.fail(script.call_with(&[], REQUEST), Failure::Timeout);
    assert_eq!(code(&turn), (503, "control_plane_unavailable".into()));
    assert!(released(&turn));
    let turn = script.call_with(&[], REQUEST).stage.step(Event::Closed { by_client: true }, &script);
    assert!(released(&turn), "the client left while the admission was on its way");
}

fn refused() -> Refused {
    let window = Window { limit: 5, remaining: 0, reset_ms: 30_000 };
    Refused {
        limit: Limit::CallsPerHour.into(),
        of_sender: false,
        retry_after_ms: Some(30_000),
        rate_limit: RateLimit { requests: Some(window), tokens: None },
    }
}

#[test]
fn a_refusal_is_a_429_with_its_limit_and_nothing_owed() {
    let script = Script::default();
    let reply = AdmitReply { outcome: Some(admit_reply::Outcome::Refused(refused())) };
    let turn = script.call_with(&[], REQUEST).stage.step(control_plane(reply), &script);
    assert_eq!(code(&turn), (429, "tenant_capped".into()));
    assert_eq!(response(&turn).headers.get("retry-after"), Some("30"));
    assert_eq!(turn.effects.len(), 1);
}

#[test]
fn an_admission_that_was_asked_for_twice_is_released_unless_it_was_made() {
    use admit_reply::Outcome;
    let free = Hit::default();
    let charged = Hit { rate_limit: Some(RateLimit::default()), ..Hit::default() };
    let outcomes = [
        (Outcome::Refused(refused()), true),
        (Outcome::InvalidKey(()), true),
        (Outcome::Hit(free), true),
        (Outcome::Hit(charged), false),
        (Outcome::Admitted(Admitted::default()), false),
    ];
    for (outcome, is_released) in outcomes {
        let script = Script::default();
        let turn = script.call_with(&[], REQUEST).stage.step(Event::AskedAgain, &script);
        assert!(turn.effects.is_empty());
        let reply = control_plane(AdmitReply { outcome: Some(outcome.clone()) });
        let turn = turn.stage.step(reply, &script);
        let is_release = |effect: &Effect| matches!(effect, Effect::Post(Settlement { end: Some(End::Release(_)), .. }));
        assert_eq!(turn.effects.iter().any(is_release), is_released, "{outcome:?}");
    }
}

#[test]
fn a_hit_is_answered_at_once_under_its_own_model() {
    let script = Script::default();
    let answer = StoredAnswer { body: b"stored".to_vec(), model: "small".into(), cost_nano_usd: 5, request_id: "req_0".into() };
    let reply = AdmitReply { outcome: Some(admit_reply::Outcome::Hit(Hit { answer, ..Hit::default() })) };
    let turn = script.call_with(&[], REQUEST).stage.step(control_plane(reply), &script);
    let response = response(&turn);
    assert_eq!((response.headers.get("x-proxium-cache"), response.headers.get("x-proxium-cost-usd")), (Some("hit"), Some("0")));
    assert_eq!((response.body.as_slice(), turn.effects.len()), (b"stored".as_slice(), 1));
}

#[test]
fn the_hold_is_the_dearest_of_the_plan() {
    let script = Script::default();
    let hold = admission(&script.call_with(&[], REQUEST)).normal.hold;
    let canonical = r#"{"max_tokens":10,"messages":[{"content":"hello","role":"user"}]}"#;
    let input = canonical.len().div_ceil(3) as u64;
    assert_eq!((hold.input_tokens, hold.output_tokens), (input, 10));
    assert_eq!(hold.nano_usd, (input * 1_000 + 10 * 8_000) as i64);
    let hold = admission(&script.call_with(&[], &REQUEST.replace("\"max_tokens\":10", "\"max_tokens\":9999,\"n\":3"))).normal.hold;
    assert_eq!(hold.output_tokens, 3_000, "never more than the model can");
}

#[test]
fn an_answer_of_the_control_plane_that_cannot_be_taken_ends_the_call() {
    let script = Script::default();
    let turn = script.call_with(&[], REQUEST).stage.step(Event::Overloaded, &script);
    assert_eq!(code(&turn), (503, "overloaded".into()));
    assert!(released(&turn));
    let recording = script.answer(script.admitted(&[], REQUEST), 200, ANSWER);
    assert!(
        matches!(recording.stage.step(Event::Overloaded, &script).effects.as_slice(), [Effect::Respond(answer)] if answer.status == 200)
    );
}
