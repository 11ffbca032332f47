//! What is remembered of this project and end user? Added to the messages before anything looks at them.

use super::call::Call;
use super::near;
use super::rank::{self, Choice};
use crate::config::OnFailure;
use crate::control_plane;
use crate::dialect::NOT_IN_CACHE_KEY;
use crate::flow::{Effect, Stage, Turn};
use crate::json::Document;
use crate::memory;
use crate::message::Reply;
use crate::refusal::Refusal;
use crate::world::World;
use proxium_wire::{MemoryStamp, RecallReply, RecallRequest, path};

/// What a call carries of memories.
#[derive(Debug)]
pub struct Recalled {
    /// How many.
    pub count: usize,
    /// Some are an end user's.
    pub of_end_user: bool,
    /// The states of the memories it carries: its answer is stored with them, and goes with them.
    pub stamps: Vec<MemoryStamp>,
}

/// Asks for the memories, if the project has memory on and the call wants them.
pub fn enter(call: Box<Call>, world: &impl World) -> Turn {
    if !call.controls.recall || !call.key.project_record.memory {
        return call.next(world);
    }
    // Ranking is paid for; a count is free, and as many of the newest are about as long.
    let ranks_by = near::model(&call).filter(|_| call.head.route.reserves());
    let request = RecallRequest {
        project: call.key.project.clone(),
        end_user: call.end_user().to_owned(),
        ranks_by: ranks_by.map(|entry| entry.model.name.clone()).unwrap_or_default(),
        ..RecallRequest::default()
    };
    let timeout_ms = call.deadline.left_ms(world.now_ms()).min(control_plane::TIMEOUT_MS);
    if timeout_ms == 0 {
        return call.refuse(&Refusal::DeadlineExceeded);
    }
    let callout = control_plane::callout(world.config(), path::RECALL, call.head.headers.get("traceparent"), &request, timeout_ms);
    Turn::wait(Stage::Recalling(call), Effect::Call(callout))
}

/// Takes the memories, newest first; where they are more than the call can take, a choice is made of them.
pub fn reply(call: Box<Call>, reply: &Reply, world: &impl World) -> Turn {
    let Some(RecallReply { memories, stamps, unembedded, ranks, .. }) = control_plane::read(reply) else {
        return match world.config().on_control_plane_failure {
            OnFailure::Allow => call.next(world),
            OnFailure::Deny if call.deadline.left_ms(world.now_ms()) == 0 => call.refuse(&Refusal::DeadlineExceeded),
            OnFailure::Deny => call.refuse(&Refusal::ControlPlaneUnavailable),
        };
    };
    let all_fit = memory::within_budget(&memories).len() == memories.len();
    let choice = Choice { memories, stamps, unembedded };
    if all_fit || !ranks { take(call, choice, world) } else { rank::enter(call, choice, world) }
}

/// Takes as many as the budget holds, in the choice's order.
pub(super) fn take(mut call: Box<Call>, choice: Choice, world: &impl World) -> Turn {
    let taken = memory::within_budget(&choice.memories);
    let stamps = choice.stamps.iter().filter(|stamp| taken.iter().any(|memory| memory.end_user == stamp.end_user)).cloned().collect();
    call.recalled = Some(Recalled { count: taken.len(), of_end_user: taken.iter().any(|memory| !memory.end_user.is_empty()), stamps });
    if let Some(body) = memory::added(&call.body, call.head.route.dialect, &taken) {
        match Document::read(body, NOT_IN_CACHE_KEY) {
            Ok(body) => call.body = body,
            Err(fault) => return call.refuse(&Refusal::from(fault)),
        }
    }
    call.next(world)
}
