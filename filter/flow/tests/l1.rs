//! Answers kept in the worker, as a call meets them.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

mod world;

use proxium_flow::{Stage, Turn};
use proxium_wire::settlement::End;
use proxium_wire::{AdmitReply, Change, Hit, Purge, StoredAnswer, admit_reply, change::What};
use std::rc::Rc;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;
use world::*;

/// A world with room for answers, one of which came from Redis just now.
fn warm() -> Script {
    let script = Script::default();
    script.l1.borrow_mut().set_max_bytes(1 << 20);
    warm_up(&script, Hit { expires_in_ms: 10_000, ..Hit::default() });
    script
}

fn warm_up(script: &Script, hit: Hit) -> Turn {
    let answer =
        StoredAnswer { body: ANSWER.as_bytes().to_vec(), model: "small".into(), cost_nano_usd: 135_000, request_id: "req_first".into() };
    let turn = script.call_with(&[], REQUEST);
    script.pass(5);
    turn.stage.step(control_plane(AdmitReply { outcome: Some(admit_reply::Outcome::Hit(Hit { answer, ..hit })) }), script)
}

/// The answer came from this worker: nothing was called.
fn is_hit(turn: &Turn) -> bool {
    matches!(turn.stage, Stage::Done) && response(turn).headers.get("x-proxium-cache") == Some("hit")
}

/// The control plane is asked.
fn is_asked(turn: &Turn) -> bool {
    matches!(turn.stage, Stage::Reserving(_))
}

#[test]
fn a_hot_hit_calls_nobody_and_is_counted() {
    let script = warm();
    let from_redis = warm_up(&Script::default(), Hit::default());
    let turn = script.call_with(&[], REQUEST);
    assert!(is_hit(&turn));
    assert_eq!(response(&turn).body, response(&from_redis).body);
    let names = |turn: &Turn| response(turn).headers.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&turn), names(&from_redis), "as one from Redis");
    assert_eq!(response(&turn).headers.get("x-proxium-cost-usd"), Some("0"));
    let hits = script.hits.borrow();
    let Some(End::Hits(of)) = &hits[0].end else { panic!("{hits:?}") };
    assert_eq!((hits.len(), hits[0].project.as_str(), hits[0].key_id.as_str(), hits[0].id.as_str()), (1, "acme", "key_1", ""));
    assert_eq!(
        (of.count, of.model.as_str(), of.call.requested_model.as_str(), of.call.resolved_model.as_str()),
        (1, "small", "fast", "small")
    );
}

#[test]
fn either_mode_is_served_from_it() {
    let script = warm();
    let turn = script.call_with(&[], &REQUEST.replace("{\"model\"", "{\"stream\":true,\"model\""));
    assert!(is_hit(&turn));
    assert_eq!(response(&turn).headers.get("content-type"), Some("text/event-stream"));
}

#[test]
fn another_request_project_or_model_is_another_entry() {
    let script = warm();
    assert!(is_asked(&script.call_with(&[], &REQUEST.replace("hello", "hallo"))));
    assert!(is_asked(&script.call_with(&[("openai-beta", "x")], REQUEST)));
    for change in [
        (|key| key.project = "other".into()) as fn(&mut proxium_wire::KeyRecord),
        |key| key.allowed_models = vec!["large".into()],
        |key| key.rules = rules(&[("fast", &["large"])]),
        |key| key.project_record.exact_cache = false,
        |key| key.project_record.cached_answer_charge_ppm = 250_000,
    ] {
        let script = warm();
        let mut key = script.key.borrow().clone();
        change(&mut key);
        *script.known.borrow_mut() = Some(proxium_flow::world::KnownKey { record: Some(Rc::new(key)), fresh: true });
        assert!(is_asked(&script.call_with(&[], REQUEST)));
    }
    assert!(is_hit(&script.call_with(&[], REQUEST)));
}

#[test]
fn it_is_passed_by_where_it_must_not_be_trusted_and_where_the_caller_says_so() {
    let script = warm();
    for mode in ["bypass", "refresh"] {
        assert!(is_asked(&script.call_with(&[("x-proxium-cache", mode)], REQUEST)), "{mode}");
    }
    script.l1_trusted.set(false);
    assert!(is_asked(&script.call_with(&[], REQUEST)));
    script.l1_trusted.set(true);
    script.pass(9_995);
    assert!(is_asked(&script.call_with(&[], REQUEST)), "its time is over");
}

#[test]
fn a_renewed_answer_is_not_remembered_as_it_was() {
    let script = warm();
    let turn = script.admitted(&[("x-proxium-cache", "refresh")], REQUEST);
    let turn = script.answer(turn, 200, ANSWER);
    let Some(End::Settle(settle)) = &settled(&turn).end else { panic!() };
    assert!(settle.store.as_ref().unwrap().renews);
    assert!(is_asked(&script.call_with(&[], REQUEST)));
}

#[test]
fn a_hit_of_the_cheaper_chain_and_one_older_than_a_purge_are_not_remembered() {
    let script = Script::default();
    script.l1.borrow_mut().set_max_bytes(1 << 20);
    warm_up(&script, Hit { soft_cap: true, expires_in_ms: 10_000, ..Hit::default() });
    assert!(is_asked(&script.call_with(&[], REQUEST)));

    let script = warm();
    let purge = || What::Purge(Purge { project: "acme".into(), ..Purge::default() });
    let turn = script.call_with(&[], &REQUEST.replace("hello", "hallo"));
    script.l1.borrow_mut().forget(&[Change { what: Some(purge()) }], script.now_ms.get());
    let hit = Hit { expires_in_ms: 10_000, ..Hit::default() };
    drop(turn.stage.step(control_plane(AdmitReply { outcome: Some(admit_reply::Outcome::Hit(hit)) }), &script));
    assert!(is_asked(&script.call_with(&[], &REQUEST.replace("hello", "hallo"))));
    assert!(is_asked(&script.call_with(&[], REQUEST)));
}
