#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, missing_docs)] // a surprise is a failed test
//! Embeddings, moderations and rerank: reserved before they are resolved, never cached; what a limit refuses beats every other fault.

mod world;

use proxium_flow::message::Failure;
use proxium_flow::{Effect, Event, Turn};
use proxium_wire::{AdmitReply, Admitted, Catalog, Dialect, Endpoint, Limit, OwnCredential, Prices, RateLimit, Refused, admit_reply};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;
use world::*;

const EMBED: &str = r#"{"model":"embed","input":"hello there"}"#;
const VECTORS: &str =
    r#"{"object":"list","data":[{"embedding":[0.5],"index":0}],"model":"x","usage":{"prompt_tokens":7,"total_tokens":7}}"#;
const MODERATE: &str = r#"{"input":"hello there"}"#;
const RESULTS: &str = r#"{"id":"modr","results":[{"flagged":false}]}"#;
const RANK: &str = r#"{"model":"rank","query":"q","documents":["a","b"]}"#;
const RANKED: &str = r#"{"results":[{"index":0,"relevance_score":0.9}],"meta":{"billed_units":{"search_units":1}}}"#;

/// Models for each endpoint; of embeddings two, the dearer one second.
fn with_models(catalog: &mut Catalog) {
    let mut add = |name: &str, provider: &str, endpoint: Endpoint, prices: Prices| {
        let mut model = model(name, provider, 0, 0);
        (model.prices, model.max_output_tokens, model.endpoints) = (prices, 0, vec![endpoint.into()]);
        catalog.models.push(model);
    };
    let input = |input| Prices { input, ..Prices::default() };
    add("embed-small", "one", Endpoint::Embeddings, input(20_000));
    add("embed-large", "two", Endpoint::Embeddings, input(130_000));
    add("omni-moderation-latest", "one", Endpoint::Moderations, Prices::default());
    add("rank", "three", Endpoint::Rerank, Prices { per_search: 2_000_000_000, ..Prices::default() });
    catalog.chains.insert("embed".into(), names(&["embed-small", "embed-large"]));
}

fn script() -> Script {
    Script::with_catalog(with_models)
}

fn ask(script: &Script, path: &str, body: &str) -> Turn {
    let turn = script.open_at(path, &[]);
    assert!(matches!(turn.effects[..], [Effect::ReadBody { .. }]), "{:?}", turn.effects);
    turn.stage.step(Event::Body(body.as_bytes().to_vec()), script)
}

fn embed(script: &Script, body: &str) -> Turn {
    ask(script, "/v1/embeddings", body)
}

fn let_in(script: &Script, turn: Turn) -> Turn {
    turn.stage.step(admitted(Admitted::default()), script)
}

#[test]
fn the_limits_are_asked_first_for_the_dearest_model_the_key_may_use() {
    let turn = embed(&script(), EMBED);
    let admission = admission(&turn);
    assert_eq!((admission.call.requested_model.as_str(), admission.call.resolved_model.as_str()), ("embed", ""));
    assert!(admission.normal.cache_key.is_empty() && admission.normal.providers.is_empty() && admission.soft_cap.is_none());
    let hold = admission.normal.hold;
    // `{"input":"hello there"}` is 23 bytes: 8 tokens at 130 nano-USD.
    assert_eq!((hold.input_tokens, hold.output_tokens, hold.nano_usd), (8, 0, 1_040));

    let narrow = Script::with_key(|key| key.allowed_models = vec!["embed-small".into()]);
    narrow.catalog.swap(&script().catalog);
    assert_eq!(world::admission(&embed(&narrow, EMBED)).normal.hold.nano_usd, 160);
}

#[test]
fn tokens_named_as_such_are_held_and_estimated_by_their_number() {
    let turn = embed(&script(), r#"{"model":"embed","input":[[1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1],[1]]}"#);
    assert_eq!(admission(&turn).normal.hold.input_tokens, 20);
}

#[test]
fn an_answer_is_settled_by_its_usage_and_returned_as_it_is() {
    let script = script();
    let turn = let_in(&script, embed(&script, EMBED));
    let call = callout(&turn);
    assert_eq!((call.headers.get(":path"), call.headers.get("authorization")), (Some("/v1/embeddings"), Some("Bearer sk-one")));
    assert_eq!(call.body, EMBED.replace("\"embed\"", "\"embed-small-v1\"").into_bytes());
    let turn = script.answer(turn, 200, VECTORS);
    let settled = settle(&turn);
    assert_eq!((settled.usage.input, settled.cost_nano_usd, settled.estimated, settled.store.is_some()), (7, 140, false, false));
    assert_eq!(settled.call.resolved_model, "embed-small");
    let turn = turn.stage.step(control_plane(proxium_wire::SettleReply {}), &script);
    let response = response(&turn);
    assert_eq!((response.status, response.body.as_slice()), (200, VECTORS.as_bytes()));
    assert_eq!((response.headers.get("x-proxium-cache"), response.headers.get("x-proxium-cost-usd")), (Some("bypass"), Some("0.00000014")));
}

#[test]
fn it_fails_over_and_estimates_what_is_not_told() {
    let script = script();
    let turn = script.answer(let_in(&script, embed(&script, EMBED)), 200, r#"{"object":"list","data":[]}"#);
    assert_eq!(callout(&turn).headers.get(":authority"), Some("two.test"));
    let turn = script.answer(turn, 200, r#"{"data":[{"embedding":"AAAA"}]}"#);
    let settled = settle(&turn);
    assert_eq!((settled.model.as_str(), settled.usage.input, settled.cost_nano_usd, settled.estimated), ("embed-large", 8, 1_040, true));
}

#[test]
fn a_refusal_of_the_limits_beats_every_fault_of_the_request() {
    let script = Script::with_key(|key| key.allowed_models = vec!["rank".into()]);
    script.catalog.swap(&self::script().catalog);
    for (body, status) in [
        ("{", 400),
        (r#"{"model":"embed"}"#, 400),
        (r#"{"model":"nothing","input":"x"}"#, 404),
        (r#"{"model":"small","input":"x"}"#, 404),
        (EMBED, 403),
    ] {
        let turn = embed(&script, body);
        let refused =
            Refused { limit: Limit::RequestsPerMinute.into(), of_sender: false, retry_after_ms: None, rate_limit: RateLimit::default() };
        let capped = turn.stage.step(control_plane(AdmitReply { outcome: Some(admit_reply::Outcome::Refused(refused)) }), &script);
        assert_eq!(code(&capped), (429, "tenant_capped".into()), "{body}");
        assert!(matches!(capped.effects[..], [Effect::Respond(_)]), "nothing was reserved: {:?}", capped.effects);

        let turn = let_in(&script, embed(&script, body));
        assert_eq!(code(&turn).0, status, "{body}");
        assert!(released(&turn), "{body}");
    }
}

#[test]
fn what_a_call_holds_is_given_back_when_nobody_answered() {
    let script = script();
    let turn = script.fail(let_in(&script, embed(&script, &EMBED.replace("embed", "embed-small"))), Failure::Connect);
    assert_eq!(code(&turn), (502, "providers_failed".into()));
    assert!(released(&turn));
    let turn = let_in(&script, embed(&script, EMBED)).stage.step(Event::Closed { by_client: true }, &script);
    assert_eq!((settle(&turn).abandoned, settle(&turn).cost_nano_usd), (true, 160));
}

#[test]
fn a_moderation_needs_no_model_and_a_free_one_costs_nothing() {
    let script = script();
    let turn = let_in(&script, ask(&script, "/v1/moderations", MODERATE));
    assert_eq!(callout(&turn).headers.get(":path"), Some("/v1/moderations"));
    assert_eq!(callout(&turn).body, br#"{"input":"hello there","model":"omni-moderation-latest-v1"}"#);
    let turn = script.answer(turn, 200, RESULTS);
    assert_eq!((settle(&turn).model.as_str(), settle(&turn).cost_nano_usd), ("omni-moderation-latest", 0));
}

#[test]
fn a_rerank_is_held_and_priced_by_the_search() {
    let script = script();
    let turn = ask(&script, "/v1/rerank", RANK);
    assert_eq!(admission(&turn).normal.hold.nano_usd, 2_000_000);
    let turn = script.answer(let_in(&script, turn), 200, RANKED);
    assert_eq!((settle(&turn).usage.searches, settle(&turn).cost_nano_usd, settle(&turn).estimated), (1, 2_000_000, false));
    // Not told: as many as its documents are taken for.
    let turn = script.answer(let_in(&script, ask(&script, "/v1/rerank", RANK)), 200, r#"{"results":[],"usage":{"total_tokens":9}}"#);
    assert_eq!((settle(&turn).usage.searches, settle(&turn).usage.input, settle(&turn).estimated), (1, 9, true));
}

#[test]
fn a_projects_own_credential_is_taken() {
    let script = script();
    let own = Admitted { credentials: vec![OwnCredential { provider: "one".into(), secret: "own".into() }], ..Admitted::default() };
    let turn = embed(&script, EMBED).stage.step(admitted(own), &script);
    assert_eq!(callout(&turn).headers.get("authorization"), Some("Bearer own"));
}

#[test]
fn a_provider_without_the_endpoint_is_passed_over() {
    let script = Script::with_catalog(|catalog| {
        with_models(catalog);
        catalog.providers[0].dialect = Dialect::Anthropic.into();
    });
    let turn = let_in(&script, embed(&script, EMBED));
    assert_eq!(callout(&turn).headers.get(":authority"), Some("two.test"));
    let turn = let_in(&script, embed(&script, &EMBED.replace("embed", "embed-small")));
    assert_eq!(code(&turn), (400, "invalid_request".into()));
    assert!(released(&turn));
}
