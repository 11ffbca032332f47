//! Embeddings, moderations, rerank and models, as OpenAI and those who speak like it have them.

use super::behaviour::{Answer, UsageScript};
use super::call::{Call, texts, words};
use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};

/// The length of a vector where the request does not say.
const DIMENSIONS: u64 = 8;

fn usage(call: &Call, answer: &Answer, tokens: u64) -> Value {
    let counted = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    match &answer.usage {
        UsageScript::Counted => counted,
        _ => call.usage(answer, |_, _, _| counted.clone()).unwrap_or(Value::Null),
    }
}

fn with_usage(mut body: Value, usage: Value) -> Value {
    if let (Some(members), false) = (body.as_object_mut(), usage.is_null()) {
        members.insert("usage".into(), usage);
    }
    body
}

/// One vector an input, of as many numbers as asked for, made from the input's bytes: equal texts have equal vectors. Texts count their
/// words, token arrays their tokens.
pub(super) fn embeddings(call: &Call, body: &Value, answer: &Answer) -> Value {
    let input = body.get("input").unwrap_or(&Value::Null);
    let inputs: Vec<&Value> = match input {
        Value::Array(inputs) if !inputs.iter().all(Value::is_number) => inputs.iter().collect(),
        Value::Null => Vec::new(),
        one => vec![one],
    };
    let asked = body.get("dimensions").and_then(Value::as_u64).unwrap_or(DIMENSIONS);
    // A number takes some six bytes.
    let dimensions = asked.max(answer.padding as u64 / 6 / inputs.len().max(1) as u64);
    let base64 = body.get("encoding_format").and_then(Value::as_str) == Some("base64");
    let embedding = |input: &Value| {
        let text = input.as_str().map_or_else(|| input.to_string(), str::to_owned);
        let mut sums = vec![0_u32; usize::try_from(dimensions).unwrap_or(8)];
        for (place, byte) in text.bytes().cycle().take(text.len().max(sums.len())).enumerate() {
            let length = sums.len().max(1);
            if let Some(sum) = sums.get_mut(place % length) {
                *sum = (*sum * 31 + u32::from(byte)) % 1000;
            }
        }
        let numbers = sums.into_iter().map(|sum| f64::from(sum) / 1000.0);
        if base64 {
            #[allow(clippy::cast_possible_truncation)] // as the API does
            let bytes: Vec<u8> = numbers.flat_map(|number| (number as f32).to_le_bytes()).collect();
            json!(BASE64_STANDARD.encode(bytes))
        } else {
            json!(numbers.collect::<Vec<_>>())
        }
    };
    let inputs = if answer.no_choices { Vec::new() } else { inputs };
    let tokens = |input: &&Value| input.as_str().map_or_else(|| input.as_array().map_or(0, Vec::len) as u64, words);
    let tokens: u64 = inputs.iter().map(tokens).sum();
    let vector = |(index, input): (usize, &&Value)| json!({"object": "embedding", "index": index, "embedding": embedding(input)});
    let data: Vec<Value> = inputs.iter().enumerate().map(vector).collect();
    with_usage(json!({"object": "list", "data": data, "model": call.model}), usage(call, answer, tokens))
}

/// What holds the word `harm` is flagged. OpenAI tells no usage.
pub(super) fn moderations(call: &Call, body: &Value, answer: &Answer, id: u64) -> Value {
    let input = body.get("input").unwrap_or(&Value::Null);
    let inputs: Vec<&Value> = match input {
        Value::Array(inputs) if inputs.iter().all(Value::is_string) => inputs.iter().collect(),
        one => vec![one],
    };
    let result = |input: &Value| {
        let mut all = Vec::new();
        texts(input, &mut all);
        let flagged = all.iter().any(|text| text.contains("harm"));
        let score = if flagged { 0.9 } else { 0.1 };
        json!({"flagged": flagged, "categories": {"violence": flagged}, "category_scores": {"violence": score}, "category_applied_input_types": {"violence": ["text"]}})
    };
    let results: Vec<Value> = if answer.no_choices { Vec::new() } else { inputs.into_iter().map(result).collect() };
    json!({"id": format!("modr-mock-{id}"), "model": call.model, "results": results})
}

/// Documents by how many words of the query they hold. Both bills: Cohere's searches and everybody else's tokens; a given usage stands
/// alone.
pub(super) fn rerank(call: &Call, body: &Value, answer: &Answer, id: u64) -> Value {
    let query = body.get("query").and_then(Value::as_str).unwrap_or_default();
    let documents = body.get("documents").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let text = |document: &Value| document.get("text").unwrap_or(document).as_str().unwrap_or_default().to_owned();
    let score = |document: &Value| {
        let found = query.split_whitespace().filter(|word| text(document).contains(word)).count();
        found as f64 / words(query).max(1) as f64
    };
    let mut results: Vec<(usize, f64)> = documents.iter().map(score).enumerate().collect();
    results.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let top_n = body.get("top_n").and_then(Value::as_u64).and_then(|top| usize::try_from(top).ok()).unwrap_or(results.len());
    let results: Vec<Value> =
        results.into_iter().take(top_n).map(|(index, score)| json!({"index": index, "relevance_score": score})).collect();
    let tokens = words(query) + documents.iter().map(|document| words(&text(document))).sum::<u64>();
    let told = match &answer.usage {
        UsageScript::Counted => json!({
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": documents.len().div_ceil(100)}},
            "usage": {"total_tokens": tokens},
        }),
        UsageScript::Given(told) => told.clone(),
        UsageScript::Cached(_) | UsageScript::Missing => json!({}),
    };
    let mut whole = json!({"id": format!("rerank-mock-{id}"), "model": call.model, "results": results});
    if let (Some(whole), Value::Object(told)) = (whole.as_object_mut(), told) {
        whole.extend(told);
    }
    whole
}

/// `GET /models`
pub(super) fn models() -> Value {
    json!({"object": "list", "data": [{"id": "mock", "object": "model", "created": 1_700_000_000, "owned_by": "proxium"}]})
}
