//! `make bench ARGS=near`: what a near match costs among few and among many questions of one project, vectors of 384 numbers.

use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand};
use prost::Message;
use proxium::store::name;
use proxium_e2e::Stack;
use proxium_wire::{AdmitReply, AdmitRequest, Alternative, Call, Endpoint, Hold, Near, StoredAnswer, admit_reply::Outcome, path};
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const DIMENSIONS: usize = 384;
const COUNTS: [usize; 2] = [1_000, 100_000];
/// Look-ups of each measurement.
const PROBES: usize = 500;
/// Vectors sent at once: few enough to be in before a command counts as lost.
const CHUNK: usize = 100;
const QUESTION: &str = "How do I reset my password?";

/// Numbers from -1 to 1, the same at each run: vectors without any structure, the hardest to search.
struct Numbers(u64);

impl Numbers {
    fn vector(&mut self) -> Vec<u8> {
        let mut number = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..DIMENSIONS).flat_map(|_| number().to_le_bytes()).collect()
    }
}

/// Fills, measures, prints a row for each size.
pub async fn run() -> ExitCode {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({}), json!({})).await;
    let redis = stack.redis_client().await;
    let partition = vec![7; 32];
    let set = name::vector_set(&key.project, &hex::encode(&partition));
    let answer = StoredAnswer { body: b"{}".to_vec(), model: "m1".into(), question: QUESTION.into(), ..StoredAnswer::default() };
    let mut numbers = Numbers(1);
    let (mut there, mut known) = (0, Vec::new());
    println!("| questions | Redis' VSIM p50 | admission with a near hit p50 | p95 |\n|---|---|---|---|");
    for count in COUNTS {
        while there < count {
            let pipeline = redis.pipeline();
            for number in there..there + CHUNK {
                let vector = numbers.vector();
                let element = hex::encode((number as u64).to_be_bytes());
                if number % (count / PROBES).max(1) == 0 {
                    let body = Value::Bytes(answer.encode_to_vec().into());
                    let () = pipeline.set(name::answer(&key.project, &element), body, None, None, false).await.unwrap();
                    known.push(vector.clone());
                }
                let args: Vec<Value> =
                    vec![set.as_str().into(), "FP32".into(), Value::Bytes(vector.into()), element.into(), "NOQUANT".into()];
                let () = pipeline.custom(CustomCommand::new_static("VADD", ClusterHash::FirstKey, false), args).await.unwrap();
            }
            let _: Vec<Value> = pipeline.all().await.unwrap();
            there += CHUNK;
        }
        let (mut bare, mut whole) = (Vec::new(), Vec::new());
        for (number, vector) in known.iter().rev().take(PROBES).enumerate() {
            let args: Vec<Value> = vec![
                set.as_str().into(),
                "FP32".into(),
                Value::Bytes(vector.clone().into()),
                "WITHSCORES".into(),
                "COUNT".into(),
                8.into(),
            ];
            let began = Instant::now();
            let _: Value = redis.custom(CustomCommand::new_static("VSIM", ClusterHash::FirstKey, false), args).await.unwrap();
            bare.push(began.elapsed());

            let request = AdmitRequest {
                id: format!("req_{count}_{number}"),
                project: key.project.clone(),
                key_id: key.id.clone(),
                call: Call { endpoint: Endpoint::Chat.into(), ..Call::default() },
                normal: Alternative { hold: Hold::default(), partition: partition.clone(), ..Alternative::default() },
                near: Some(Near { vector: vector.clone(), question: QUESTION.into(), threshold_ppm: 950_000 }),
                hold_ms: 60_000,
                ..AdmitRequest::default()
            };
            let began = Instant::now();
            let reply: AdmitReply = stack.control_planes[0].tell(path::ADMIT, &request).await.expect("an admission");
            whole.push(began.elapsed());
            assert!(matches!(reply.outcome, Some(Outcome::Hit(_))), "{reply:?}");
        }
        let at = |times: &mut Vec<Duration>, percent: usize| {
            times.sort_unstable();
            times[times.len() * percent / 100].as_secs_f64() * 1e3
        };
        println!("| {count} | {:.2} ms | {:.2} ms | {:.2} ms |", at(&mut bare, 50), at(&mut whole, 50), at(&mut whole, 95));
    }
    ExitCode::SUCCESS
}
