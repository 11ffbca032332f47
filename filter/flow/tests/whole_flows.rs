//! Whole flows as scripts: events in, effects out.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

mod world;

use proxium_flow::config::{Config, OtherPaths};
use proxium_flow::message::Failure;
use proxium_flow::world::KnownKey;
use proxium_flow::{Effect, Event, RawHead, Stage};
use proxium_wire::{Admitted, AuthenticateReply, OwnCredential, SnapshotReply, Usage};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;
use world::*;

#[test]
fn a_call_is_admitted_called_recorded_and_only_then_answered() {
    let script = Script::default();
    let turn = script.call_with(&[], REQUEST);
    assert_eq!(callout(&turn).headers.get(":path"), Some("/v1/admit"));
    let admission = admission(&turn);
    assert_eq!((admission.project.as_str(), admission.call.resolved_model.as_str()), ("acme", "small"));
    assert_eq!(admission.hold_ms, 330_000);

    let turn = turn.stage.step(admitted(Admitted::default()), &script);
    let call = callout(&turn);
    assert_eq!(
        (call.cluster.as_str(), call.headers.get(":path"), call.headers.get("authorization")),
        ("provider-one", Some("/v1/chat/completions"), Some("Bearer sk-one"))
    );
    assert_eq!(call.body, REQUEST.replace("\"fast\"", "\"small-v1\"").into_bytes());

    script.pass(20);
    let turn = script.answer(turn, 200, ANSWER);
    assert!(matches!(turn.effects[..], [Effect::Settle(_)]), "the answer waits");
    let settled = settle(&turn);
    assert_eq!(settled.usage, Usage { input: 60, cached_input: 40, output: 7, ..Usage::default() });
    assert_eq!(settled.cost_nano_usd, 60 * 250 + 40 * 25 + 7 * 2_000);
    assert_eq!((settled.model.as_str(), settled.estimated, settled.latency_ms), ("small", false, 20));

    let turn = turn.stage.step(control_plane(proxium_wire::SettleReply {}), &script);
    let response = response(&turn);
    assert_eq!((response.status, response.body.as_slice()), (200, ANSWER.as_bytes()));
    for (name, value) in
        [("x-proxium-model", "small"), ("x-proxium-cache", "miss"), ("x-proxium-attempts", "1"), ("x-proxium-cost-usd", "0.00003")]
    {
        assert_eq!(response.headers.get(name), Some(value));
    }
    assert!(response.headers.get("x-proxium-request-id").unwrap().starts_with("req_"));
    assert!(turn.stage.step(Event::Closed { by_client: true }, &script).effects.is_empty());
}

#[test]
fn an_unacknowledged_settlement_does_not_keep_the_answer() {
    let script = Script::default();
    let turn = script.answer(script.admitted(&[], REQUEST), 200, ANSWER);
    assert_eq!(response(&script.fail(turn, Failure::Timeout)).status, 200);
}

#[test]
fn a_missing_or_bad_key_is_told_before_the_body_is_asked_for() {
    let script = Script::default();
    let head = |headers| RawHead { method: "POST".into(), path: "/v1/chat/completions".into(), headers };
    let turn = Stage::open(head([("x-proxium-timeout-ms", "nonsense")].into_iter().collect()), &script);
    assert_eq!(code(&turn), (401, "missing_key".into()));
    for record in [
        None,
        Some(proxium_wire::KeyRecord { revoked: true, ..script.key.borrow().clone() }),
        Some(proxium_wire::KeyRecord { expires_at_ms: Some(START_MS), ..script.key.borrow().clone() }),
    ] {
        *script.known.borrow_mut() = Some(KnownKey { record: record.map(Into::into), fresh: true });
        assert_eq!(code(&script.open(&[])), (401, "invalid_key".into()));
    }
}

#[test]
fn an_unknown_or_stale_key_is_asked_for() {
    let script = Script::default();
    let record = script.key.borrow().clone();
    for known in [None, Some(KnownKey { record: None, fresh: false })] {
        *script.known.borrow_mut() = known;
        let turn = script.open(&[]);
        assert_eq!(callout(&turn).headers.get(":path"), Some("/v1/authenticate"));
        let turn = turn.stage.step(control_plane(AuthenticateReply { key: Some(record.clone()) }), &script);
        assert!(matches!(turn.effects[..], [Effect::ReadBody { max_bytes: 10_485_760 }]));
    }
}

#[test]
fn the_first_call_of_a_new_vm_fetches_the_catalog() {
    let script = Script::default();
    script.catalog.borrow_mut().take();
    let turn = script.open(&[]);
    assert_eq!(callout(&turn).headers.get(":path"), Some("/v1/snapshot"));
    let reply = SnapshotReply { catalog_revision: "r".into(), catalog: Some(catalog()), ..SnapshotReply::default() };
    assert!(matches!(turn.stage.step(control_plane(reply), &script).effects[..], [Effect::ReadBody { .. }]));
}

#[test]
fn the_first_level_with_a_match_wins() {
    let level = |sender: bool, key: bool, project: bool| {
        let script = Script::with_key(|record| {
            if sender {
                record.project_record.sender_rules.insert("bot".into(), rules(&[("*", &["spare"])]));
            }
            if key {
                record.rules = rules(&[("fast", &["large"])]);
            }
            if project {
                record.project_record.rules = rules(&[("fast", &["large", "small"])]);
            }
        });
        let admission = admission(&script.call_with(&[("x-proxium-source", "bot")], REQUEST));
        (admission.call.resolved_model, admission.normal.providers.len())
    };
    assert_eq!(level(true, true, true), ("spare".into(), 1));
    assert_eq!(level(false, true, true), ("large".into(), 1));
    assert_eq!(level(false, false, true), ("large".into(), 2));
    assert_eq!(level(false, false, false), ("small".into(), 3));
}

#[test]
fn a_model_named_directly_is_a_chain_of_itself_and_an_unknown_one_is_not_found() {
    let script = Script::default();
    let named = |model: &str| script.call_with(&[], &REQUEST.replace("fast", model));
    assert_eq!(admission(&named("large")).normal.providers, ["two"]);
    assert_eq!(code(&named("gpt-9")), (404, "model_not_found".into()));
}

#[test]
fn a_rule_may_name_a_default_chain() {
    let script = Script::with_key(|record| record.rules = rules(&[("auto", &["fast", "small"])]));
    assert_eq!(admission(&script.call_with(&[], &REQUEST.replace("fast", "auto"))).normal.providers, ["one", "two", "three"]);
}

#[test]
fn the_allowed_models_cut_the_chain_before_the_key_is_made() {
    let script = Script::with_key(|record| record.allowed_models = vec!["large".into()]);
    let only_large = admission(&script.call_with(&[], REQUEST));
    assert_eq!(only_large.call.resolved_model, "large");
    let all = admission(&Script::default().call_with(&[], &REQUEST.replace("fast", "large")));
    assert_eq!(only_large.normal.cache_key, all.normal.cache_key);
    let script = Script::with_key(|record| record.allowed_models = vec!["other".into()]);
    assert_eq!(code(&script.call_with(&[], REQUEST)), (403, "model_not_allowed".into()));
}

#[test]
fn bypass_neither_reads_nor_writes_and_refresh_only_writes() {
    let script = Script::default();
    for (mode, label, stores) in [("bypass", "bypass", false), ("refresh", "miss", true)] {
        let turn = script.call_with(&[("x-proxium-cache", mode)], REQUEST);
        assert!(admission(&turn).normal.cache_key.is_empty());
        let turn = turn.stage.step(admitted(Admitted::default()), &script);
        let turn = script.answer(turn, 200, ANSWER);
        assert_eq!(settle(&turn).store.is_some(), stores);
        assert_eq!(response(&script.fail(turn, Failure::Timeout)).headers.get("x-proxium-cache"), Some(label));
    }
}

#[test]
fn a_failing_entry_is_followed_by_the_next_and_the_answer_is_stored_under_the_model_that_gave_it() {
    for failure in [Failure::Connect, Failure::Reset, Failure::Timeout] {
        let script = Script::default();
        let turn = script.fail(script.admitted(&[], REQUEST), failure);
        assert_eq!(callout(&turn).cluster, "provider-two");
        assert_eq!(callout(&turn).headers.get("authorization"), Some("Bearer sk-two"));
        let turn = script.answer(turn, 200, ANSWER);
        let store = settle(&turn).store.as_ref().unwrap();
        let direct = admission(&script.call_with(&[], &REQUEST.replace("fast", "large")));
        assert_eq!(store.cache_key, direct.normal.cache_key);
        assert_eq!((settle(&turn).model.as_str(), settle(&turn).cost_nano_usd), ("large", 60 * 1_000 + 40 * 100 + 7 * 8_000));
        assert_eq!(settle(&turn).attempts.len(), 2);
    }
}

#[test]
fn the_callers_own_fault_is_returned_as_it_is_and_given_back() {
    for status in [400, 413, 422] {
        let script = Script::default();
        let turn = script.answer_with(
            script.admitted(&[], REQUEST),
            status,
            &[("content-type", "application/json"), ("openai-organization", "ours")],
            "{\"e\":1}",
        );
        assert!(released(&turn));
        let response = response(&turn);
        assert_eq!((response.status, response.body.as_slice()), (status, b"{\"e\":1}".as_slice()));
        assert_eq!((response.headers.get("content-type"), response.headers.get("openai-organization")), (Some("application/json"), None));
    }
}

#[test]
fn a_404_goes_on_and_is_returned_if_it_was_the_last() {
    let script = Script::default();
    let turn = script.answer(script.admitted(&[], REQUEST), 404, "first");
    assert_eq!(callout(&turn).cluster, "provider-two");
    let turn = script.answer(turn, 500, "");
    let turn = script.answer(turn, 404, "last");
    assert_eq!((response(&turn).status, response(&turn).body.as_slice()), (404, b"last".as_slice()));
    assert!(released(&turn));
}

#[test]
fn when_every_entry_failed_the_status_says_how() {
    let all = |status: u16| {
        let script = Script::default();
        let mut turn = script.admitted(&[], REQUEST);
        for _ in 0..3 {
            turn = script.answer_with(turn, status, &[("retry-after", "7")], "");
        }
        assert!(released(&turn));
        (response(&turn).status, response(&turn).headers.get("retry-after").map(str::to_owned), code(&turn).1)
    };
    assert_eq!(all(429), (429, Some("7".into()), "providers_failed".into()));
    assert_eq!(all(500), (502, Some("7".into()), "providers_failed".into()));
}

#[test]
fn a_429_rests_that_model_and_then_nothing_is_left_to_call() {
    let script = Script::default();
    let mut turn = script.admitted(&[], REQUEST);
    for _ in 0..3 {
        turn = script.answer_with(turn, 429, &[("retry-after", "600")], "");
    }
    let turn = script.admitted(&[], REQUEST);
    assert_eq!(code(&turn), (503, "providers_failed".into()));
    assert_eq!(response(&turn).headers.get("retry-after"), Some("60"));
    script.pass(60_000);
    assert_eq!(callout(&script.admitted(&[], REQUEST)).cluster, "provider-one");
}

#[test]
fn an_open_breaker_skips_its_credential_and_lets_one_probe_through() {
    let script = Script::default();
    for _ in 0..5 {
        let turn = script.answer(script.admitted(&[], REQUEST), 500, "");
        let turn = script.answer(turn, 200, ANSWER);
        assert_eq!(settle(&turn).model, "large");
    }
    assert_eq!(callout(&script.admitted(&[], REQUEST)).cluster, "provider-two");
    script.pass(30_000);
    let probe = script.admitted(&[], REQUEST);
    assert_eq!(callout(&probe).cluster, "provider-one");
    assert_eq!(callout(&script.admitted(&[], REQUEST)).cluster, "provider-two");
    script.answer(probe, 200, ANSWER);
    assert_eq!(callout(&script.admitted(&[], REQUEST)).cluster, "provider-one");
}

#[test]
fn a_refused_credential_is_told_loudly() {
    let script = Script::default();
    let turn = script.answer(script.admitted(&[], REQUEST), 401, "");
    assert!(turn.effects.contains(&Effect::CredentialRefused { credential: "one".into(), status: 401 }));
    assert_eq!(callout(&turn).cluster, "provider-two");
}

#[test]
fn the_projects_own_credential_beats_the_platforms_and_never_falls_back() {
    let script = Script::default();
    let own = OwnCredential { provider: "one".into(), secret: "sk-own".into() };
    let reply = || admitted(Admitted { credentials: vec![own.clone()], ..Admitted::default() });
    for _ in 0..5 {
        let turn = script.call_with(&[], REQUEST).stage.step(reply(), &script);
        assert_eq!(callout(&turn).headers.get("authorization"), Some("Bearer sk-own"));
        let turn = script.answer(turn, 401, "");
        assert_eq!(callout(&turn).headers.get("authorization"), Some("Bearer sk-two"));
    }
    let turn = script.call_with(&[], REQUEST).stage.step(reply(), &script);
    assert_eq!(callout(&turn).cluster, "provider-two", "the breaker of the project's credential is open");
    assert_eq!(callout(&script.admitted(&[], REQUEST)).cluster, "provider-one", "the platform's is not");
}

#[test]
fn only_the_allow_list_reaches_a_provider() {
    let script = Script::default();
    let sent = [
        ("x-api-key", "px_1"),
        ("cookie", "c"),
        ("idempotency-key", "i"),
        ("x-proxium-user", "u"),
        ("x-envoy-max-retries", "9"),
        ("x-proxium-secret", "guess"),
        ("user-agent", "sdk"),
        ("traceparent", "00-1-2-01"),
        ("accept-encoding", "gzip, br"),
    ];
    let turn = script.admitted(&sent, REQUEST);
    let mut names: Vec<&str> = callout(&turn).headers.iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    assert_eq!(names, [":authority", ":method", ":path", "accept-encoding", "authorization", "content-type", "traceparent", "user-agent"]);
    assert_eq!(callout(&turn).headers.get("accept-encoding"), Some("identity"));
}

#[test]
fn a_hung_first_entry_leaves_time_for_the_second_and_the_deadline_covers_the_plan() {
    let script = Script::default();
    let turn = script.admitted(&[("x-proxium-timeout-ms", "1000")], REQUEST);
    assert_eq!(callout(&turn).timeout_ms, 600);
    script.pass(600);
    let turn = script.fail(turn, Failure::Timeout);
    assert_eq!((callout(&turn).cluster.as_str(), callout(&turn).timeout_ms), ("provider-two", 240));
    script.pass(240);
    let turn = script.fail(turn, Failure::Timeout);
    assert_eq!(callout(&turn).timeout_ms, 160);
    script.pass(160);
    let turn = script.fail(turn, Failure::Timeout);
    assert_eq!(code(&turn), (502, "deadline_exceeded".into()));
    let settled = settle(&turn);
    assert!(settled.abandoned && settled.estimated, "the caller shortened the deadline of calls that were sent");
    assert_eq!((settled.model.as_str(), settled.cost_nano_usd), ("spare", 0));
}

#[test]
fn a_refusal_that_follows_an_attempt_which_the_caller_cut_does_not_make_it_free() {
    for status in [400, 404] {
        let script = Script::default();
        let mut turn = script.admitted(&[("x-proxium-timeout-ms", "1000")], REQUEST);
        for pass_ms in [600, 240] {
            script.pass(pass_ms);
            turn = script.fail(turn, Failure::Timeout);
        }
        let turn = script.answer(turn, status, "{}");
        assert_eq!(settle(&turn).model, "large");
        assert!(settle(&turn).abandoned);
    }
}

#[test]
fn a_timeout_of_the_operator_gives_everything_back() {
    let script = Script::with_catalog(|catalog| catalog.models.iter_mut().for_each(|model| model.timeout_ms = 2_000));
    let mut turn = script.admitted(&[], REQUEST);
    for _ in 0..3 {
        assert_eq!(callout(&turn).timeout_ms, 2_000);
        script.pass(2_000);
        turn = script.fail(turn, Failure::Timeout);
    }
    assert_eq!(code(&turn), (502, "providers_failed".into()));
    assert!(released(&turn));
}

#[test]
fn a_client_that_leaves_after_the_call_was_sent_pays_the_input_estimate() {
    let script = Script::default();
    let turn = script.admitted(&[], REQUEST);
    let turn = turn.stage.step(Event::Closed { by_client: true }, &script);
    let settled = settle(&turn);
    assert!(settled.abandoned && settled.estimated);
    assert_eq!((settled.usage.output, settled.cost_nano_usd), (0, (settled.usage.input * 250) as i64));
}

#[test]
fn missing_usage_is_estimated_and_flagged() {
    let script = Script::default();
    let turn =
        script.answer(script.admitted(&[], REQUEST), 200, r#"{"choices":[{"message":{"content":"0123456789"},"finish_reason":"stop"}]}"#);
    let settled = settle(&turn);
    assert!(settled.estimated && !settled.abandoned);
    assert_eq!(settled.usage.output, (r#"{"content":"0123456789"}"#.len() as u64).div_ceil(3));
}

#[test]
fn a_cut_answer_is_charged_and_not_stored() {
    let script = Script::default();
    let turn = script.answer(script.admitted(&[], REQUEST), 200, &ANSWER.replace("stop", "length"));
    assert!(settle(&turn).store.is_none());
    assert_eq!(settle(&turn).cost_nano_usd, 30_000);
}

#[test]
fn a_body_that_cannot_be_used_is_a_400_and_reserves_nothing() {
    let script = Script::default();
    for body in ["", "{", "[]", "{\"model\":\"fast\",\"model\":\"fast\",\"messages\":[{}]}", "\u{0}"] {
        let turn = script.call_with(&[], body);
        assert_eq!(code(&turn), (400, "invalid_request".into()), "{body}");
        assert_eq!(turn.effects.len(), 1);
    }
    let turn = script.open(&[]).stage.step(Event::TooLarge, &script);
    assert_eq!(code(&turn), (413, "request_too_large".into()));
    let turn = script.open(&[]).stage.step(Event::Overloaded, &script);
    assert_eq!(code(&turn), (503, "overloaded".into()));
}

#[test]
fn no_call_is_taken_while_settlements_pile_up() {
    let script = Script::default();
    script.full.set(true);
    assert_eq!(code(&script.call_with(&[], REQUEST)), (503, "overloaded".into()));
}

#[test]
fn other_paths_pass_untouched_or_are_not_found_as_configured() {
    let mut script = Script::default();
    let open =
        |script: &Script| Stage::open(RawHead { method: "GET".into(), path: "/v1/files?x=1".into(), headers: Default::default() }, script);
    assert_eq!(open(&script).effects, [Effect::Pass]);
    script.config = Config { other_paths: OtherPaths::NotFound, ..script.config };
    assert_eq!(code(&open(&script)), (404, "not_found".into()));
}

#[test]
fn the_query_goes_on_and_counts_in_the_cache_key() {
    let script = Script::default();
    let head = RawHead {
        method: "POST".into(),
        path: "/v1/chat/completions?api-version=2".into(),
        headers: [("authorization", "Bearer px_1")].into_iter().collect(),
    };
    let turn = Stage::open(head, &script).stage.step(Event::Body(REQUEST.into()), &script);
    assert_ne!(admission(&turn).normal.cache_key, admission(&script.call_with(&[], REQUEST)).normal.cache_key);
    let turn = turn.stage.step(admitted(Admitted::default()), &script);
    assert_eq!(callout(&turn).headers.get(":path"), Some("/v1/chat/completions?api-version=2"));
}
