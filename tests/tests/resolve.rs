//! Which models a name stands for: four levels, then what the key may use.

// Helpers of tests: a panic is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use proxium::mock_provider::{ANY, Behaviour};
use proxium_e2e::{BOUND, Call, Key, Response, Stack, chat, eventually};
use serde_json::{Value, json};

/// So that each call is answered by a model and none by the cache.
fn without_cache() -> Value {
    json!({"cache": {"exact": false}})
}

/// A miss is waited for until it is stored, so that the next call finds it.
async fn ask(stack: &Stack, key: &Key, model: &str, source: &str) -> Response {
    let call = Call::chat(key, &chat(model, "hi"));
    let answer = stack.call(&if source.is_empty() { call } else { call.header("x-proxium-source", source) }).await;
    if answer.status == 200 && answer.header("x-proxium-cache") == Some("miss") {
        stack.kept(&key.project, &answer).await;
    }
    answer
}

/// Waits until `model` asked for by this sender is answered so: by a model, or with an error code. A change acts within 2 s.
async fn becomes(stack: &Stack, key: &Key, model: &str, source: &str, wanted: &str) {
    eventually(&format!("{model} of {source:?} is {wanted}"), BOUND, || async {
        // A change is there when both workers know it.
        for _ in 0..6 {
            let answer = ask(stack, key, model, source).await;
            let got = answer.header("x-proxium-model").map_or_else(|| answer.code(), str::to_owned);
            if got != wanted {
                return Err(got);
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_of_the_four_levels_with_a_match_wins() {
    let stack = Stack::start().await;
    let (admin, key) = (stack.admin(), stack.key_with(without_cache(), json!({})).await);
    let project = format!("/projects/{}", key.project);
    let of_key = format!("{project}/keys/{}", key.id);
    let sender = format!("{project}/senders/app");

    becomes(&stack, &key, "fast", "app", "m1").await;
    let _ = admin.patch(&project, &json!({"rules": {"fast": ["m2"], "alias": ["m2"]}})).await.expect(200);
    becomes(&stack, &key, "fast", "app", "m2").await;
    let _ = admin.patch(&of_key, &json!({"rules": {"fast": ["m3"]}})).await.expect(200);
    becomes(&stack, &key, "fast", "app", "m3").await;
    becomes(&stack, &key, "alias", "app", "m2").await;
    let _ = admin.put(&sender, &json!({"rules": {"fast": ["m1"]}})).await.expect(200);
    becomes(&stack, &key, "fast", "app", "m1").await;

    // The sender's rule is that sender's alone, and another key of the project has no rule of its own.
    becomes(&stack, &key, "fast", "another", "m3").await;
    becomes(&stack, &key, "fast", "", "m3").await;
    let sibling = admin.key_of(&key.project, json!({})).await;
    becomes(&stack, &sibling, "fast", "", "m2").await;
    becomes(&stack, &sibling, "fast", "app", "m1").await;
    let stranger = stack.key_with(without_cache(), json!({})).await;
    becomes(&stack, &stranger, "fast", "app", "m1").await;
    becomes(&stack, &stranger, "alias", "app", "model_not_found").await;

    // And back, level by level.
    let _ = admin.delete(&sender).await.expect(204);
    becomes(&stack, &key, "fast", "app", "m3").await;
    let _ = admin.patch(&of_key, &json!({"rules": {}})).await.expect(200);
    becomes(&stack, &key, "fast", "app", "m3").await;
    let _ = admin.patch(&of_key, &json!({"rules": {"fast": null}})).await.expect(200);
    becomes(&stack, &key, "fast", "app", "m2").await;
    let _ = admin.patch(&project, &json!({"rules": null})).await.expect(200);
    becomes(&stack, &key, "fast", "app", "m1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_star_matches_every_name_and_a_name_goes_before_it() {
    let stack = Stack::start().await;
    let rules = json!({"*": ["m2"], "special": ["m3"]});
    let key = stack.key_with(without_cache(), json!({"rules": rules})).await;
    for (asked, answered) in [("special", "m3"), ("m1", "m2"), ("fast", "m2"), ("nobody-knows-this", "m2")] {
        assert_eq!(ask(&stack, &key, asked, "").await.header("x-proxium-model"), Some(answered), "{asked}");
    }
    // A star of a higher level wins over a name of a lower one.
    let key = stack.key_with(json!({"rules": {"special": ["m1"]}, "cache": {"exact": false}}), json!({"rules": {"*": ["m3"]}})).await;
    assert_eq!(ask(&stack, &key, "special", "").await.header("x-proxium-model"), Some("m3"));
    // A rule may name a chain of the catalog.
    let key = stack.key_with(json!({"rules": {"alias": ["fast", "m3"]}, "cache": {"exact": false}}), json!({})).await;
    stack.mocks.first.always(ANY, Behaviour::status(500));
    stack.mocks.second.always(ANY, Behaviour::status(500));
    let answer = ask(&stack, &key, "alias", "").await;
    assert_eq!((answer.header("x-proxium-model"), answer.header("x-proxium-attempts")), (Some("m3"), Some("3")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_is_at_most_four_entries_without_repetition() {
    let stack = Stack::builder()
        .catalog(|mocks| {
            let models: String = ["m1", "m2", "m3", "m4", "m5"].map(|name| format!("  {name}: {{provider: first, free: true}}\n")).concat();
            format!(
                "{}models:\n{models}chains:\n  all: [m1, m2, m1, m3, m4, m5]\n  tried: [m1, all]\n",
                proxium_e2e::catalog::providers(mocks)
            )
        })
        .and_catalog("breaker: {consecutive_failures: 100, min_requests: 1000}")
        .start()
        .await;
    let key = stack.key().await;
    stack.mocks.first.always(ANY, Behaviour::status(500));
    let refused = ask(&stack, &key, "tried", "").await.expect(502);
    let tried: Vec<String> = stack.mocks.first.requests().into_iter().map(|request| request.model).collect();
    assert_eq!(tried, ["m1", "m2", "m3", "m4"], "{}", refused.text());

    // Four of those that the key may use, not four of which it may use some.
    let key = stack.key_with(json!({}), json!({"allowed_models": ["m4", "m5"]})).await;
    stack.mocks.first.forget();
    let _ = ask(&stack, &key, "tried", "").await.expect(502);
    let tried: Vec<String> = stack.mocks.first.requests().into_iter().map(|request| request.model).collect();
    assert_eq!(tried, ["m4", "m5"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_gets_only_the_models_it_may_use_from_a_provider_and_from_the_cache() {
    let stack = Stack::start().await;
    let admin = stack.admin();
    let all = stack.key().await;
    let only_m2 = admin.key_of(&all.project, json!({"allowed_models": ["m2"]})).await;
    let only_m3 = admin.key_of(&all.project, json!({"allowed_models": ["m3"], "ceilings": {"calls_per_hour": 1}})).await;

    let _ = ask(&stack, &all, "fast", "").await.expect(200);
    let again = ask(&stack, &all, "fast", "").await;
    assert_eq!((again.header("x-proxium-model"), again.header("x-proxium-cache")), (Some("m1"), Some("hit")));
    // The same call with a key that may not use m1: neither that answer nor that model.
    let answer = ask(&stack, &only_m2, "fast", "").await.expect(200);
    assert_eq!((answer.header("x-proxium-model"), answer.header("x-proxium-cache")), (Some("m2"), Some("miss")));
    assert_eq!((stack.mocks.first.calls(ANY), stack.mocks.second.calls(ANY)), (1, 1));
    // Now that m2 has answered, its answer is a hit for a key that may use it, by whatever name.
    let answer = ask(&stack, &all, "m2", "").await.expect(200);
    assert_eq!((answer.header("x-proxium-model"), answer.header("x-proxium-cache")), (Some("m2"), Some("hit")));

    for (key, asked) in [(&only_m2, "m1"), (&only_m2, "m3"), (&only_m3, "fast"), (&only_m3, "m1")] {
        let refused = ask(&stack, key, asked, "").await.expect(403);
        assert_eq!(refused.code(), "model_not_allowed");
        let error = &refused.json()["error"];
        assert_eq!((&error["param"], &error["type"]), (&json!("model"), &json!("permission_error")));
        assert!(error["message"].as_str().is_some_and(|message| message.contains(asked)), "{error}");
    }
    // Refusals took no slot of the one that there is.
    assert!(stack.windows(&only_m3).await.is_empty());
    let _ = ask(&stack, &only_m3, "long", "").await.expect(200);
    let _ = stack.chat(&only_m3, &chat("m3", "another")).await.expect(429);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_model_is_404_and_takes_no_slot() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 1}})).await;
    let long = "m".repeat(256);
    for name in ["no-such-model", "M1", "m1 ", "../m1", "*", "\u{1f980}", "\u{0}", &long] {
        let refused = ask(&stack, &key, name, "").await.expect(404);
        assert_eq!(refused.code(), "model_not_found", "{name}");
        assert_eq!(refused.json()["error"]["param"], json!("model"));
    }
    assert!(stack.windows(&key).await.is_empty());
    let good = ask(&stack, &key, "m1", "").await.expect(200);
    assert_eq!(good.header("x-ratelimit-remaining-requests"), Some("0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_moves_to_another_model_does_not_bring_the_old_ones_answer_along() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({"rules": {"alias": ["m1"]}}), json!({})).await;
    let cache = |answer: &Response| answer.header("x-proxium-cache").unwrap_or_default().to_owned();
    assert_eq!(cache(&ask(&stack, &key, "alias", "").await.expect(200)), "miss");
    assert_eq!(cache(&ask(&stack, &key, "alias", "").await.expect(200)), "hit");
    let _ = stack.admin().patch(&format!("/projects/{}", key.project), &json!({"rules": {"alias": ["m2"]}})).await.expect(200);
    becomes(&stack, &key, "alias", "", "m2").await;
    assert_eq!(stack.mocks.second.calls("m2"), 1, "asked once, then known");
    // Both keep their own.
    assert_eq!(cache(&ask(&stack, &key, "m1", "").await.expect(200)), "hit");
    assert_eq!(stack.mocks.first.calls("m1"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_names_only_what_the_catalog_has() {
    let stack = Stack::start().await;
    let admin = stack.admin();
    for rules in [json!({"fast": ["m9"]}), json!({"fast": []}), json!({"fast": "m1"})] {
        let refused = admin.post("/projects", &json!({"name": "p", "rules": rules})).await;
        assert_eq!(refused.status, 400, "{rules}: {}", refused.text());
    }
}
