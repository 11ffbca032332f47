//! Usage, cost, settlement, the answer: recorded and stored first, then returned.

use super::attempt::TO_CLIENT;
use super::call::Call;
use crate::dialect::{self, input_tokens, text_tokens};
use crate::flow::{Effect, Stage, Turn};
use crate::message::{Answer, Response};
use crate::price;
use crate::snapshot::Entry;
use crate::world::World;
use proxium_wire::settlement::End;
use proxium_wire::{Settle, Settlement, Store, StoredAnswer, Usage};

/// A larger answer is not stored.
const MAX_STORED_BYTES: usize = 2 << 20;

/// Records an answer and returns it once that is acknowledged.
pub fn answered(call: &Call, entry: &Entry, answer: Answer, read: &dialect::Answer, world: &impl World) -> Turn {
    let estimate = || Usage { input: input_tokens(&call.body), output: text_tokens(read.message_bytes), ..Usage::default() };
    let usage = read.usage.unwrap_or_else(estimate);
    let cost = price::cost(&usage, &entry.model.prices);
    let store = call.cache.filter(|_| read.complete && answer.body.len() <= MAX_STORED_BYTES).map(|scope| Store {
        cache_key: scope.key(&entry.model.name).to_vec(),
        answer: StoredAnswer {
            body: answer.body.clone(),
            model: entry.model.name.clone(),
            cost_nano_usd: cost.0,
            request_id: call.head.request_id.clone(),
        },
        ttl_s: call.key.project_record.cache_ttl_s,
    });
    let settle = Settle {
        usage,
        cost_nano_usd: cost.0,
        estimated: read.usage.is_none(),
        latency_ms: world.now_ms().saturating_sub(call.head.arrived_ms),
        store,
        ..unpaid(call, entry)
    };
    let mut headers = call.answer_headers(&entry.model.name, call.cache_label());
    headers.copy_allowed(&answer.headers, TO_CLIENT);
    headers.add("x-proxium-cost-usd", cost.to_string());
    let response = Response { status: answer.status, headers, body: answer.body };
    Turn::wait(Stage::Recording(Box::new(response)), Effect::Settle(call.settlement(End::Settle(Box::new(settle)))))
}

/// Settles a call that its caller ended after it was sent: nothing is known of the answer, so the input is charged as estimated.
pub fn abandoned(call: &Call, entry: &Entry, now_ms: u64) -> Settlement {
    let usage = Usage { input: input_tokens(&call.body), ..Usage::default() };
    let settle = Settle {
        usage,
        cost_nano_usd: price::cost(&usage, &entry.model.prices).0,
        estimated: true,
        abandoned: true,
        latency_ms: now_ms.saturating_sub(call.head.arrived_ms),
        ..unpaid(call, entry)
    };
    call.settlement(End::Settle(Box::new(settle)))
}

fn unpaid(call: &Call, entry: &Entry) -> Settle {
    Settle {
        call: call.facts(),
        model: entry.model.name.clone(),
        provider: entry.provider.name.clone(),
        attempts: call.attempts.clone(),
        ..Settle::default()
    }
}
