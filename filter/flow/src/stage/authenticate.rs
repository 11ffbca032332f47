//! Whose key is it, and may it still call? Before the body is read.

use super::call::Opened;
use super::list;
use crate::config::{OnFailure, OtherPaths};
use crate::control_plane;
use crate::endpoint::{self, StageName};
use crate::flow::{Effect, RawHead, Stage, Turn};
use crate::message::Reply;
use crate::refusal::Refusal;
use crate::request::{Controls, Head, key_hash};
use crate::told::Told;
use crate::world::{KeyHash, World};
use proxium_wire::{AuthenticateReply, AuthenticateRequest, Dialect, KeyRecord, SnapshotReply, SnapshotRequest, path};
use std::rc::Rc;

/// A request whose key is not known yet.
#[derive(Debug)]
pub struct Opening {
    head: Head,
    key_hash: KeyHash,
    waits_for: WaitsFor,
}

#[derive(Debug)]
enum WaitsFor {
    Snapshot,
    Key { asked_ms: u64 },
}

/// Takes a request's head.
pub fn open(raw: RawHead, world: &impl World) -> Turn {
    let (path, query) = match raw.path.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (raw.path.as_str(), None),
    };
    let Some(route) = endpoint::route(&raw.method, path) else {
        return match world.config().other_paths {
            OtherPaths::Continue => Turn::done(vec![Effect::Pass]),
            OtherPaths::NotFound => Turn::refuse(&Refusal::PathNotFound, Dialect::Openai, &request_id(world)),
        };
    };
    let route = route.spoken(&raw.headers);
    let path = path.to_owned();
    let head = Head { route, path, query, headers: raw.headers, arrived_ms: world.now_ms(), request_id: request_id(world) };
    match key_hash(&head.headers) {
        Err(refusal) => refuse(&head, &refusal),
        Ok(key_hash) if world.snapshot().is_none() => {
            let call = call(&head, world, path::SNAPSHOT, &SnapshotRequest::default());
            Turn::wait(Stage::Authenticating(Box::new(Opening { head, key_hash, waits_for: WaitsFor::Snapshot })), call)
        }
        Ok(key_hash) => identify(head, key_hash, world),
    }
}

/// Takes the control plane's answer.
pub fn reply(opening: Opening, reply: &Reply, world: &impl World) -> Turn {
    let Opening { head, key_hash, waits_for } = opening;
    match waits_for {
        WaitsFor::Snapshot => match control_plane::read::<SnapshotReply>(reply) {
            Some(snapshot) => {
                world.learn_snapshot(snapshot);
                identify(head, key_hash, world)
            }
            None => refuse(&head, &Refusal::ControlPlaneUnavailable),
        },
        WaitsFor::Key { asked_ms } => match control_plane::read::<AuthenticateReply>(reply) {
            Some(answer) => {
                let record = answer.key.map(Rc::new);
                world.learn_key(key_hash, record.clone(), asked_ms);
                check(head, key_hash, record, world)
            }
            None => match (world.config().on_control_plane_failure, world.known_key(&key_hash)) {
                (OnFailure::Allow, Some(known)) => check(head, key_hash, known.record, world),
                _ => refuse(&head, &Refusal::ControlPlaneUnavailable),
            },
        },
    }
}

/// The control plane's answer is there and cannot be taken.
pub fn overloaded(opening: &Opening) -> Turn {
    refuse(&opening.head, &Refusal::Overloaded)
}

fn identify(head: Head, key_hash: KeyHash, world: &impl World) -> Turn {
    match world.known_key(&key_hash) {
        Some(known) if known.fresh => check(head, key_hash, known.record, world),
        _ => {
            let call = call(&head, world, path::AUTHENTICATE, &AuthenticateRequest { key_hash: key_hash.to_vec() });
            Turn::wait(
                Stage::Authenticating(Box::new(Opening { head, key_hash, waits_for: WaitsFor::Key { asked_ms: world.now_ms() } })),
                call,
            )
        }
    }
}

fn check(head: Head, key_hash: KeyHash, record: Option<Rc<KeyRecord>>, world: &impl World) -> Turn {
    let alive = |key: &Rc<KeyRecord>| !key.revoked && key.expires_at_ms.is_none_or(|end| world.now_ms() < end);
    let Some(key) = record.filter(alive) else {
        return refuse(&head, &Refusal::InvalidKey);
    };
    let Some(snapshot) = world.snapshot() else {
        return refuse(&head, &Refusal::ControlPlaneUnavailable);
    };
    match Controls::read(&head.headers) {
        Err(refusal) => refuse(&head, &refusal),
        Ok(controls) => {
            world.tell(Told::Key(&key));
            let opened = Opened { head, controls, key_hash, key, snapshot };
            if opened.head.route.stages.contains(&StageName::List) {
                return list::enter(&opened);
            }
            let max_bytes = opened.max_body_bytes();
            Turn::wait(Stage::Reading(Box::new(opened)), Effect::ReadBody { max_bytes })
        }
    }
}

fn call(head: &Head, world: &impl World, path: &str, message: &impl prost::Message) -> Effect {
    Effect::Call(control_plane::callout(world.config(), path, head.headers.get("traceparent"), message, control_plane::TIMEOUT_MS))
}

fn refuse(head: &Head, refusal: &Refusal) -> Turn {
    Turn::refuse(refusal, head.route.dialect, &head.request_id)
}

fn request_id(world: &impl World) -> String {
    format!("req_{}", world.new_id())
}
