//! `make bench ARGS=near`: what a near match costs among few and among many questions of one project, as the filter sees it: the whole
//! admission by the control plane, beside that of an exact hit. Questions and answers are kept as calls keep them, by their settlements.

use fred::prelude::*;
use futures_util::stream::{self, StreamExt};
use proxium::store::{Money, name};
use proxium_e2e::{Key, Stack};
use proxium_wire::{
    AdmitReply, AdmitRequest, Alternative, Call, Endpoint, Hold, Near, Settle, SettleRequest, Settlement, Store, StoredAnswer, Vector,
    admit_reply::Outcome, path, settlement::End,
};
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Numbers of a vector, as those of all-MiniLM-L6-v2; a first argument changes it.
const DIMENSIONS: usize = 384;
const COUNTS: [usize; 3] = [1_000, 10_000, 100_000];
/// Look-ups of each measurement.
const PROBES: usize = 1_000;
/// Settlements under way at once.
const AT_ONCE: usize = 64;
/// All questions may be compared but for what they say.
const PARTITION: [u8; 32] = [7; 32];

/// Numbers from -1 to 1, the same for the same seed.
fn vector(seed: usize, dimensions: usize) -> Vec<f32> {
    let mut state = seed as u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..dimensions).map(|_| number()).collect()
}

fn bytes(vector: impl IntoIterator<Item = f32>) -> Vec<u8> {
    vector.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// The exact key of the answer to a question.
fn cache_key(number: usize) -> Vec<u8> {
    [&(number as u64).to_be_bytes()[..], &[0; 24]].concat()
}

/// What a call leaves behind that was answered and could be compared.
fn settlement(key: &Key, number: usize, dimensions: usize) -> Settlement {
    let id = format!("req_{number}");
    let answer = StoredAnswer { body: vec![b'x'; 500], model: "m1".into(), request_id: id.clone(), ..StoredAnswer::default() };
    let vector = Vector {
        partition: PARTITION.to_vec(),
        vector: bytes(vector(number, dimensions)),
        question: format!("How do I reset the password of account {number}?"),
    };
    let store = Store { cache_key: cache_key(number), answer, ttl_s: 3_600, vector: Some(vector), ..Store::default() };
    let settle = Settle { model: "m1".into(), store: Some(store), ..Settle::default() };
    Settlement {
        id,
        project: key.project.clone(),
        key_id: key.id.clone(),
        end: Some(End::Settle(Box::new(settle))),
        ..Settlement::default()
    }
}

/// A call with the exact key of a stored answer, or with none and another wording of its question, as near as 0.98.
fn admission(key: &Key, number: usize, exact: bool, dimensions: usize) -> AdmitRequest {
    let noise = vector(usize::MAX - number, dimensions);
    let near = vector(number, dimensions).into_iter().zip(noise).map(|(known, noise)| 0.2f32.mul_add(noise, known));
    let near = Near {
        vector: bytes(near),
        question: format!("Please tell me how I can reset the password of account {number}."),
        threshold_ppm: 950_000,
    };
    let cache_key = if exact { cache_key(number) } else { vec![0xff; 32] };
    AdmitRequest {
        id: format!("look_{number}_{exact}"),
        project: key.project.clone(),
        key_id: key.id.clone(),
        call: Call { endpoint: Endpoint::Chat.into(), ..Call::default() },
        normal: Alternative { cache_key, hold: Hold::default(), partition: PARTITION.to_vec(), ..Alternative::default() },
        near: (!exact).then_some(near),
        hold_ms: 60_000,
        ..AdmitRequest::default()
    }
}

/// The p50 and the p99 of admissions that are hits, in milliseconds.
async fn look_up(stack: &Stack, key: &Key, count: usize, exact: bool, dimensions: usize) -> (f64, f64) {
    let mut times: Vec<Duration> = Vec::with_capacity(PROBES);
    for probe in 0..PROBES {
        let number = probe * (count / PROBES);
        let request = admission(key, number, exact, dimensions);
        let began = Instant::now();
        let reply: AdmitReply = stack.control_planes[0].tell(path::ADMIT, &request).await.expect("an admission");
        times.push(began.elapsed());
        let Some(Outcome::Hit(hit)) = reply.outcome else { panic!("no hit: {reply:?}") };
        assert_eq!((hit.answer.request_id, hit.similarity_ppm.is_none()), (format!("req_{number}"), exact));
    }
    times.sort_unstable();
    let at = |percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e3;
    (at(50), at(99))
}

/// Fills, measures, prints a row for each size.
pub async fn run(dimensions: Option<usize>) -> ExitCode {
    let dimensions = dimensions.unwrap_or(DIMENSIONS);
    let stack = Stack::start().await;
    let key = stack.key_with(json!({}), json!({})).await;
    let redis = stack.redis_client().await;
    let money = Money::new(redis.clone(), redis.clone());
    println!("vectors of {dimensions} numbers\n");
    println!("| questions in the project | near hit p50 | p99 | exact hit p50 | p99 | to store one |\n|---|---|---|---|---|---|");
    let mut there = 0;
    for count in COUNTS {
        let began = Instant::now();
        let settlements = stream::iter(there..count).map(|number| {
            let (money, request) = (&money, SettleRequest { settlements: vec![settlement(&key, number, dimensions)] });
            async move { money.settle(&request).await.expect("it is stored") }
        });
        let stored = settlements.buffer_unordered(AT_ONCE).count().await;
        let store_ms = began.elapsed().as_secs_f64() * 1e3 / stored as f64;
        there = count;
        let kept: usize = redis.zcard(name::vectors(&key.project)).await.expect("Redis answers");
        assert_eq!(kept, count, "every question can be found");

        let (exact, exact_p99) = look_up(&stack, &key, count, true, dimensions).await;
        let (near, near_p99) = look_up(&stack, &key, count, false, dimensions).await;
        println!("| {count} | {near:.2} ms | {near_p99:.2} ms | {exact:.2} ms | {exact_p99:.2} ms | {store_ms:.2} ms |");
    }
    ExitCode::SUCCESS
}
