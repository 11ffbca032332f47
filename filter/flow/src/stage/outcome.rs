//! What came of an attempt: the outcome table of the decision page, in one place.

use crate::breaker::{Outcome, rest_ms};
use crate::deadline::Share;
use crate::dialect;
use crate::endpoint::Route;
use crate::json;
use crate::message::{Answer, Failure, Headers, Reply};
use crate::object::{members, optional};
use crate::snapshot::Entry;
use crate::speaks::Speaks;
use serde::Serialize;

/// A timeout of at least this long counts against the credential, even if its model may take longer.
const COUNTED_TIMEOUT_MS: u64 = 10_000;

/// Words of entries that were passed over without a call.
pub const SKIPPED: [&str; 4] = ["no_credential", "breaker_open", "resting", "cannot_carry"];

/// What to do after an attempt.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    /// It answered.
    Answered(Answer, dialect::Answer),
    /// The next entry.
    Next(Miss),
    /// The next entry; returned if there is none.
    NotFound(Answer),
    /// The caller's own fault: returned as it is.
    Return(Answer),
}

/// Why an attempt is followed by the next entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Miss {
    /// For the ledger and the error message.
    pub word: String,
    /// For the breaker.
    pub outcome: Outcome,
    /// The wait the provider named.
    pub retry_after_ms: Option<u64>,
}

impl Miss {
    /// A miss that speaks against the credential.
    #[must_use]
    pub fn failure(word: &str) -> Self {
        Self { word: word.into(), outcome: Outcome::Failure, retry_after_ms: None }
    }

    /// Not in time: counts only if the attempt had time enough, for callers must not open a breaker for others.
    #[must_use]
    pub fn timeout(share: Share, own_timeout_ms: u64) -> Self {
        Self { outcome: timeout_outcome(share.timeout_ms, own_timeout_ms), ..Self::failure(Failure::Timeout.name()) }
    }
}

/// What the end of an attempt's time says of its credential, after it had this much of it.
#[must_use]
pub fn timeout_outcome(had_ms: u64, own_timeout_ms: u64) -> Outcome {
    if had_ms >= own_timeout_ms.min(COUNTED_TIMEOUT_MS) { Outcome::Failure } else { Outcome::Nothing }
}

/// What a status says of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum ByStatus {
    /// The body decides.
    Good,
    /// The next entry.
    Next(Miss),
    /// The next entry; returned if there is none.
    NotFound,
    /// Returned as it is.
    Return,
}

/// Judges a status; `named_ms`: the wait the provider named.
#[must_use]
pub fn by_status(status: u16, named_ms: Option<u64>) -> ByStatus {
    let miss = |outcome| ByStatus::Next(Miss { word: format!("status_{status}"), outcome, retry_after_ms: named_ms });
    match status {
        200..=299 => ByStatus::Good,
        429 => {
            let rest = rest_ms(named_ms);
            ByStatus::Next(Miss { word: "status_429".into(), outcome: Outcome::Rest(rest), retry_after_ms: Some(named_ms.unwrap_or(rest)) })
        }
        404 => ByStatus::NotFound,
        401 | 403 | 408 => miss(Outcome::Failure),
        400..=499 => ByStatus::Return,
        _ => miss(Outcome::Failure),
    }
}

/// What the upstream filter tells of an attempt of Envoy's router, as JSON in filter state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// When the attempt began, milliseconds since 1970.
    pub began_ms: u64,
    /// The provider's status, once there is one.
    pub status: Option<u16>,
    /// Why a 200 is no answer.
    pub word: Option<String>,
    /// The wait the provider named.
    pub retry_after_ms: Option<u64>,
}

impl Report {
    /// Reads it back. `None`: it is none.
    #[must_use]
    pub fn read(json: &str) -> Option<Self> {
        let [began_ms, status, word, retry_after_ms] = members(json, ["began_ms", "status", "word", "retry_after_ms"])?;
        let status = optional::<u64>(status)?.map(u16::try_from).transpose().ok()?;
        Some(Self { began_ms: optional(began_ms)??, status, word: optional(word)?, retry_after_ms: optional(retry_after_ms)? })
    }
}

/// Judges how a callout ended.
#[must_use]
pub fn judge(reply: Reply, share: Share, entry: &Entry, route: &Route, now_ms: u64) -> Verdict {
    let answer = match reply {
        Reply::Failed(Failure::Timeout) => return Verdict::Next(Miss::timeout(share, entry.model.timeout_ms)),
        Reply::Failed(failure) => return Verdict::Next(Miss::failure(failure.name())),
        Reply::Answer(answer) => answer,
    };
    match by_status(answer.status, retry_after_ms(&answer.headers, now_ms)) {
        ByStatus::Good => match (route.answer)(Speaks::of(&entry.provider, route), &answer.body) {
            Ok(read) => Verdict::Answered(answer, read),
            Err(word) => Verdict::Next(Miss::failure(word)),
        },
        ByStatus::Next(miss) => Verdict::Next(miss),
        ByStatus::NotFound => Verdict::NotFound(answer),
        ByStatus::Return => Verdict::Return(answer),
    }
}

/// The wait a provider names: `retry-after-ms` (OpenAI), or `retry-after` in seconds or as an HTTP date.
#[must_use]
pub fn retry_after_ms(headers: &Headers, now_ms: u64) -> Option<u64> {
    if let Some(ms) = headers.get("retry-after-ms").and_then(|text| text.trim().parse::<u64>().ok()) {
        return Some(ms);
    }
    let text = headers.get("retry-after")?.trim();
    if let Some(seconds) = json::number(text) {
        // The float only bounds a hint: a fraction of a second, a negative or an absurd number end in range.
        return (seconds >= 0.0).then_some((seconds * 1_000.0).min(1e12) as u64);
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

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let whole = Report { began_ms: 5, status: Some(200), word: Some("not_json".into()), retry_after_ms: Some(7) };
        for report in [Report::default(), whole] {
            assert_eq!(Report::read(&serde_json::to_string(&report).unwrap()), Some(report));
        }
        assert_eq!((Report::read("{}"), Report::read(r#"{"began_ms":1,"status":70000}"#)), (None, None));
    }

    const SHARE: Share = Share { timeout_ms: 60_000, cut_by_caller: false };

    fn entry() -> Entry {
        Entry { model: Model { timeout_ms: 120_000, ..Model::default() }, provider: Provider::default() }
    }

    fn chat() -> Route {
        crate::endpoint::route("POST", "/v1/chat/completions").unwrap()
    }

    fn answer(status: u16, body: &str, headers: &[(&'static str, &str)]) -> Reply {
        Reply::Answer(Answer {
            status,
            headers: headers.iter().map(|(name, value)| (*name, *value)).collect(),
            body: body.as_bytes().to_vec(),
        })
    }

    fn judged(reply: Reply) -> (String, Option<Outcome>) {
        match judge(reply, SHARE, &entry(), &chat(), 0) {
            Verdict::Answered(..) => ("answered".into(), Some(Outcome::Success)),
            Verdict::Next(miss) => (miss.word, Some(miss.outcome)),
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
            match judge(Reply::Failed(Failure::Timeout), Share { timeout_ms, cut_by_caller: true }, &entry, &chat(), 0) {
                Verdict::Next(miss) => miss.outcome,
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
