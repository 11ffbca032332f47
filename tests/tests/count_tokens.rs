//! `/v1/messages/count_tokens` (known fault 94): a provider's own count or the estimate, never charged.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium_e2e::{Call, Key, Response, Sdk, chat};
use serde_json::json;

async fn count(sdk: &Sdk, key: &Key, model: &str) -> Response {
    let call = Call::new("POST", "/v1/messages/count_tokens?beta=true").header("x-api-key", &key.text);
    sdk.stack.call(&call.json(&chat(model, "one two three"))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_counted_over_both_dialects_with_failover_and_nothing_is_charged() {
    let sdk = Sdk::start().await;
    let rules = json!({"rules": {"both": ["anthropic-dead", "anthropic-echo"], "one": ["anthropic-error-500", "openai-echo"]}});
    let key = sdk.stack.key_with(rules, json!({"ceilings": {"calls_per_hour": 1}})).await;
    assert_eq!(sdk.stack.chat(&key, &chat("openai-echo", "the only call")).await.status, 200);
    let before = sdk.stack.closed_books(&key, 1).await;
    sdk.stack.mocks.first.forget();

    // Its key is used up, and a count is no call.
    for (model, counted) in [("anthropic-echo", 3), ("both", 3), ("openai-echo", 19), ("one", 19)] {
        let answer = count(&sdk, &key, model).await.expect(200);
        assert_eq!(answer.json(), json!({"input_tokens": counted}), "{model}");
        assert_eq!(answer.header("x-proxium-cost-usd"), Some("0"));
    }
    let paths: Vec<String> = sdk.stack.mocks.first.requests().into_iter().map(|request| request.path).collect();
    assert_eq!(paths, vec!["/v1/messages/count_tokens?beta=true"; 3], "no OpenAI provider is called");
    assert_eq!(sdk.stack.books(&key).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_is_refused_in_the_anthropic_dialect() {
    let sdk = Sdk::start().await;
    let key = sdk.stack.key_with(json!({}), json!({"allowed_models": ["openai-echo"]})).await;
    let nobody = Key { text: "px_nobody".into(), ..key.clone() };
    for (key, model, status, kind) in [
        (&nobody, "openai-echo", 401, "authentication_error"),
        (&key, "anthropic-echo", 403, "permission_error"),
        (&key, "none", 404, "not_found_error"),
    ] {
        let answer = count(&sdk, key, model).await.expect(status);
        assert_eq!((&answer.json()["type"], &answer.json()["error"]["type"]), (&json!("error"), &json!(kind)));
    }
    assert!(sdk.stack.mocks.first.requests().iter().all(|request| !request.path.contains("count_tokens")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_call_would_remember_is_counted() {
    let sdk = Sdk::start().await;
    let key = sdk.stack.key_with(json!({"memory": true}), json!({})).await;
    let memories = format!("/projects/{}/memories", key.project);
    for (text, end_user) in [("The shop closes at six.", None), ("Ann likes tea.", Some("ann"))] {
        let _ = sdk.stack.admin().post(&memories, &json!({"text": text, "end_user": end_user})).await.expect(201);
    }
    let counted = async |model: &str, end_user: &str, recall: bool| {
        let call = Call::new("POST", "/v1/messages/count_tokens").header("x-api-key", &key.text).json(&chat(model, "one two three"));
        let call = if recall { call.header("x-proxium-memory", "recall").header("x-proxium-user", end_user) } else { call };
        let answer = sdk.stack.call(&call).await.expect(200);
        let told = answer.header("x-proxium-memories").map(str::to_owned);
        (answer.json()["input_tokens"].as_u64().unwrap(), told)
    };
    for model in ["anthropic-echo", "openai-echo"] {
        let (plain, none) = counted(model, "ann", false).await;
        let (projects, one) = counted(model, "bob", true).await;
        let (anns, two) = counted(model, "ann", true).await;
        assert_eq!((none, one.as_deref(), two.as_deref()), (None, Some("1"), Some("2")), "{model}");
        assert!(plain < projects && projects < anns, "{model}: {plain} {projects} {anns}");
    }
    let seen = sdk.stack.mocks.first.requests().pop().unwrap().json();
    assert!(seen["system"].to_string().contains("Ann likes tea."), "{seen}");
    assert!(sdk.stack.ledger(&key.project).await.is_empty());
}
