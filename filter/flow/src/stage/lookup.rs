//! Is the answer known already? Asks the worker's own memory, else decides the exact key: that look-up travels with the reservation, and
//! precedes it there.

use super::call::Call;
use super::near::Comparing;
use super::reserve;
use crate::cache_key::{self, CacheScope};
use crate::flow::{Effect, Turn};
use crate::message::Response;
use crate::request::CacheMode;
use crate::world::World;
use proxium_wire::settlement::End;
use proxium_wire::{Hit, Hits};
use std::borrow::Cow;

/// Answers from memory, or decides where answers to this call are cached, if at all.
pub fn enter(mut call: Box<Call>, world: &impl World) -> Turn {
    if !call.key.project_record.exact_cache || call.controls.cache == CacheMode::Bypass {
        return call.next(world);
    }
    if let Some(response) = remembered(&call, world) {
        return Turn::done(vec![Effect::Respond(response)]);
    }
    call.cache = Some(CacheScope::new(&call.key.project, &call.head, &call.body.canonical));
    call.comparing = Comparing::of(&call);
    call.next(world)
}

/// Where a free hit is a hit at once. Not with memories: what is deleted with them is not announced to workers.
fn material(call: &Call) -> Option<Vec<u8>> {
    let free = call.controls.cache == CacheMode::Use && call.key.project_record.cached_answer_charge_ppm == 0;
    let first = call.plan.first().filter(|_| free && call.recalled.is_none())?;
    Some(cache_key::material(&call.key.project, &call.head, &first.model.name, &call.body.canonical))
}

/// The answer of a free hit in this worker. The control plane hears of it later.
fn remembered(call: &Call, world: &impl World) -> Option<Response> {
    let answer = world.l1()?.borrow_mut().find(&material(call)?, world.now_ms())?;
    let hits = Hits { call: call.facts(), model: answer.model.clone(), count: 1 };
    world.count_hit(proxium_wire::Settlement { id: String::new(), ..call.settlement(End::Hits(hits))? });
    Some(reserve::stored(call, &Hit::default(), Cow::Borrowed(&answer)))
}

/// Keeps an exact hit of the normal plan that Redis answered.
pub fn remember(call: &Call, hit: &Hit, world: &impl World) {
    if hit.soft_cap || hit.similarity_ppm.is_some() {
        return;
    }
    if let (Some(l1), Some(material), Some(scope), Some(first)) = (world.l1(), material(call), call.cache, call.plan.first()) {
        l1.borrow_mut().keep(material, &call.key.project, scope.key(&first.model.name), hit, call.asked_ms);
    }
}
