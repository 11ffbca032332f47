//! What came of an attempt: the outcome table of the decision page, in one place.

use crate::breaker::{Outcome, rest_ms};
use crate::deadline::Share;
use crate::dialect;
use crate::message::{Answer, Failure, Headers, Reply};
use crate::snapshot::Entry;

/// A timeout of at least this long counts against the credential, even if its model may take longer.
const COUNTED_TIMEOUT_MS: u64 = 10_000;

/// Words of entries that were passed over without a call.
pub const SKIPPED: [&str; 3] = ["no_credential", "breaker_open", "resting"];

/// What to do after an attempt.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    /// It answered.
    Answered(Answer, dialect::Answer),
    /// The next entry; `word` goes to the ledger and the error message.
    Next {
        /// Why.
        word: String,
        /// For the breaker.
        outcome: Outcome,
        /// The wait the provider named.
        retry_after_ms: Option<u64>,
    },
    /// The next entry; returned if there is none.
    NotFound(Answer),
    /// The caller's own fault: returned as it is.
    Return(Answer),
}

/// Judges how an attempt ended.
#[must_use]
pub fn judge(reply: Reply, share: Share, entry: &Entry, now_ms: u64) -> Verdict {
    let next = |word: String, outcome: Outcome| Verdict::Next { word, outcome, retry_after_ms: None };
    let answer = match reply {
        Reply::Failed(Failure::Timeout) => {
            let counts = share.timeout_ms >= entry.model.timeout_ms.min(COUNTED_TIMEOUT_MS);
            return next(Failure::Timeout.name().into(), if counts { Outcome::Failure } else { Outcome::Nothing });
        }
        Reply::Failed(failure) => return next(failure.name().into(), Outcome::Failure),
        Reply::Answer(answer) => answer,
    };
    let status = answer.status;
    match status {
        200..=299 => match dialect::answer(entry.provider.dialect(), &answer.body) {
            Ok(read) => Verdict::Answered(answer, read),
            Err(word) => next(word.into(), Outcome::Failure),
        },
        429 => {
            let named_ms = retry_after_ms(&answer.headers, now_ms);
            let rest = rest_ms(named_ms);
            Verdict::Next { word: "status_429".into(), outcome: Outcome::Rest(rest), retry_after_ms: Some(named_ms.unwrap_or(rest)) }
        }
        404 => Verdict::NotFound(answer),
        401 | 403 | 408 => next(format!("status_{status}"), Outcome::Failure),
        400..=499 => Verdict::Return(answer),
        _ => Verdict::Next {
            word: format!("status_{status}"),
            outcome: Outcome::Failure,
            retry_after_ms: retry_after_ms(&answer.headers, now_ms),
        },
    }
}

/// The wait a provider names: `retry-after-ms` (OpenAI), or `retry-after` in seconds or as an HTTP date.
fn retry_after_ms(headers: &Headers, now_ms: u64) -> Option<u64> {
    if let Some(ms) = headers.get("retry-after-ms").and_then(|text| text.trim().parse::<u64>().ok()) {
        return Some(ms);
    }
    let text = headers.get("retry-after")?.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        // The float only bounds a hint: a fraction of a second, a negative or an absurd number end in range.
        return (seconds.is_finite() && seconds >= 0.0).then_some((seconds * 1_000.0).min(1e12) as u64);
    }
    let at = httpdate::parse_http_date(text).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(u64::try_from(at.as_millis()).ok()?.saturating_sub(now_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxium_wire::{Model, Provider};
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const SHARE: Share = Share { timeout_ms: 60_000, cut_by_caller: false };

    fn entry() -> Entry {
        Entry { model: Model { timeout_ms: 120_000, ..Model::default() }, provider: Provider::default() }
    }

    fn answer(status: u16, body: &str, headers: &[(&'static str, &str)]) -> Reply {
        Reply::Answer(Answer {
            status,
            headers: headers.iter().map(|(name, value)| (*name, *value)).collect(),
            body: body.as_bytes().to_vec(),
        })
    }

    fn judged(reply: Reply) -> (String, Option<Outcome>) {
        match judge(reply, SHARE, &entry(), 0) {
            Verdict::Answered(..) => ("answered".into(), Some(Outcome::Success)),
            Verdict::Next { word, outcome, .. } => (word, Some(outcome)),
            Verdict::NotFound(_) => ("not_found".into(), None),
            Verdict::Return(_) => ("return".into(), None),
        }
    }

    #[test]
    fn each_row_of_the_outcome_table() {
        let failure = Some(Outcome::Failure);
        for (reply, word, outcome) in [
            (Reply::Failed(Failure::Connect), "connect_error", failure),
            (Reply::Failed(Failure::Reset), "reset", failure),
            (Reply::Failed(Failure::Timeout), "timeout", failure),
            (answer(408, "", &[]), "status_408", failure),
            (answer(500, "", &[]), "status_500", failure),
            (answer(529, "", &[]), "status_529", failure),
            (answer(302, "", &[]), "status_302", failure),
            (answer(200, "", &[]), "empty_body", failure),
            (answer(200, "<html>", &[]), "not_json", failure),
            (answer(200, r#"{"error":{}}"#, &[]), "error_in_200", failure),
            (answer(200, r#"{"choices":[]}"#, &[]), "no_choices", failure),
            (answer(429, "", &[]), "status_429", Some(Outcome::Rest(1_000))),
            (answer(401, "", &[]), "status_401", failure),
            (answer(403, "", &[]), "status_403", failure),
            (answer(404, "", &[]), "not_found", None),
            (answer(400, "", &[]), "return", None),
            (answer(413, "", &[]), "return", None),
            (answer(422, "", &[]), "return", None),
            (answer(418, "", &[]), "return", None),
            (answer(200, r#"{"choices":[{}]}"#, &[]), "answered", Some(Outcome::Success)),
        ] {
            assert_eq!(judged(reply), (word.to_owned(), outcome));
        }
    }

    #[test]
    fn a_short_timeout_of_the_caller_says_nothing_about_the_credential() {
        let judged = |timeout_ms, model_ms| {
            let entry = Entry { model: Model { timeout_ms: model_ms, ..Model::default() }, provider: Provider::default() };
            match judge(Reply::Failed(Failure::Timeout), Share { timeout_ms, cut_by_caller: true }, &entry, 0) {
                Verdict::Next { outcome, .. } => outcome,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(judged(9_999, 120_000), Outcome::Nothing);
        assert_eq!(judged(10_000, 120_000), Outcome::Failure);
        assert_eq!(judged(2_000, 2_000), Outcome::Failure);
        assert_eq!(judged(1_999, 2_000), Outcome::Nothing);
    }

    #[test]
    fn a_wait_is_read_in_every_form() {
        let wait =
            |lines: &[(&'static str, &str)]| retry_after_ms(&lines.iter().map(|(name, value)| (*name, *value)).collect(), 784_111_770_000);
        assert_eq!(wait(&[("retry-after", "600")]), Some(600_000));
        assert_eq!(wait(&[("retry-after", "0.5")]), Some(500));
        assert_eq!(wait(&[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")]), Some(7_000));
        assert_eq!(wait(&[("retry-after", "Tue, 06 Nov 1984 08:49:37 GMT")]), Some(0));
        assert_eq!(wait(&[("retry-after-ms", "250"), ("retry-after", "9")]), Some(250));
        for nonsense in ["", "-1", "soon", "NaN", "inf"] {
            assert_eq!(wait(&[("retry-after", nonsense)]), None);
        }
        assert_eq!(wait(&[]), None);
    }
}
