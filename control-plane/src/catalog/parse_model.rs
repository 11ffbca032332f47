//! The `models` of a catalog, with their prices.

use super::reader::At;
use super::{Faults, Model, scalar};
use proxium_wire::{Endpoint, Prices};
use std::collections::{BTreeMap, BTreeSet};

/// What a model generates at most where the catalog does not say: enough for long answers, and still a hold that a small budget bears.
const DEFAULT_MAX_OUTPUT_TOKENS: u64 = 16_384;
const DEFAULT_TIMEOUT_MS: u64 = 120_000;
const DEFAULT_FIRST_BYTE_TIMEOUT_MS: u64 = 20_000;

const ENDPOINTS: [Endpoint; 6] =
    [Endpoint::Chat, Endpoint::Messages, Endpoint::Embeddings, Endpoint::Responses, Endpoint::Moderations, Endpoint::Rerank];

pub(super) fn models(at: &At<'_>, providers: &BTreeSet<&str>, faults: &mut Faults) -> BTreeMap<String, Model> {
    let mut models = BTreeMap::new();
    for (name, at) in at.entries(faults) {
        if let Err(fault) = scalar::model_name(name) {
            faults.add(&at.path, fault);
        }
        if let Some(model) = model(name, at, providers, faults) {
            models.insert(name.to_owned(), model);
        }
    }
    models
}

fn model(name: &str, at: At<'_>, providers: &BTreeSet<&str>, faults: &mut Faults) -> Option<Model> {
    let path = at.path.clone();
    let mut table = at.required("write its provider and its prices", faults).table(faults)?;
    let provider = table.field("provider").required("name one of `providers`", faults).read(faults, |text| {
        providers.contains(text).then(|| text.to_owned()).ok_or_else(|| format!("names `{text}`, which is no provider here"))
    });
    let upstream = table.field("upstream");
    let upstream = match upstream.text(faults) {
        Some(text) if text.is_empty() || text.len() > 256 || text.chars().any(char::is_control) => {
            faults.add(&upstream.path, "must be 1 to 256 characters without control characters");
            None
        }
        text => text,
    };
    let endpoints = endpoints(&table.field("endpoints"), faults);
    let generates = endpoints.iter().any(|endpoint| matches!(endpoint, Endpoint::Chat | Endpoint::Messages | Endpoint::Responses));
    let prices = prices(
        &path,
        &PriceFields {
            free: table.field("free"),
            per_mtok: table.field("price_usd_per_mtok"),
            per_call: table.field("price_usd_per_call"),
            per_search: table.field("price_usd_per_search"),
        },
        generates,
        faults,
    );
    let max_output_tokens = table.field("max_output_tokens").read(faults, |text| scalar::whole(text, 1, 10_000_000));
    let timeout_ms = table.field("timeout").read(faults, scalar::duration_ms).unwrap_or(DEFAULT_TIMEOUT_MS);
    let at_first_byte = table.field("first_byte_timeout");
    let first_byte = at_first_byte.read(faults, scalar::duration_ms).unwrap_or(DEFAULT_FIRST_BYTE_TIMEOUT_MS.min(timeout_ms));
    if first_byte > timeout_ms {
        faults.add(&at_first_byte.path, "must not be longer than the model's `timeout`");
    }
    table.finish(faults);
    Some(Model {
        provider: provider?,
        upstream: upstream.unwrap_or(name).to_owned(),
        prices: prices?,
        max_output_tokens: max_output_tokens.unwrap_or(if generates { DEFAULT_MAX_OUTPUT_TOKENS } else { 0 }),
        timeout_ms,
        first_byte_timeout_ms: first_byte,
        endpoints,
    })
}

fn endpoints(at: &At<'_>, faults: &mut Faults) -> Vec<Endpoint> {
    let Some(items) = at.items(faults) else { return vec![Endpoint::Chat, Endpoint::Messages] };
    if items.is_empty() {
        faults.add(&at.path, "must name at least one endpoint, or be left out for [chat, messages]");
    }
    let known = || ENDPOINTS.map(Endpoint::name).join(", ");
    let mut endpoints = Vec::new();
    for item in items {
        let endpoint = item.required("name an endpoint", faults).read(faults, |text| {
            ENDPOINTS.into_iter().find(|endpoint| endpoint.name() == text).ok_or_else(|| format!("must be one of {}", known()))
        });
        endpoints.extend(endpoint.filter(|endpoint| !endpoints.contains(endpoint)));
    }
    endpoints
}

struct PriceFields<'a> {
    free: At<'a>,
    per_mtok: At<'a>,
    per_call: At<'a>,
    per_search: At<'a>,
}

/// The table is required of every model that generates; one that does not may be priced per call or search alone.
fn prices(model: &str, fields: &PriceFields<'_>, generates: bool, faults: &mut Faults) -> Option<Prices> {
    let free = fields.free.flag(faults).unwrap_or(false);
    let no_pieces = fields.per_call.is_absent() && fields.per_search.is_absent();
    if free {
        if !fields.per_mtok.is_absent() || !no_pieces {
            faults.add(&fields.free.path, "cannot stand beside a price: keep one of them");
        }
        return Some(Prices::default());
    }
    if fields.per_mtok.is_absent() && (generates || no_pieces) {
        faults.add(model, "has no price: write price_usd_per_mtok: {input: …, output: …}, or free: true");
        return None;
    }
    let per_call = fields.per_call.read(faults, scalar::price_per_piece).unwrap_or(0);
    let per_search = fields.per_search.read(faults, scalar::price_per_piece).unwrap_or(0);
    if fields.per_mtok.is_absent() {
        return Some(Prices { per_call, per_search, ..Prices::default() });
    }
    let mut table = fields.per_mtok.table(faults)?;
    let mut price = |name, required: bool| {
        let at = table.field(name);
        let at = if required { at.required("USD per million tokens, like 0.25", faults) } else { at };
        at.read(faults, scalar::price_per_mtok)
    };
    let input = price("input", true);
    let cached_input = price("cached_input", false);
    let cache_write_5m = price("cache_write_5m", false);
    let cache_write_1h = price("cache_write_1h", false);
    let output = price("output", generates);
    let reasoning_output = price("reasoning_output", false);
    table.finish(faults);
    let input = input?;
    Some(Prices {
        input,
        cached_input: cached_input.unwrap_or(input),
        cache_write_5m: cache_write_5m.unwrap_or(input),
        cache_write_1h: cache_write_1h.unwrap_or(input),
        output: if generates { output? } else { output.unwrap_or(0) },
        reasoning_output,
        per_call,
        per_search,
    })
}
