//! Usage, cost, settlement, the answer: recorded and stored first, then returned.

use super::attempt::TO_CLIENT;
use super::call::Call;
use crate::dialect::{self, count_tokens, text_tokens};
use crate::flow::{Effect, Stage, Turn};
use crate::message::{Answer, Headers, Response};
use crate::price;
use crate::request::CacheMode;
use crate::snapshot::Entry;
use crate::stream;
use crate::world::World;
use proxium_wire::change::What;
use proxium_wire::settlement::End;
use proxium_wire::{Change, NanoUsd, Settle, Settlement, Store, StoredAnswer, Usage};
use std::borrow::Cow;

/// A larger answer is not stored.
pub const MAX_STORED_BYTES: usize = 2 << 20;

/// Records an answer, in the client's dialect by now, and returns it once that is acknowledged.
pub fn answered(call: &Call, entry: &Entry, answer: Answer, read: &dialect::Answer, dropped: &[String], world: &impl World) -> Turn {
    let mut headers = answer_headers(call, entry, dropped);
    headers.copy_allowed(&answer.headers, TO_CLIENT);
    let (usage, estimated) = used(call, entry, read);
    let cost = price::cost(&usage, &entry.model.prices);
    let settle = Settle {
        usage,
        cost_nano_usd: cost.0,
        estimated,
        store: store(call, entry, cost, read.complete.then_some(&answer.body), world),
        response_id: read.response_id.clone(),
        ..ended(call, entry, world.now_ms())
    };
    match call.settlement(End::Settle(Box::new(settle))) {
        Some(settlement) => {
            let response = respond(call, headers, cost, answer.status, Cow::Owned(answer.body));
            Turn::wait(Stage::Recording(Box::new(response)), Effect::Settle(settlement))
        }
        None => Turn::done(vec![Effect::Respond(respond(call, headers, NanoUsd::ZERO, answer.status, Cow::Owned(answer.body)))]),
    }
}

/// What an answer used, and whether something that it costs by was not told and is estimated.
fn used(call: &Call, entry: &Entry, read: &dialect::Answer) -> (Usage, bool) {
    let estimate = || Usage { input: call.input_tokens(), output: text_tokens(read.message_bytes), ..Usage::default() };
    let usage = read.usage.unwrap_or_else(estimate);
    let prices = &entry.model.prices;
    let by_search_alone = read.searches.is_some() && prices.input == 0 && prices.output == 0;
    let estimated = (read.usage.is_none() && !by_search_alone) || (read.searches.is_none() && prices.per_search > 0);
    (Usage { searches: read.searches.unwrap_or(call.request.searches), ..usage }, estimated)
}

/// Answers with the estimate of the request's tokens.
pub fn counted(call: &Call, entry: &Entry) -> Turn {
    let mut headers = answer_headers(call, entry, &[]);
    headers.add("content-type", "application/json");
    Turn::done(vec![Effect::Respond(respond(call, headers, NanoUsd::ZERO, 200, Cow::Owned(count_tokens(&call.body))))])
}

/// The headers of an answer that this entry gave.
pub fn answer_headers(call: &Call, entry: &Entry, dropped: &[String]) -> Headers {
    let mut headers = call.answer_headers(&entry.model.name, call.cache_label());
    if !dropped.is_empty() {
        headers.add("x-proxium-dropped", dropped.join(", "));
    }
    headers
}

/// A whole answer as the client wants it: as it is, or replayed as a stream.
pub fn respond(call: &Call, mut headers: Headers, cost: NanoUsd, status: u16, body: Cow<'_, [u8]>) -> Response {
    if call.request.stream
        && let Some(body) = stream::replay(call.head.route.speaks, &body, call.request.include_usage)
    {
        headers.set("content-type", "text/event-stream");
        return Response { status, headers, body, code: None };
    }
    headers.add("x-proxium-cost-usd", cost.to_string());
    Response { status, headers, body: body.into_owned(), code: None }
}

/// What to keep of an answer; `complete`: its body in the client's dialect, if it ended by itself.
pub fn store(call: &Call, entry: &Entry, cost: NanoUsd, complete: Option<&Vec<u8>>, world: &impl World) -> Option<Store> {
    let body = complete.filter(|body| body.len() <= MAX_STORED_BYTES)?;
    let cache_key = call.cache?.key(&entry.model.name).to_vec();
    let renews = call.controls.cache == CacheMode::Refresh;
    if let (true, Some(l1)) = (renews, world.l1()) {
        // Other workers are told by the poll; here the caller may ask again at once.
        let change = Change { what: Some(What::Answer(cache_key.clone())) };
        l1.borrow_mut().forget(&[change], world.now_ms());
    }
    Some(Store {
        cache_key,
        answer: StoredAnswer {
            body: body.clone(),
            model: entry.model.name.clone(),
            cost_nano_usd: cost.0,
            request_id: call.head.request_id.clone(),
        },
        ttl_s: call.key.project_record.cache_ttl_s,
        renews,
        memories: call.recalled.as_ref().map(|recalled| recalled.stamps.clone()).unwrap_or_default(),
        vector: call.comparing.as_ref().and_then(|comparing| comparing.stored(&entry.model.name)),
    })
}

/// Settles a call that its caller ended after it was sent: nothing is known of the answer, so the input is charged as estimated.
pub fn abandoned(call: &Call, entry: &Entry, now_ms: u64) -> Option<Settlement> {
    let usage = Usage { input: call.input_tokens(), searches: call.request.searches, ..Usage::default() };
    let settle = Settle {
        usage,
        cost_nano_usd: price::cost(&usage, &entry.model.prices).0,
        estimated: true,
        abandoned: true,
        ..ended(call, entry, now_ms)
    };
    call.settlement(End::Settle(Box::new(settle)))
}

/// What a settlement says of a call that ended now, but for its usage and cost.
pub fn ended(call: &Call, entry: &Entry, now_ms: u64) -> Settle {
    Settle {
        call: call.facts(),
        model: entry.model.name.clone(),
        provider: entry.provider.name.clone(),
        own_credential: call.owns_credential(&entry.provider.name),
        attempts: call.attempts.clone(),
        latency_ms: now_ms.saturating_sub(call.head.arrived_ms),
        ..Settle::default()
    }
}
