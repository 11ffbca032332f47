//! `/v1/moderations`. Shapes: platform.openai.com/docs/api-reference/moderations, as of 2026.

use super::embeddings::input_usage;
use super::{Answer, Request, model, typed};
use crate::json::Document;
use crate::object::{body_members, list};
use crate::refusal::Refusal;

/// What a request without a model asks for.
pub const DEFAULT_MODEL: &str = "omni-moderation-latest";

/// Reads what proxium acts on in a request.
///
/// # Errors
/// A 400 that names the member.
pub fn request(body: &Document) -> Result<Request, Refusal> {
    let model = if body.member("model").is_some() { model(body)? } else { DEFAULT_MODEL.into() };
    match body.member("input") {
        None => return Err(Refusal::invalid("input", "`input` is required.")),
        Some(input) if !input.starts_with(['"', '[']) => {
            return Err(Refusal::invalid("input", "`input` must be a string, an array of strings, or an array of text and image parts."));
        }
        Some(_) => {}
    }
    let user: Option<String> = typed(body, "user", "a string")?;
    Ok(Request { model, user: user.unwrap_or_default(), max_output_tokens: Some(0), ..Request::default() })
}

/// Reads the body of a 2xx.
///
/// # Errors
/// `empty_body`, `not_json`, `error_in_200`, or `no_results`.
pub fn answer(body: &[u8]) -> Result<Answer, &'static str> {
    if body.trim_ascii().is_empty() {
        return Err("empty_body");
    }
    let [error, results, usage] = body_members(body, ["error", "results", "usage"]).ok_or("not_json")?;
    if error.is_some() {
        return Err("error_in_200");
    }
    if list(results).ok_or("not_json")?.is_empty() {
        return Err("no_results");
    }
    Ok(Answer { usage: input_usage(usage), ..Answer::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn model_of(text: &str) -> Option<String> {
        request(&Document::read(text.as_bytes().to_vec(), &[]).unwrap()).ok().map(|request| request.model)
    }

    #[test]
    fn the_model_may_be_left_out() {
        assert_eq!(model_of(r#"{"input":"x"}"#).as_deref(), Some(DEFAULT_MODEL));
        assert_eq!(model_of(r#"{"input":["x"],"model":"m"}"#).as_deref(), Some("m"));
        assert_eq!((model_of(r#"{"input":5}"#), model_of("{}"), model_of(r#"{"input":"x","model":5}"#)), (None, None, None));
    }

    #[test]
    fn an_answer_has_results() {
        assert_eq!(answer(br#"{"results":[{"flagged":false}]}"#), Ok(Answer::default()));
        assert_eq!(answer(br#"{"results":[]}"#), Err("no_results"));
        assert_eq!(answer(br#"{"error":"x","results":[{}]}"#), Err("error_in_200"));
    }
}
