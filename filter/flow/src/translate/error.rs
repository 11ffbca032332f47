//! Reading a provider's own error, of whichever make.

use crate::object::{body_members, members};
use crate::stream::text;
use crate::value::written;

/// A longer message is cut: some providers give the whole request back.
const MAX_MESSAGE_CHARS: usize = 2_000;

/// What a provider said.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) message: String,
    /// The provider's own word for it.
    pub(super) code: Option<String>,
    /// The member at fault.
    pub(super) param: Option<String>,
}

/// Reads `{"error": {…}}` (OpenAI, Anthropic), `{"error": "…"}`, `{"message": "…"}`, `{"detail": …}` (FastAPI) and plain text.
pub(super) fn read(status: u16, body: &[u8]) -> Told {
    let told = body_members(body, ["error", "message", "detail"]).and_then(|[error, message, detail]| {
        let of_error = error.and_then(|error| members(error.get(), ["message", "code", "type", "param"]));
        let [told, code, kind, param] = of_error.unwrap_or_default();
        let message = text(told)
            .or_else(|| text(error))
            .or_else(|| text(message))
            .or_else(|| text(detail))
            .or_else(|| Some(written(&serde_json::from_str(detail?.get()).ok()?)))?;
        Some(Told { message, code: text(code).or_else(|| text(kind)), param: text(param) })
    });
    let mut told = told.unwrap_or_else(|| Told { message: plain(status, body), code: None, param: None });
    if told.message.chars().count() > MAX_MESSAGE_CHARS {
        told.message = told.message.chars().take(MAX_MESSAGE_CHARS).chain(['…']).collect();
    }
    told
}

/// A body that is no error object: its text, unless it is a page.
fn plain(status: u16, body: &[u8]) -> String {
    match std::str::from_utf8(body).map(str::trim) {
        Ok(text) if !text.is_empty() && !text.starts_with(['<', '{', '[']) => text.to_owned(),
        _ => format!("The model's provider refused the request with status {status}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn every_make_of_error_is_read() {
        for (body, message, code) in [
            (r#"{"error":{"message":"m","type":"t","code":"c"}}"#, "m", Some("c")),
            (r#"{"type":"error","error":{"type":"invalid_request_error","message":"m"}}"#, "m", Some("invalid_request_error")),
            (r#"{"error":{"message":"m","code":400,"type":"t"}}"#, "m", Some("t")),
            (r#"{"error":"m"}"#, "m", None),
            (r#"{"object":"error","message":"m"}"#, "m", None),
            (r#"{"detail":"m"}"#, "m", None),
            (r#"{"detail":[{"msg":"m"}]}"#, r#"[{"msg":"m"}]"#, None),
            ("too long", "too long", None),
            ("<html>", "The model's provider refused the request with status 413.", None),
            ("", "The model's provider refused the request with status 413.", None),
            ("{}", "The model's provider refused the request with status 413.", None),
            ("[1]", "The model's provider refused the request with status 413.", None),
        ] {
            let told = read(413, body.as_bytes());
            assert_eq!((told.message.as_str(), told.code.as_deref()), (message, code), "{body}");
        }
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let told = read(400, format!(r#"{{"error":"{}"}}"#, "é".repeat(5_000)).as_bytes());
        assert_eq!(told.message.chars().count(), MAX_MESSAGE_CHARS + 1);
    }
}
