//! `/v1/embeddings`. Shapes: platform.openai.com/docs/api-reference/embeddings, as of 2026; an answer without `prompt_tokens` is Voyage's.

use super::{Answer, Request, model, typed};
use crate::json::Document;
use crate::object::{body_members, members, optional};
use crate::refusal::Refusal;
use proxium_wire::Usage;
use serde_json::value::RawValue;

/// Reads what proxium acts on in a request.
///
/// # Errors
/// A 400 that names the member.
pub fn request(body: &Document) -> Result<Request, Refusal> {
    let user: Option<String> = typed(body, "user", "a string")?;
    let _: Option<u64> = typed(body, "dimensions", "a whole number")?;
    let _: Option<String> = typed(body, "encoding_format", "`float` or `base64`")?;
    Ok(Request {
        model: model(body)?,
        user: user.unwrap_or_default(),
        max_output_tokens: Some(0),
        least_input_tokens: tokens_of(body.member("input"))?,
        ..Request::default()
    })
}

/// The tokens that the input names as such; none for text.
fn tokens_of(input: Option<&str>) -> Result<u64, Refusal> {
    let wrong =
        || Refusal::invalid("input", "`input` must be a string, an array of strings, an array of tokens, or an array of such arrays.");
    let input = input.ok_or_else(|| Refusal::invalid("input", "`input` is required."))?;
    let Some(list) = input.strip_prefix('[') else {
        return if input.starts_with('"') { Ok(0) } else { Err(wrong()) };
    };
    match list.trim_start().chars().next() {
        Some('"') => serde_json::from_str::<Vec<&RawValue>>(input)
            .ok()
            .filter(|texts| texts.iter().all(|text| text.get().starts_with('"')))
            .map(|_| 0)
            .ok_or_else(wrong),
        Some('[') => {
            let lists: Vec<Vec<u64>> = serde_json::from_str(input).map_err(|_| wrong())?;
            Ok(lists.iter().map(|tokens| tokens.len() as u64).sum())
        }
        Some(digit) if digit.is_ascii_digit() => {
            let tokens: Vec<u64> = serde_json::from_str(input).map_err(|_| wrong())?;
            Ok(tokens.len() as u64)
        }
        _ => Err(wrong()),
    }
}

/// Reads the body of a 2xx, without copying the vectors.
///
/// # Errors
/// `empty_body`, `not_json`, `error_in_200`, or `no_data`.
pub fn answer(body: &[u8]) -> Result<Answer, &'static str> {
    if body.trim_ascii().is_empty() {
        return Err("empty_body");
    }
    let [error, data, usage] = body_members(body, ["error", "data", "usage"]).ok_or("not_json")?;
    if error.is_some() {
        return Err("error_in_200");
    }
    data.filter(|data| data.get().strip_prefix('[').is_some_and(|list| !list.trim_start().starts_with(']'))).ok_or("no_data")?;
    Ok(Answer { usage: input_usage(usage), ..Answer::default() })
}

/// The tokens of an endpoint that generates none.
pub(super) fn input_usage(raw: Option<&RawValue>) -> Option<Usage> {
    let [prompt, total] = members(raw?.get(), ["prompt_tokens", "total_tokens"])?;
    optional(prompt)?.or(optional(total)?).map(|input| Usage { input, ..Usage::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::NOT_IN_CACHE_KEY;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn request(input: &str) -> Result<u64, Refusal> {
        let text = format!(r#"{{"model":"m","input":{input}}}"#);
        super::request(&Document::read(text.into_bytes(), NOT_IN_CACHE_KEY).unwrap()).map(|request| request.least_input_tokens)
    }

    #[test]
    fn every_form_of_input_is_read_and_tokens_are_counted() {
        for (input, tokens) in [(r#""hello""#, 0), (r#"["a","b"]"#, 0), ("[1, 2, 3]", 3), ("[[1,2],[3]]", 3), ("[ [1] ]", 1)] {
            assert_eq!(request(input).ok(), Some(tokens), "{input}");
        }
        for input in ["5", "null", "{}", "[]", "[[]", r#"["a",1]"#, r#"[1,"a"]"#, "[-1]", "[1.5]", "[{}]", r#"[["a"]]"#] {
            assert!(Document::read(format!(r#"{{"model":"m","input":{input}}}"#).into_bytes(), &[]).is_err() || request(input).is_err());
        }
    }

    #[test]
    fn usage_comes_in_two_forms_and_zero_is_zero() {
        let usage =
            |usage: &str| answer(format!(r#"{{"data":[{{}}],"usage":{usage}}}"#).as_bytes()).unwrap().usage.map(|usage| usage.input);
        assert_eq!(usage(r#"{"prompt_tokens":8,"total_tokens":8}"#), Some(8));
        assert_eq!(usage(r#"{"total_tokens":9}"#), Some(9));
        assert_eq!(usage(r#"{"prompt_tokens":0,"total_tokens":0}"#), Some(0));
        assert_eq!((usage("null"), usage("{}"), usage(r#"{"prompt_tokens":"x"}"#)), (None, None, None));
    }

    #[test]
    fn what_is_no_answer_has_a_word() {
        for (body, word) in [
            (" ", "empty_body"),
            ("<html>", "not_json"),
            (r#"{"error":{"message":"x"},"data":[{}]}"#, "error_in_200"),
            (r#"{"data":[ ]}"#, "no_data"),
            ("{}", "no_data"),
        ] {
            assert_eq!(answer(body.as_bytes()), Err(word), "{body}");
        }
    }
}
