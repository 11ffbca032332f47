//! The catalog as it is in use, without credentials.

use super::State;
use axum::Json;
use axum::extract::State as Extract;
use proxium_wire::{Dialect, Endpoint, NanoUsd};
use serde_json::{Value, json};

/// Pico-USD per token are micro-USD per million tokens.
fn usd_per_mtok(pico_per_token: u64) -> String {
    i64::try_from(pico_per_token).ok().and_then(|micro| micro.checked_mul(1_000)).map_or_else(String::new, |nano| NanoUsd(nano).to_string())
}

pub async fn show(Extract(state): Extract<State>) -> Json<Value> {
    let catalog = state.catalog.current();
    let wire = catalog.to_wire();
    let providers: Vec<_> = wire
        .providers
        .iter()
        .map(|provider| {
            json!({
                "name": provider.name,
                "dialect": match provider.dialect() { Dialect::Openai => "openai", Dialect::Anthropic => "anthropic" },
                "cluster": provider.cluster,
                "authority": provider.authority,
                "path_prefix": provider.path_prefix,
                "has_credential": provider.credential.is_some(),
                "responses": if provider.chat_only { "chat" } else { "native" },
            })
        })
        .collect();
    let models: Vec<_> = wire
        .models
        .iter()
        .map(|model| {
            json!({
                "name": model.name,
                "provider": model.provider,
                "upstream": model.upstream,
                "endpoints": model.endpoints().map(Endpoint::name).collect::<Vec<_>>(),
                "max_output_tokens": model.max_output_tokens,
                "timeout_ms": model.timeout_ms,
                "price_usd_per_mtok": {
                    "input": usd_per_mtok(model.prices.input),
                    "cached_input": usd_per_mtok(model.prices.cached_input),
                    "output": usd_per_mtok(model.prices.output),
                },
            })
        })
        .collect();
    let chains: serde_json::Map<_, _> = wire.chains.iter().map(|(name, chain)| (name.clone(), json!(chain.names))).collect();
    Json(json!({
        "revision": catalog.revision(),
        "fault": state.catalog.last_fault(),
        "providers": providers,
        "models": models,
        "chains": chains,
    }))
}

#[cfg(test)]
mod tests {
    use super::usd_per_mtok;

    #[test]
    fn prices_are_shown_as_the_catalog_writes_them() {
        assert_eq!(usd_per_mtok(250_000), "0.25");
        assert_eq!(usd_per_mtok(2_000_000), "2");
        assert_eq!(usd_per_mtok(0), "0");
    }
}
