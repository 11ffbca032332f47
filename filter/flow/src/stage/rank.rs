//! Which memories, where there are more than a call can take: those nearest to its question, if texts can be compared. Whatever goes wrong,
//! the newest.

use super::call::Call;
use super::side::{self, Ask, Purpose};
use super::{near, recall};
use crate::control_plane;
use crate::deadline::Share;
use crate::dialect::text_tokens;
use crate::flow::{Effect, Stage, Turn};
use crate::message::Reply;
use crate::question::last_user_text;
use crate::request::CacheMode;
use crate::snapshot::Entry;
use crate::value::{json, written};
use crate::world::World;
use proxium_wire::admit_reply::Outcome;
use proxium_wire::settlement::End;
use proxium_wire::{AdmitReply, Alternative, Memory, MemoryStamp, MemoryVector, RecallReply, RecallRequest, Store, StoredAnswer, path};
use sha2::{Digest, Sha256};
use std::rc::Rc;

/// So long is kept which vector a question has: a call that is repeated buys none.
const KEPT_S: u32 = 3_600;

/// The memories that a choice is made of.
#[derive(Debug)]
pub struct Choice {
    /// All of them, newest first.
    pub memories: Vec<Memory>,
    /// The states of their owners' memories.
    pub stamps: Vec<MemoryStamp>,
    /// Ids of those that have no vector yet.
    pub unembedded: Vec<String>,
}

/// Asks for the money of the vectors, or for the question's as it was. Nothing to ask for: the newest are taken.
pub fn enter(mut call: Box<Call>, choice: Choice, world: &impl World) -> Turn {
    let left_ms = call.deadline.left_ms(world.now_ms());
    let question = last_user_text(&call.body);
    let Some(entry) = near::model(&call).filter(|_| left_ms > 0 && !question.is_empty() && !world.outbox_full()) else {
        return recall::take(call, choice, world);
    };
    let texts = texts(&question, &choice);
    let known = choice.unembedded.is_empty() && call.controls.cache == CacheMode::Use;
    let normal = Alternative {
        cache_key: if known { key(&call, &entry, &question) } else { Vec::new() },
        hold: side::hold(&entry, tokens(&texts), 0),
        providers: vec![entry.provider.name.clone()],
        ..Alternative::default()
    };
    let admission = side::admission(&call, Purpose::Rank, &entry, normal, None, left_ms, world);
    call.choice = Some(choice);
    Turn::wait(Stage::Ranking(call), admission)
}

/// Takes the question's vector as it was, or has it made.
pub fn reply(call: Box<Call>, reply: &Reply, world: &impl World) -> Turn {
    match control_plane::read::<AdmitReply>(reply).and_then(|reply| reply.outcome) {
        Some(Outcome::Hit(hit)) => embedded(call, Some(vec![hit.answer.body]), world),
        Some(Outcome::Admitted(admitted)) => {
            let ask = ask(&call, world);
            side::start(call, Purpose::Rank, ask, &admitted, world)
        }
        Some(Outcome::Refused(_) | Outcome::InvalidKey(()) | Outcome::Embed(_)) => embedded(call, None, world),
        None => {
            let release = side::release(&call, Purpose::Rank);
            embedded(call, None, world).and(Effect::PostSide(release))
        }
    }
}

/// Asks which memories are nearest to the question's vector, the first; the others are of those that had none.
pub fn embedded(mut call: Box<Call>, vectors: Option<Vec<Vec<u8>>>, world: &impl World) -> Turn {
    let Some(choice) = call.choice.take() else { return call.next(world) };
    let left_ms = call.deadline.left_ms(world.now_ms());
    let (Some(mut vectors), Some(entry), true) = (vectors.map(Vec::into_iter), near::model(&call), left_ms > 0) else {
        return recall::take(call, choice, world);
    };
    let vector = vectors.next().unwrap_or_default();
    keep(&mut call, &entry, &vector);
    let of = |id: &String| choice.memories.iter().find(|memory| memory.id == *id).map(|memory| memory.end_user.clone());
    let fresh = choice.unembedded.iter().zip(vectors);
    let fresh = fresh.filter_map(|(id, vector)| Some(MemoryVector { id: id.clone(), end_user: of(id)?, vector })).collect();
    let request = RecallRequest {
        project: call.key.project.clone(),
        end_user: call.end_user().to_owned(),
        ranks_by: entry.model.name.clone(),
        vector,
        fresh,
    };
    call.choice = Some(choice);
    let timeout_ms = left_ms.min(control_plane::TIMEOUT_MS);
    let callout = control_plane::callout(world.config(), path::RECALL, call.head.headers.get("traceparent"), &request, timeout_ms);
    Turn::wait(Stage::Sorting(call), Effect::Call(callout))
}

/// Takes the nearest memories first, as far as they are known.
pub fn sorted(mut call: Box<Call>, reply: &Reply, world: &impl World) -> Turn {
    let Some(mut choice) = call.choice.take() else { return call.next(world) };
    if let Some(RecallReply { nearest, .. }) = control_plane::read(reply) {
        for id in nearest.iter().rev() {
            if let Some(memories) = choice.memories.iter().position(|memory| memory.id == *id).and_then(|at| choice.memories.get_mut(..=at))
            {
                memories.rotate_right(1);
            }
        }
    }
    recall::take(call, choice, world)
}

/// Has the question's vector kept once it is paid for.
fn keep(call: &mut Call, entry: &Entry, vector: &[u8]) {
    if call.controls.cache == CacheMode::Bypass {
        return;
    }
    let id = side::id(call, Purpose::Rank);
    let store = Store {
        cache_key: key(call, entry, &last_user_text(&call.body)),
        answer: StoredAnswer {
            body: vector.to_vec(),
            model: entry.model.name.clone(),
            request_id: call.head.request_id.clone(),
            ..StoredAnswer::default()
        },
        ttl_s: KEPT_S,
        ..Store::default()
    };
    if let Some(End::Settle(settle)) = call.side_calls.iter_mut().find(|side| side.id == id).and_then(|side| side.end.as_mut()) {
        settle.store = Some(store);
    }
}

fn key(call: &Call, entry: &Entry, question: &str) -> Vec<u8> {
    let mut hash = Sha256::new();
    for part in ["vector", call.key.project.as_str(), entry.model.name.as_str(), question] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().to_vec()
}

/// The question, then the texts that have no vector.
fn texts<'a>(question: &'a str, choice: &'a Choice) -> Vec<&'a str> {
    let of = |id: &String| choice.memories.iter().find(|memory| memory.id == *id).map(|memory| memory.text.as_str());
    std::iter::once(question).chain(choice.unembedded.iter().filter_map(of)).collect()
}

fn tokens(texts: &[&str]) -> u64 {
    texts.iter().map(|text| text_tokens(text.len() as u64)).sum()
}

fn ask(call: &Call, world: &impl World) -> Option<Ask> {
    let (entry, choice): (Rc<Entry>, _) = (near::model(call)?, call.choice.as_ref()?);
    let own_timeout_ms = entry.model.timeout_ms.min(near::TIMEOUT_MS);
    let Share { timeout_ms, .. } = call.deadline.share(world.now_ms(), own_timeout_ms, true)?;
    let question = last_user_text(&call.body);
    let texts = texts(&question, choice);
    let body = json!({"model": entry.model.upstream, "input": texts, "encoding_format": "float"});
    let input_tokens = tokens(&texts);
    Some(Ask { path: "/embeddings", body: written(&body).into_bytes(), input_tokens, timeout_ms, own_timeout_ms, entry })
}
