//! `GET /v1/models`: what a key may call, without asking a provider.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::ANY;
use proxium_e2e::{Call, Key, Response, Stack, catalog};
use serde_json::{Value, json};

async fn get(stack: &Stack, key: &Key, path: &str) -> Response {
    stack.call(&Call::new("GET", path).header("authorization", &format!("Bearer {}", key.text))).await
}

fn ids(list: &Response) -> Vec<String> {
    list.json()["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_told_by_what_the_key_may_use_and_no_provider_is_asked() {
    let stack = Stack::builder().catalog(catalog::every_endpoint).start().await;
    let all = stack.key().await;
    let told = get(&stack, &all, "/v1/models").await.expect(200);
    assert_eq!(ids(&told), ["a3", "c3", "e1", "e2", "embed", "m1", "moderate", "o1", "o2", "p1", "p2", "r1", "r2", "rank", "respond"]);
    assert_eq!((told.header("content-type"), told.json()["object"].as_str()), (Some("application/json"), Some("list")));
    assert!(told.header("x-proxium-request-id").unwrap().starts_with("req_"));

    let narrow = stack.key_with(json!({"rules": {"mine": ["p2", "m1"], "theirs": ["m1"]}}), json!({"allowed_models": ["p2"]})).await;
    assert_eq!(ids(&get(&stack, &narrow, "/v1/models").await.expect(200)), ["mine", "p2", "respond"]);
    assert_eq!(get(&stack, &narrow, "/v1/models/mine").await.expect(200).json()["owned_by"], "proxium");
    assert_eq!(get(&stack, &narrow, "/v1/models/p2").await.expect(200).json()["owned_by"], "second");
    for hidden in ["m1", "theirs", "embed", "nothing"] {
        assert_eq!(get(&stack, &narrow, &format!("/v1/models/{hidden}")).await.expect(404).code(), "model_not_found");
    }

    // A ceiling does not count it, and nobody without a key is told anything.
    let capped = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 0}})).await;
    let _ = get(&stack, &capped, "/v1/models").await.expect(200);
    let _ = stack.call(&Call::new("GET", "/v1/models")).await.expect(401);
    for mock in [&stack.mocks.first, &stack.mocks.second, &stack.mocks.third] {
        assert_eq!(mock.calls(ANY), 0);
    }

    // Anthropic's clients are told in their dialect, page by page.
    let page = |query: &str| {
        let call = Call::new("GET", &format!("/v1/models{query}")).header("x-api-key", &all.text).header("anthropic-version", "2023-06-01");
        async { stack.call(&{ call }).await }
    };
    let first = page("?limit=10").await.expect(200).json();
    assert_eq!((&first["has_more"], first["data"][0]["type"].as_str()), (&Value::Bool(true), Some("model")));
    let last = first["last_id"].as_str().unwrap();
    let rest = page(&format!("?limit=10&after_id={last}")).await.expect(200).json();
    assert_eq!((&rest["has_more"], rest["data"].as_array().unwrap().len()), (&Value::Bool(false), 5));
    assert_eq!(page("/nothing").await.expect(404).json()["error"]["type"], "not_found_error");
}
