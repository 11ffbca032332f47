//! The official Node SDKs, unchanged, each over providers of both dialects. What they check is in `sdk/*.mjs`; a script prints one line
//! for each behaviour.

use proxium_e2e::Sdk;

#[tokio::test(flavor = "multi_thread")]
async fn openais_sdk_works_over_both_dialects() {
    Sdk::start().await.node("openai_client.mjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropics_sdk_works_over_both_dialects() {
    Sdk::start().await.node("anthropic_client.mjs").await;
}
