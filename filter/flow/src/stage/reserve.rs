//! One round trip to the control plane: the stored answer, or a reservation, or a refusal.

use super::call::Call;
use super::near::{self, Comparing};
use super::resolve::allowed;
use super::{lookup, record};
use crate::config::OnFailure;
use crate::control_plane;
use crate::flow::{Effect, Stage, Turn};
use crate::message::{Reply, Response};
use crate::price;
use crate::refusal::{Refusal, add_rate_limit};
use crate::request::CacheMode;
use crate::snapshot::Entry;
use crate::world::World;
use proxium_wire::admit_reply::Outcome;
use proxium_wire::{AdmitReply, AdmitRequest, Alternative, HOLD_GRACE_MS, Hit, Hold, NanoUsd, Settlement, StoredAnswer, path};
use std::borrow::Cow;
use std::rc::Rc;

/// Holds stay where a Lua number is exact, whatever a client asks for.
const MAX_HELD_TOKENS: u64 = 1 << 50;
/// The largest monthly cap; a larger hold is refused by any cap.
const MAX_HELD_NANO_USD: i64 = 9_000_000_000_000_000;

/// Asks for the admission.
pub fn enter(mut call: Box<Call>, world: &impl World) -> Turn {
    if world.outbox_full() {
        return call.refuse(&Refusal::Overloaded);
    }
    call.asked_ms = world.now_ms();
    let left_ms = call.deadline.left_ms(call.asked_ms);
    if left_ms == 0 {
        return call.refuse(&Refusal::DeadlineExceeded);
    }
    let request = request(&call, left_ms);
    let mut call = call;
    call.embeds = request.embed.is_some();
    let timeout_ms = left_ms.min(control_plane::TIMEOUT_MS);
    let mut callout = control_plane::callout(world.config(), path::ADMIT, call.head.headers.get("traceparent"), &request, timeout_ms);
    // Looking for near matches takes longer, and who has little time cannot wait for others.
    callout.groups = request.embed.is_none() && request.near.is_none() && timeout_ms == control_plane::TIMEOUT_MS;
    Turn::wait(Stage::Reserving(call), Effect::Call(callout))
}

/// Takes the admission.
pub fn reply(mut call: Box<Call>, reply: &Reply, world: &impl World) -> Turn {
    let outcome = control_plane::read::<AdmitReply>(reply).and_then(|reply| reply.outcome);
    // Told that the money of an embedding is not held, or what became of it.
    call.embeds &= outcome.is_none();
    match outcome {
        Some(Outcome::Hit(mut hit)) => {
            lookup::remember(&call, &hit, world);
            if hit.soft_cap {
                call.take_soft_cap_plan();
            }
            let mut effects = call.record_side_calls();
            // A hit with limits is a reservation of this id.
            if hit.rate_limit.is_none() {
                effects.extend(unmade(&call).map(Effect::Post));
            }
            let answer = std::mem::take(&mut hit.answer);
            effects.push(Effect::Respond(stored(&call, &hit, Cow::Owned(answer))));
            Turn::done(effects)
        }
        Some(Outcome::Admitted(admitted)) => {
            if admitted.soft_cap {
                call.take_soft_cap_plan();
            }
            call.admitted = Some(admitted);
            let beside = call.record_side_calls();
            beside.into_iter().fold(call.next(world), Turn::and)
        }
        Some(Outcome::Embed(admitted)) => near::embed(call, &admitted, world),
        Some(Outcome::Refused(refused)) => call.refuse_after(&Refusal::Capped(Box::new(refused)), unmade(&call)),
        Some(Outcome::InvalidKey(())) => {
            world.learn_key(call.key_hash, None, world.now_ms());
            call.refuse_after(&Refusal::InvalidKey, unmade(&call))
        }
        None if world.config().on_control_plane_failure == OnFailure::Allow => {
            let beside = call.record_side_calls();
            beside.into_iter().fold(call.next(world), Turn::and)
        }
        // The admission may have been made and only its answer be lost; a release may overtake it.
        None if call.deadline.left_ms(world.now_ms()) == 0 => call.refuse_after(&Refusal::DeadlineExceeded, call.release()),
        None => call.refuse_after(&Refusal::ControlPlaneUnavailable, call.release()),
    }
}

/// Where no reservation was made but it was asked for twice: the other asking may be yet to be done, and must find that it has ended.
fn unmade(call: &Call) -> Option<Settlement> {
    call.asked_again.then(|| call.release()).flatten()
}

fn request(call: &Call, left_ms: u64) -> AdmitRequest {
    AdmitRequest {
        id: call.head.request_id.clone(),
        project: call.key.project.clone(),
        key_id: call.key.key_id.clone(),
        source: call.controls.source.clone(),
        call: call.facts(),
        normal: normal(call),
        soft_cap: call
            .soft_cap_plan
            .first()
            .map(|first| Alternative { resolved_model: first.model.name.clone(), ..alternative(call, &call.soft_cap_plan) }),
        hold_ms: left_ms + HOLD_GRACE_MS,
        previous_response_id: call.request.previous_response_id.clone(),
        embed: call.comparing.as_ref().and_then(|comparing| comparing.embed(call)),
        near: call.comparing.as_ref().and_then(Comparing::near),
        ..AdmitRequest::default()
    }
}

/// The call by its plan; where that is not decided yet, the most it can come to, and whichever credentials the project has.
fn normal(call: &Call) -> Alternative {
    if !call.head.route.reserves_first() {
        return alternative(call, &call.plan);
    }
    let usable = |entry: &&Rc<Entry>| entry.serves(call.head.route.endpoint) && allowed(&call.key, &entry.model.name);
    let usable: Vec<Rc<Entry>> = call.snapshot.all().filter(usable).cloned().collect();
    Alternative { hold: hold(call, &usable), ..Alternative::default() }
}

/// The call by this plan.
fn alternative(call: &Call, plan: &[Rc<Entry>]) -> Alternative {
    let reads = call.controls.cache == CacheMode::Use;
    let key = |entry: &Rc<Entry>| call.cache.filter(|_| reads).map(|scope| scope.key(&entry.model.name).to_vec());
    Alternative {
        cache_key: plan.first().and_then(key).unwrap_or_default(),
        hold: hold(call, plan),
        providers: plan.iter().map(|entry| entry.provider.name.clone()).collect(),
        partition: plan.first().and_then(|entry| Some(call.comparing.as_ref()?.partition(&entry.model.name))).unwrap_or_default(),
        ..Alternative::default()
    }
}

/// The most this call is expected to use, over all entries of a plan.
pub(super) fn hold(call: &Call, plan: &[Rc<Entry>]) -> Hold {
    let money = plan.iter().map(|entry| worst(call, entry)).max().unwrap_or(NanoUsd::ZERO);
    let output_tokens = plan.iter().map(|entry| most_output_tokens(call, entry)).max().unwrap_or_default();
    Hold {
        input_tokens: call.input_tokens().min(MAX_HELD_TOKENS),
        output_tokens: output_tokens.min(MAX_HELD_TOKENS),
        nano_usd: money.0.min(MAX_HELD_NANO_USD),
    }
}

fn most_output_tokens(call: &Call, entry: &Entry) -> u64 {
    let most = entry.model.max_output_tokens;
    call.request.choices.saturating_mul(call.request.max_output_tokens.map_or(most, |asked| asked.min(most)))
}

/// The most this call is expected to cost on this entry.
pub(super) fn worst(call: &Call, entry: &Entry) -> NanoUsd {
    price::worst(call.input_tokens(), most_output_tokens(call, entry), call.request.searches, &entry.model.prices)
}

/// The answer of a hit, which stands beside it.
pub(super) fn stored(call: &Call, hit: &Hit, answer: Cow<'_, StoredAnswer>) -> Response {
    let mut headers = call.answer_headers(&answer.model, if hit.similarity_ppm.is_some() { "near" } else { "hit" });
    if let Some(ppm) = hit.similarity_ppm {
        headers.add("x-proxium-similarity", format!("{}.{:06}", ppm / 1_000_000, ppm % 1_000_000));
        headers.add("x-proxium-cached-request-id", answer.request_id.as_str());
    }
    headers.add("content-type", "application/json");
    if let Some(rate_limit) = &hit.rate_limit {
        add_rate_limit(&mut headers, rate_limit);
    }
    let body = match answer {
        Cow::Borrowed(answer) => Cow::Borrowed(answer.body.as_slice()),
        Cow::Owned(answer) => Cow::Owned(answer.body),
    };
    record::respond(call, headers, NanoUsd(hit.charged_nano_usd), 200, body)
}
