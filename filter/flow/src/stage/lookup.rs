//! Is the answer known already? Decides the exact key; the look-up itself travels with the reservation, and precedes it there.

use super::call::Call;
use super::near::Comparing;
use crate::cache_key::CacheScope;
use crate::flow::Turn;
use crate::request::CacheMode;
use crate::world::World;

/// Decides where answers to this call are cached, if at all.
pub fn enter(mut call: Box<Call>, world: &impl World) -> Turn {
    if call.key.project_record.exact_cache && call.controls.cache != CacheMode::Bypass {
        call.cache = Some(CacheScope::new(&call.key.project, &call.head, &call.body.canonical));
        call.comparing = Comparing::of(&call);
    }
    call.next(world)
}
