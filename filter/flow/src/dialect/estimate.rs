//! Tokens told from bytes, where nobody has counted them: for holds, for answers without usage, and for `count_tokens`.

use crate::json::Document;

/// An image is taken for so many input tokens.
const IMAGE_TOKENS: u64 = 1_600;
/// Text is taken at one token for so many bytes; real ratios are 3.5 to 4.5 for English, below 3 for few languages.
const BYTES_PER_TOKEN: u64 = 3;

/// The input tokens of a request: its canonical JSON without image data at three bytes a token, and 1,600 for each image.
///
/// Meant to be too high rather than too low: the JSON's own punctuation counts.
#[must_use]
pub fn input_tokens(body: &Document) -> u64 {
    let text_bytes = body.canonical.len().saturating_sub(body.image_bytes) as u64;
    text_tokens(text_bytes).saturating_add(body.images.saturating_mul(IMAGE_TOKENS))
}

/// The tokens of this many bytes of text.
#[must_use]
pub const fn text_tokens(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// The answer to `/v1/messages/count_tokens` for a model whose provider cannot count: the estimate that a hold is made with, so that
/// a client which sizes its prompts by it is never told less than what its budget is asked for. Nothing is charged.
#[must_use]
pub fn count_tokens(body: &Document) -> Vec<u8> {
    format!("{{\"input_tokens\":{}}}", input_tokens(body)).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::NOT_IN_CACHE_KEY;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn count(text: &str) -> String {
        String::from_utf8(count_tokens(&Document::read(text.as_bytes().to_vec(), NOT_IN_CACHE_KEY).unwrap())).unwrap()
    }

    #[test]
    fn the_estimate_grows_with_the_text_and_not_with_image_bytes() {
        // 51 bytes of canonical JSON without `model`.
        assert_eq!(count(r#"{"model":"m", "messages":[{"role":"user","content":"Hello there"}]}"#), r#"{"input_tokens":18}"#);
        let image = |data: &str| {
            count(&format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}]}}]}}"#
            ))
        };
        assert_eq!(image("AAAA"), image(&"A".repeat(30_000)));
    }
}
