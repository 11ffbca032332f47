//! The official SDKs, unchanged, as clients of the other endpoints. What they check is in `sdk/endpoints_client.*`.

use proxium::mock_provider::Behaviour;
use proxium_e2e::{Stack, catalog, run_client};
use serde_json::json;

/// Python asks all models, Node one of them.
async fn on(streams: &str, models: &[&str], of_node: &str) {
    let stack = Stack::builder().catalog(catalog::every_endpoint).render("--streams", streams).start().await;
    let key = stack.key().await;
    let capped = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 0}})).await;
    let narrow = stack.key_with(json!({}), json!({"allowed_models": ["o1"]})).await;
    // Orders in a user's text become calls of tools.
    for (mock, model) in [(&stack.mocks.first, "p1"), (&stack.mocks.third, "c3"), (&stack.mocks.third, "a3")] {
        mock.always(model, Behaviour::by_name("mock-tools"));
    }
    for &model in models {
        let env = [("MODEL", model), ("CAPPED_KEY", capped.text.as_str()), ("NARROW_KEY", narrow.text.as_str()), ("PROVIDER", "openai")];
        run_client(&stack, &key, "endpoints_client.py", &env).await;
        if model == of_node {
            run_client(&stack, &key, "endpoints_client.mjs", &env).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sdks_work_with_streams_through_the_router() {
    on("router", &["respond", "c3", "a3"], "respond").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sdks_work_with_streams_replayed_from_whole_answers() {
    on("callout", &["respond", "c3"], "c3").await;
}
