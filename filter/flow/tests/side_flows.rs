//! Flows that ask somebody else before the call itself: what is remembered, which tier, which vector.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

mod world;

use prost::Message;
use proxium_flow::message::Failure;
use proxium_flow::{Effect, Event, Stage, Turn};
use proxium_wire::settlement::End;
use proxium_wire::{
    AdmitReply, Admitted, Classifier, Endpoint, Hit, Limit, Memory, MemoryStamp, RateLimit, RecallReply, RecallRequest, Refused,
    Settlement, StoredAnswer, admit_reply::Outcome,
};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;
use world::*;

const VECTOR: &str = r#"{"data":[{"embedding":[1,0]}],"usage":{"prompt_tokens":3}}"#;
const AUTO: &str = r#"{"model":"auto","messages":[{"role":"user","content":"hello"}]}"#;

/// A world where everything of this file is on: `embed` compares, `spare` sorts into `small` and `large`, and memory is on.
fn script() -> Script {
    let script = Script::with_catalog(|catalog| {
        let mut embed = model("embed", "one", 1_000_000, 0);
        embed.endpoints = vec![Endpoint::Embeddings.into()];
        catalog.models.push(embed);
        catalog.embeddings_model = "embed".into();
        let tiers = [("simple".to_owned(), "small".to_owned()), ("hard".to_owned(), "large".to_owned())].into();
        catalog.classifier = Some(Classifier { model: "large".into(), tiers, fallback: "spare".into(), timeout_ms: 2_000 });
    });
    let mut key = script.key.borrow().clone();
    key.project_record.near_threshold_ppm = Some(950_000);
    key.project_record.memory = true;
    key.project_record.auto_classify = true;
    *script.known.borrow_mut() = Some(proxium_flow::world::KnownKey { record: Some(key.into()), fresh: true });
    script
}

fn told(turn: Turn, outcome: Outcome, script: &Script) -> Turn {
    turn.stage.step(control_plane(AdmitReply { outcome: Some(outcome) }), script)
}

fn refused() -> Outcome {
    Outcome::Refused(Refused {
        limit: Limit::CallsPerHour.into(),
        of_sender: false,
        retry_after_ms: None,
        rate_limit: RateLimit { requests: None, tokens: None },
    })
}

/// The ends of side calls that a turn posts.
fn beside(turn: &Turn) -> Vec<&Settlement> {
    turn.effects.iter().filter_map(|effect| if let Effect::PostSide(side) = effect { Some(side) } else { None }).collect()
}

fn path(turn: &Turn) -> &str {
    callout(turn).headers.get(":path").unwrap()
}

/// A call whose vector is being made.
fn embedding(script: &Script) -> Turn {
    let turn = script.call_with(&[], REQUEST);
    let asked = admission(&turn);
    let embed = asked.embed.unwrap();
    assert_eq!((embed.id, embed.provider.as_str(), asked.near), (format!("{}_embedding", asked.id), "one", None));
    let turn = told(turn, Outcome::Embed(Admitted::default()), script);
    assert_eq!((path(&turn), callout(&turn).cluster.as_str(), callout(&turn).timeout_ms), ("/v1/embeddings", "provider-one", 2_000));
    assert_eq!(callout(&turn).body, br#"{"encoding_format":"float","input":"hello","model":"embed-v1"}"#);
    turn
}

#[test]
fn a_vector_is_made_between_two_admissions_and_recorded_once_the_call_is_let_in() {
    let script = script();
    let turn = script.answer(embedding(&script), 200, VECTOR);
    let asked = admission(&turn);
    let near = asked.near.unwrap();
    assert_eq!((near.vector.len(), near.question.as_str(), near.threshold_ppm, asked.embed), (8, "hello", 950_000, None));
    assert_eq!((asked.normal.partition.len(), beside(&turn).len()), (32, 0));

    let answer = StoredAnswer { body: ANSWER.into(), model: "small".into(), request_id: "req_0".into(), ..StoredAnswer::default() };
    let hit = told(turn, Outcome::Hit(Hit { answer, similarity_ppm: Some(970_001), ..Hit::default() }), &script);
    for (name, value) in [
        ("x-proxium-cache", "near"),
        ("x-proxium-similarity", "0.970001"),
        ("x-proxium-cached-request-id", "req_0"),
        ("x-proxium-cost-usd", "0"),
    ] {
        assert_eq!(response(&hit).headers.get(name), Some(value));
    }
    let Some(End::Settle(settle)) = &beside(&hit)[0].end else { panic!("not settled") };
    assert_eq!((settle.cost_nano_usd, settle.usage.input, settle.call.endpoint), (3_000, 3, i32::from(Endpoint::Embeddings)));
    assert!(beside(&hit)[0].side_call, "should its reservation be unknown, it is no call");

    // Not near, but admitted: the answer is stored with its vector, in the partition of the model that gave it.
    let turn = script.answer(embedding(&script), 200, VECTOR);
    let partition = admission(&turn).normal.partition;
    let turn = told(turn, Outcome::Admitted(Admitted::default()), &script);
    assert_eq!((path(&turn), beside(&turn).len()), ("/v1/chat/completions", 1));
    let turn = script.answer(turn, 200, ANSWER);
    assert!(!settled(&turn).side_call);
    let Some(End::Settle(settle)) = &settled(&turn).end else { panic!("not settled") };
    let store = settle.store.as_ref().unwrap();
    let vector = store.vector.as_ref().unwrap();
    assert_eq!((vector.partition.clone(), vector.vector.len(), vector.question.as_str()), (partition, 8, "hello"));
}

#[test]
fn a_side_call_of_a_call_that_is_refused_or_that_failed_is_given_back() {
    let script = script();
    let released = |turn: &Turn| matches!(beside(turn)[..], [Settlement { end: Some(End::Release(_)), .. }]);
    let turn = told(script.answer(embedding(&script), 200, VECTOR), refused(), &script);
    assert_eq!(code(&turn), (429, "tenant_capped".into()));
    assert!(released(&turn));

    for failed in [
        script.answer(embedding(&script), 500, ""),
        script.answer(embedding(&script), 200, r#"{"data":[]}"#),
        script.fail(embedding(&script), Failure::Timeout),
    ] {
        assert!(released(&failed));
        let asked = admission(&failed);
        assert_eq!((asked.near, asked.embed), (None, None), "the call goes on without");
        let turn = told(failed, Outcome::Admitted(Admitted::default()), &script);
        assert!(beside(&turn).is_empty());
    }
    // The admission's answer is lost: the money of either may be held.
    let lost = script.fail(script.call_with(&[], REQUEST), Failure::Timeout);
    assert_eq!(code(&lost).0, 503);
    assert!(released(&lost) && matches!(settled(&lost).end, Some(End::Release(_))));
}

#[test]
fn a_client_that_leaves_a_side_call_pays_what_was_sent() {
    let script = script();
    let left = embedding(&script).stage.step(Event::Closed { by_client: true }, &script);
    let Some(End::Settle(settle)) = &beside(&left)[0].end else { panic!("not settled") };
    assert_eq!((settle.abandoned, settle.estimated, settle.usage.input), (true, true, 2));
    let left = script.answer(embedding(&script), 200, VECTOR).stage.step(Event::Closed { by_client: true }, &script);
    assert!(matches!(beside(&left)[..], [Settlement { end: Some(End::Settle(_)), .. }]));
    let left = script.call_with(&[], AUTO).stage.step(Event::Closed { by_client: true }, &script);
    assert!(matches!(beside(&left)[..], [Settlement { end: Some(End::Release(_)), .. }]));
}

#[test]
fn auto_is_sorted_before_it_is_resolved() {
    let script = script();
    let turn = script.call_with(&[], AUTO);
    let asked = admission(&turn);
    assert!(asked.side_call && asked.beside.is_some() && asked.normal.cache_key.len() == 32 && asked.normal.hold.nano_usd > 0);
    let turn = told(turn, Outcome::Admitted(Admitted::default()), &script);
    assert_eq!((path(&turn), callout(&turn).cluster.as_str(), callout(&turn).timeout_ms), ("/v1/chat/completions", "provider-two", 2_000));
    let turn = script.answer(turn, 200, &ANSWER.replace("hi", "simple"));
    assert_eq!(admission(&turn).call.resolved_model, "small");
    let turn = told(turn, Outcome::Admitted(Admitted::default()), &script);
    let Some(End::Settle(settle)) = &beside(&turn)[0].end else { panic!("not settled") };
    let store = settle.store.as_ref().unwrap();
    assert_eq!((store.answer.body.as_slice(), store.ttl_s, &store.cache_key), (b"simple".as_slice(), 3_600, &asked.normal.cache_key));
    let turn = script.answer(turn, 200, ANSWER);
    assert_eq!(response(&script.fail(turn, Failure::Timeout)).headers.get("x-proxium-tier"), Some("small"));

    // As it was, or not to be had.
    let kept = StoredAnswer { body: b"hard".to_vec(), ..StoredAnswer::default() };
    let turn = told(script.call_with(&[], AUTO), Outcome::Hit(Hit { answer: kept, ..Hit::default() }), &script);
    assert_eq!(admission(&turn).call.resolved_model, "large");
    for turn in [
        told(script.call_with(&[], AUTO), refused(), &script),
        script.fail(script.call_with(&[], AUTO), Failure::Timeout),
        script.answer(told(script.call_with(&[], AUTO), Outcome::Admitted(Admitted::default()), &script), 503, ""),
    ] {
        assert_eq!(admission(&turn).call.resolved_model, "spare");
    }
}

#[test]
fn memories_stand_in_the_body_before_anything_looks_at_it() {
    let script = script();
    let recall: &[(&'static str, &str)] = &[("x-proxium-memory", "recall"), ("x-proxium-user", "ann")];
    let plain = admission(&script.call_with(&[], REQUEST)).normal.cache_key;
    let turn = script.call_with(recall, REQUEST);
    let asked = RecallRequest::decode(callout(&turn).body.as_slice()).unwrap();
    assert_eq!((path(&turn), asked.project.as_str(), asked.end_user.as_str()), ("/v1/recall", "acme", "ann"));
    let stamp = |end_user: &str| MemoryStamp { end_user: end_user.into(), deletions: 2 };
    let memory = |text: &str, end_user: &str| Memory { text: text.into(), end_user: end_user.into(), ..Memory::default() };
    let memories = vec![memory("likes tea", "ann"), memory("closes at six", "")];
    let reply = RecallReply { memories, stamps: vec![stamp(""), stamp("ann")], ..RecallReply::default() };
    let turn = turn.stage.step(control_plane(reply), &script);
    let asked = admission(&turn);
    assert_ne!(asked.normal.cache_key, plain);
    assert_eq!(asked.embed, None, "an end user's memories are not compared");
    let turn = told(turn, Outcome::Admitted(Admitted::default()), &script);
    let body = String::from_utf8(callout(&turn).body.clone()).unwrap();
    assert!(body.contains("- likes tea\\n- closes at six"), "{body}");
    let turn = script.answer(turn, 200, ANSWER);
    let Some(End::Settle(settle)) = &settled(&turn).end else { panic!("not settled") };
    assert_eq!(settle.store.as_ref().unwrap().memories, [stamp(""), stamp("ann")]);
    assert_eq!(response(&script.fail(turn, Failure::Timeout)).headers.get("x-proxium-memories"), Some("2"));

    let none = script.call_with(recall, REQUEST).stage.step(control_plane(RecallReply::default()), &script);
    assert_eq!(admission(&none).normal.cache_key, plain);
    assert_eq!(code(&script.fail(script.call_with(recall, REQUEST), Failure::Timeout)), (503, "control_plane_unavailable".into()));
    let left = script.call_with(recall, REQUEST).stage.step(Event::Closed { by_client: true }, &script);
    assert!(left.effects.is_empty() && matches!(left.stage, Stage::Done));
}

#[test]
fn where_memories_are_too_many_those_nearest_to_the_question_are_taken() {
    let script = script();
    let recall: &[(&'static str, &str)] = &[("x-proxium-memory", "recall")];
    let memory = |id: &str| Memory { text: format!("{id} {}", "x".repeat(1_400)), id: id.into(), ..Memory::default() };
    let reply = |unembedded: &[&str]| RecallReply {
        memories: ["c", "b", "a"].map(memory).into(),
        unembedded: unembedded.iter().map(|id| (*id).to_owned()).collect(),
        ranks: true,
        ..RecallReply::default()
    };
    let asked_of = |turn: &Turn| RecallRequest::decode(callout(turn).body.as_slice()).unwrap();
    // Two fit.
    let turn = script.call_with(recall, REQUEST);
    assert_eq!((asked_of(&turn).ranks_by.as_str(), asked_of(&turn).vector.len()), ("embed", 0));
    let turn = turn.stage.step(control_plane(reply(&["a"])), &script);
    let asked = admission(&turn);
    assert!(asked.side_call && asked.id.ends_with("_memories") && asked.normal.cache_key.is_empty(), "a vector is to be made");
    let turn = told(turn, Outcome::Admitted(Admitted::default()), &script);
    assert_eq!(path(&turn), "/v1/embeddings");
    let two = r#"{"data":[{"index":0,"embedding":[1,0]},{"index":1,"embedding":[0,1]}],"usage":{"prompt_tokens":500}}"#;
    let turn = script.answer(turn, 200, two);
    let asked = asked_of(&turn);
    assert_eq!((asked.vector.len(), asked.fresh.len(), asked.fresh[0].id.as_str(), asked.fresh[0].vector.len()), (8, 1, "a", 8));
    let nearest = RecallReply { nearest: vec!["a".into(), "gone".into(), "c".into()], ..RecallReply::default() };
    let turn = turn.stage.step(control_plane(nearest), &script);
    let turn = told(turn, Outcome::Admitted(Admitted::default()), &script);
    let body = String::from_utf8(callout(&turn).body.clone()).unwrap();
    let place = |id: &str| body.find(&format!("- {id} x"));
    assert!(place("a") < place("c") && place("a").is_some() && place("b").is_none(), "{body}");
    let [Settlement { end: Some(End::Settle(settle)), .. }] = beside(&turn)[..] else { panic!("not settled") };
    let key = settle.store.as_ref().unwrap().cache_key.clone();

    // The question's vector is kept: it is asked for by its key. Where there is none, the newest are taken.
    let turn = script.call_with(recall, REQUEST).stage.step(control_plane(reply(&[])), &script);
    assert_eq!(admission(&turn).normal.cache_key, key);
    let kept = StoredAnswer { body: vec![0; 8], ..StoredAnswer::default() };
    assert_eq!(asked_of(&told(turn, Outcome::Hit(Hit { answer: kept, ..Hit::default() }), &script)).vector, [0; 8]);
    let turn = script.call_with(recall, REQUEST).stage.step(control_plane(reply(&[])), &script);
    let turn = told(told(turn, refused(), &script), Outcome::Admitted(Admitted::default()), &script);
    let body = String::from_utf8(callout(&turn).body.clone()).unwrap();
    assert!(body.contains("- c x") && body.contains("- b x") && !body.contains("- a x"), "{body}");
}
