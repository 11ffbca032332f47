//! Near matches: what counts as near with real sentence vectors, pair by pair, and who is asked when.

// Helpers of tests: a panic is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use fred::prelude::*;
use proxium::store::name;
use proxium_e2e::{BOUND, Call, Key, MiniLm, Response, Stack, binaries, catalog, eventually};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A pair of `near/pairs.txt`.
struct Pair {
    kind: String,
    questions: [String; 2],
}

fn pairs() -> Vec<Pair> {
    let (mut pairs, mut kind) = (Vec::new(), "");
    for line in include_str!("near/pairs.txt").lines().filter(|line| !line.starts_with("# ")) {
        if let Some(name) = line.strip_prefix("## ") {
            kind = name;
        } else if let Some((one, other)) = line.split_once(" || ") {
            pairs.push(Pair { kind: kind.into(), questions: [one.into(), other.into()] });
        }
    }
    pairs
}

/// A question and, in brackets before it, its system prompt.
fn parts(question: &str) -> (Option<&str>, &str) {
    match question.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((system, text)) => (Some(system), text),
        None => (None, question),
    }
}

/// The call of a pair's question: the seed keeps it from all other pairs.
fn call(key: &Key, pair: usize, question: &str) -> Call {
    let (system, text) = parts(question);
    let mut messages: Vec<Value> = system.into_iter().map(|system| json!({"role": "system", "content": system})).collect();
    messages.push(json!({"role": "user", "content": text}));
    Call::chat(key, &json!({"model": "m1", "seed": pair, "messages": messages}))
}

async fn in_turns(stack: &Stack, calls: Vec<Call>) -> Vec<Response> {
    let mut answers = Vec::new();
    for some in calls.chunks(8) {
        answers.extend(stack.all_at_once(some.to_vec()).await.into_iter().map(|answer| answer.expect(200)));
    }
    answers
}

/// Asks all first questions, then all second ones; nothing if a vector was not made or kept.
async fn measure(stack: &Stack, key: &Key, pairs: &[Pair]) -> Option<[Vec<Response>; 2]> {
    let calls = |which: usize| pairs.iter().enumerate().map(|(number, pair)| call(key, number, &pair.questions[which])).collect();
    let first = in_turns(stack, calls(0)).await;
    assert!(first.iter().all(|answer| answer.header("x-proxium-cache") == Some("miss")));
    let redis = stack.redis_client().await;
    let until = Instant::now() + Duration::from_secs(15);
    let kept = || async { redis.zcard::<usize, _>(name::vectors(&key.project)).await.unwrap_or(0) == pairs.len() };
    eventually("the vectors are kept, or it takes too long", BOUND, || async { kept().await || Instant::now() > until }).await;
    if !kept().await {
        return None;
    }
    let second = in_turns(stack, calls(1)).await;
    let embedded = || async {
        let ledger = stack.ledger(&key.project).await;
        ledger.iter().filter(|record| record["endpoint"] == "embeddings").count() + stack.due(&key.project).await.len() >= 2 * pairs.len()
    };
    embedded().await.then_some([first, second])
}

/// The cosines of the pairs, by the provider itself.
async fn cosines(provider: &MiniLm, pairs: &[Pair]) -> Vec<f64> {
    let texts: Vec<&str> = pairs.iter().flat_map(|pair| &pair.questions).map(|question| parts(question).1).collect();
    let url = format!("http://{}/v1/embeddings", provider.addr());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client.post(url).json(&json!({"model": "m", "input": texts})).send().await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    let vectors: Vec<Vec<f64>> =
        answer["data"].as_array().unwrap().iter().map(|one| serde_json::from_value(one["embedding"].clone()).unwrap()).collect();
    vectors.chunks(2).map(|pair| pair[0].iter().zip(&pair[1]).map(|(one, other)| one * other).sum()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_hundred_pairs_only_paraphrases_share_an_answer() {
    let provider = MiniLm::start();
    let addr = provider.addr();
    let stack = Stack::builder()
        .catalog(move |mocks| {
            let minilm = format!("  minilm: {{dialect: openai, endpoint: \"http://{addr}/v1\"}}\nmodels:\n  embed: {{provider: minilm, endpoints: [embeddings], price_usd_per_mtok: {{input: 0.02}}}}\n");
            catalog::three_providers(mocks).replace("models:\n", &minilm) + "embeddings: {model: embed}\n"
        })
        .start()
        .await;
    let pairs = pairs();
    assert_eq!(pairs.len(), 200);
    // The provider knows the vectors from here on.
    let cosines = cosines(&provider, &pairs).await;
    // Again where a busy machine kept some vector from being made or stored: that would say nothing of the pair.
    let mut measured = None;
    for _ in 0..3 {
        let key = stack.key_with(json!({"cache": {"near": {"enabled": true}}}), json!({})).await;
        measured = measure(&stack, &key, &pairs).await;
        if measured.is_some() {
            break;
        }
    }
    let [first, second] = measured.expect("every vector is made");

    // Kind to: pairs, as near as the threshold, answered from the store.
    let mut table: BTreeMap<&str, [u32; 3]> = BTreeMap::new();
    for (number, cosine) in cosines.into_iter().enumerate() {
        let row = table.entry(&pairs[number].kind).or_default();
        let label = second[number].header("x-proxium-cache");
        row[0] += 1;
        row[1] += u32::from(cosine >= 0.95);
        row[2] += u32::from(label == Some("near"));
        if label == Some("near") {
            assert_eq!(pairs[number].kind, "paraphrase", "{:?}", pairs[number].questions);
            let told: f64 = second[number].header("x-proxium-similarity").unwrap().parse().unwrap();
            assert!((told - cosine).abs() < 1e-4 && told >= 0.95, "{told} {cosine}");
            assert_eq!(second[number].header("x-proxium-cached-request-id"), first[number].header("x-proxium-request-id"));
            assert_eq!(second[number].body, first[number].body);
        } else {
            assert_eq!(label, Some("miss"));
        }
    }
    let readme = std::fs::read_to_string(binaries::in_repo("README.md")).unwrap();
    for (kind, [pairs, near, served]) in &table {
        let row = format!("| {kind} | {pairs} | {near} | {served} |");
        assert!(readme.contains(&row), "the README lacks this row, which is the truth: {row}\nof {table:?}");
    }
}
