//! `/v1/rerank`, in the shape that Cohere (docs.cohere.com/reference/rerank), Jina and vLLM share, as of 2026.

use super::embeddings::input_usage;
use super::{Answer, Request, estimate, model, typed};
use crate::json::Document;
use crate::object::{body_members, members};
use crate::refusal::Refusal;
use crate::stream::usage::number_in;
use serde_json::value::RawValue;

/// Cohere counts one search for up to so many documents…
const DOCUMENTS_PER_SEARCH: u64 = 100;
/// …where a longer document counts as several of this many tokens.
const TOKENS_PER_DOCUMENT: u64 = 500;

/// Reads what proxium acts on in a request.
///
/// # Errors
/// A 400 that names the member.
pub fn request(body: &Document) -> Result<Request, Refusal> {
    let model = model(body)?;
    let query: Option<&RawValue> = typed(body, "query", "a string")?;
    match query {
        None => return Err(Refusal::invalid("query", "`query` is required.")),
        Some(query) if !query.get().starts_with(['"', '{']) => return Err(Refusal::invalid("query", "`query` must be a string.")),
        Some(_) => {}
    }
    let documents = body.elements("documents").map_or(0, |documents| documents.count as u64);
    if documents == 0 {
        return Err(Refusal::invalid("documents", "`documents` must be an array with at least one document."));
    }
    let _: Option<u64> = typed(body, "top_n", "a whole number")?;
    // Every document has a last part that may be short.
    let parts = documents.saturating_add(estimate::input_tokens(body) / TOKENS_PER_DOCUMENT);
    Ok(Request { model, max_output_tokens: Some(0), searches: parts.div_ceil(DOCUMENTS_PER_SEARCH), ..Request::default() })
}

/// Reads the body of a 2xx: searches as Cohere bills them (`meta.billed_units`), tokens as Jina and vLLM do (`usage`).
///
/// # Errors
/// `empty_body`, `not_json`, `error_in_200`, or `no_results`.
pub fn answer(body: &[u8]) -> Result<Answer, &'static str> {
    if body.trim_ascii().is_empty() {
        return Err("empty_body");
    }
    let [error, results, usage, meta] = body_members(body, ["error", "results", "usage", "meta"]).ok_or("not_json")?;
    if error.is_some() {
        return Err("error_in_200");
    }
    results.filter(|results| results.get().starts_with('[')).ok_or("no_results")?;
    let [billed, tokens] = meta.and_then(|meta| members(meta.get(), ["billed_units", "tokens"])).unwrap_or_default();
    let tokens = [billed, tokens].into_iter().find_map(|of| number_in(of, "input_tokens"));
    let usage = input_usage(usage).or(tokens.map(|input| proxium_wire::Usage { input, ..Default::default() }));
    Ok(Answer { usage, searches: number_in(billed, "search_units"), ..Answer::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxium_wire::Usage;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn request(text: &str) -> Result<Request, Refusal> {
        super::request(&Document::read(text.as_bytes().to_vec(), &[]).unwrap())
    }

    #[test]
    fn searches_follow_documents_and_their_length() {
        let searches = |documents: &[String]| {
            let text = serde_json::json!({"model": "m", "query": "q", "documents": documents}).to_string();
            request(&text).unwrap().searches
        };
        assert_eq!(searches(&["a".into()]), 1);
        assert_eq!(searches(&vec!["a".to_owned(); 90]), 1);
        assert_eq!(searches(&vec!["a".to_owned(); 101]), 2);
        assert_eq!(searches(&["a".repeat(300_000)]), 3);
    }

    #[test]
    fn what_is_missing_is_named() {
        for (text, name) in [
            (r#"{"query":"q","documents":["d"]}"#, "model"),
            (r#"{"model":"m","documents":["d"]}"#, "query"),
            (r#"{"model":"m","query":5,"documents":["d"]}"#, "query"),
            (r#"{"model":"m","query":"q"}"#, "documents"),
            (r#"{"model":"m","query":"q","documents":[]}"#, "documents"),
            (r#"{"model":"m","query":"q","documents":"d"}"#, "documents"),
            (r#"{"model":"m","query":"q","documents":["d"],"top_n":"x"}"#, "top_n"),
        ] {
            match request(text) {
                Err(Refusal::InvalidRequest { param, .. }) => assert_eq!(param.as_deref(), Some(name), "{text}"),
                other => panic!("{text} gave {other:?}"),
            }
        }
    }

    #[test]
    fn searches_and_tokens_are_read_from_either_bill() {
        let read = |more: &str| answer(format!(r#"{{"results":[{{"index":0,"relevance_score":0.5}}]{more}}}"#).as_bytes()).unwrap();
        let tokens = |input| Some(Usage { input, ..Usage::default() });
        let cohere = read(r#","meta":{"billed_units":{"search_units":2.0}}"#);
        assert_eq!((cohere.usage, cohere.searches), (None, Some(2)));
        assert_eq!(read(r#","meta":{"billed_units":{"search_units":1},"tokens":{"input_tokens":7}}"#).usage, tokens(7));
        let vllm = read(r#","usage":{"total_tokens":56}"#);
        assert_eq!((vllm.usage, vllm.searches), (tokens(56), None));
        assert_eq!(answer(b"{}"), Err("no_results"));
    }
}
