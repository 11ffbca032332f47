//! Callers that do what callers do: whole answers, streams, hang-ups, in both dialects, through both Envoys.

use crate::storm::{ENVOYS, Kills, Part};
use crate::tenants::{SENDER, Tenant};
use proxium_e2e::{Ask, Call, Caller, End, Response, streamed};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

pub const CLIENTS: u64 = 8;
/// What every call asks for, so that what a killed Envoy held is due so long after, and a grace.
pub const DEADLINE_MS: u64 = 8_000;

/// How a call ended for its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It has all of an answer.
    Answered { model: String, cache: String },
    /// An error of proxium, whole.
    Error { status: u16, code: String },
    /// No answer, or a part of one.
    Broken,
    /// It left in the middle of its stream.
    HungUp,
}

/// One call and what became of it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// In its text, and its end user's name.
    pub number: usize,
    /// The project's place.
    pub tenant: usize,
    pub envoy: usize,
    pub began: Instant,
    pub ended_at: Instant,
    pub ended: Ended,
}

impl Asked {
    /// Its Envoy was killed while or shortly after it ran: its settlement may have died with it.
    pub fn met_a_kill(&self, kills: &Kills) -> bool {
        /// Longer than any settlement waits to be tried, with Redis and all control planes killed together.
        const UNSETTLED: Duration = Duration::from_secs(15);
        kills.iter().any(|(part, at)| *part == Part::Envoy(self.envoy) && *at >= self.began && *at <= self.ended_at + UNSETTLED)
    }
}

/// What all callers share.
pub struct World {
    pub tenants: Vec<Tenant>,
    pub callers: Vec<Caller>,
    pub stop: AtomicBool,
    pub next: AtomicUsize,
}

/// One caller, until it is told to stop.
pub async fn run(world: Arc<World>, seed: u64) -> Vec<Asked> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut all = Vec::new();
    while !world.stop.load(SeqCst) {
        let asked = one(&world, &mut dice).await;
        let rest = if matches!(asked.ended, Ended::Broken | Ended::Error { status: 503, .. }) { 100..200 } else { 0..60 };
        all.push(asked);
        tokio::time::sleep(Duration::from_millis(dice.random_range(rest))).await;
    }
    all
}

async fn one(world: &World, dice: &mut StdRng) -> Asked {
    let number = world.next.fetch_add(1, SeqCst);
    let (tenant, envoy) = (dice.random_range(0..world.tenants.len()), dice.random_range(0..ENVOYS));
    let of = &world.tenants[tenant];
    let ask = *[Ask::Chat, Ask::Messages].choose(dice).unwrap();
    let mut body = ask.body(["m1-a2", "a1-m2"].choose(dice).unwrap(), &of.text(number, dice));
    body["max_tokens"] = 20.into();
    let (stream, leaves) = (dice.random_bool(0.5), dice.random_bool(0.15));
    let mut call = ask.call(&of.key, &if stream { streamed(body) } else { body });
    call = call.header("x-proxium-timeout-ms", &DEADLINE_MS.to_string()).header("x-proxium-user", &number.to_string());
    if of.sends_as_sender() {
        call = call.header("x-proxium-source", SENDER);
    }
    let began = Instant::now();
    let ended = if stream { read(&world.callers[envoy], &call, leaves).await } else { whole(&world.callers[envoy], &call).await };
    Asked { number, tenant, envoy, began, ended_at: Instant::now(), ended }
}

async fn whole(caller: &Caller, call: &Call) -> Ended {
    match caller.call(call).await {
        Ok(answer) => judged(&answer),
        Err(_) => Ended::Broken,
    }
}

async fn read(caller: &Caller, call: &Call, leaves: bool) -> Ended {
    let Ok(mut stream) = caller.try_stream(call).await else { return Ended::Broken };
    if leaves && stream.status == 200 && stream.next().await.is_some() {
        return Ended::HungUp;
    }
    let all = stream.rest().await;
    if all.end == End::Incomplete || (all.status == 200 && !all.is_terminated()) {
        return Ended::Broken;
    }
    judged(&all.answer())
}

fn judged(answer: &Response) -> Ended {
    let header = |name: &str| answer.header(name).unwrap_or_default().to_owned();
    match answer.status {
        200 => Ended::Answered { model: header("x-proxium-model"), cache: header("x-proxium-cache") },
        status => Ended::Error { status, code: answer.code() },
    }
}
