//! Translation, case by case: `golden/<pair>/<case>.in.json` is what comes in, `<case>.out.json` what goes out.
//!
//! An `in` file holds one of `request` (with `model`, `max_output_tokens` and `stream` where they matter), `answer`, or `error` with
//! `status`. An `out` file holds the translated `body`, for a request also what was `dropped`, or why it was `refused`. Members stand
//! in the order they are sent in. `UPDATE_GOLDEN=1 cargo test -p proxium-flow --test golden` writes the `out` files anew.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proxium_flow::json::Document;
use proxium_flow::refusal::Refusal;
use proxium_flow::stream::responses::Frame;
use proxium_flow::translate::{Outgoing, anthropic_openai, openai_anthropic, responses_anthropic, responses_openai};
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// What the case is about, for the reader.
    #[serde(rename = "about")]
    _about: String,
    request: Option<Box<RawValue>>,
    #[serde(default = "model")]
    model: String,
    #[serde(default = "max_output_tokens")]
    max_output_tokens: u64,
    #[serde(default)]
    stream: bool,
    answer: Option<Box<RawValue>>,
    error: Option<Box<RawValue>>,
    #[serde(default)]
    status: u16,
}

fn model() -> String {
    "upstream-model".into()
}

const fn max_output_tokens() -> u64 {
    16_384
}

type Answer = fn(&[u8], &str, &str, u64) -> Option<Vec<u8>>;

struct Pair {
    name: &'static str,
    request: fn(&str, &str, u64, bool) -> Result<Outgoing, Refusal>,
    answer: Answer,
    error: fn(u16, &[u8], &str) -> Vec<u8>,
    id: &'static str,
}

const PAIRS: [Pair; 4] = [
    Pair {
        name: "openai_anthropic",
        request: openai_anthropic::request,
        answer: openai_anthropic::answer,
        error: openai_anthropic::error,
        id: "chatcmpl-1",
    },
    Pair {
        name: "anthropic_openai",
        request: anthropic_openai::request,
        answer: anthropic_openai::answer,
        error: anthropic_openai::error,
        id: "msg_1",
    },
    Pair {
        name: "responses_openai",
        request: responses_openai::request,
        answer: |body, model, id, created_s| responses_openai::answer(body, Frame::new(&Document::default(), model, id, created_s)),
        error: |_, body, _| body.to_vec(),
        id: "resp_1",
    },
    Pair {
        name: "responses_anthropic",
        request: responses_anthropic::request,
        answer: |body, model, id, created_s| responses_anthropic::answer(body, Frame::new(&Document::default(), model, id, created_s)),
        error: openai_anthropic::error,
        id: "resp_1",
    },
];

impl Pair {
    fn translate(&self, case: &Case) -> String {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if let Some(request) = &case.request {
            return match (self.request)(request.get(), &case.model, case.max_output_tokens, case.stream) {
                Ok(out) => format!(r#"{{"body":{},"dropped":{}}}"#, text(out.body), serde_json::to_string(&out.dropped).unwrap()),
                Err(Refusal::InvalidRequest { message, param }) => {
                    format!(r#"{{"refused":{{"param":{},"message":{}}}}}"#, json(&param.unwrap()), json(&message))
                }
                Err(other) => panic!("{other:?}"),
            };
        }
        if let Some(answer) = &case.answer {
            let body = (self.answer)(answer.get().as_bytes(), "shown-model", self.id, 1_790_000_000);
            return format!(r#"{{"body":{}}}"#, body.map_or("null".into(), text));
        }
        let error = case.error.as_ref().expect("a request, an answer or an error");
        format!(r#"{{"body":{}}}"#, text((self.error)(case.status, error.get().as_bytes(), "req_1")))
    }
}

fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

#[test]
fn every_case_translates_as_written() {
    let mut wrong = Vec::new();
    for pair in &PAIRS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(pair.name);
        let mut cases: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        cases.retain(|path| path.to_string_lossy().ends_with(".in.json"));
        cases.sort();
        assert!(!cases.is_empty(), "no case in {}", folder.display());
        for path in cases {
            let case = std::fs::read_to_string(&path).unwrap();
            let case: Case = serde_json::from_str(&case).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let got = pretty(&pair.translate(&case), 0) + "\n";
            let out = path.to_string_lossy().replace(".in.json", ".out.json");
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                std::fs::write(&out, &got).unwrap();
            } else if std::fs::read_to_string(&out).unwrap_or_default() != got {
                wrong.push(format!("{out} should be\n{got}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// An object's members in their order.
struct Ordered(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Ordered;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Ordered(members))
            }
        }
        deserializer.deserialize_map(Visit)
    }
}

/// JSON for a reader: members in their order, numbers as written, short values in one line.
fn pretty(text: &str, depth: usize) -> String {
    let pad = "  ".repeat(depth + 1);
    let (open, close, items) = if let Ok(Ordered(members)) = serde_json::from_str(text) {
        let items = members.iter().map(|(name, value)| format!("{}: {}", json(name), pretty(value.get(), depth + 1)));
        ('{', '}', items.collect::<Vec<_>>())
    } else if let Ok(list) = serde_json::from_str::<Vec<Box<RawValue>>>(text) {
        ('[', ']', list.iter().map(|value| pretty(value.get(), depth + 1)).collect())
    } else {
        return text.to_owned();
    };
    let line = items.join(", ");
    if !line.contains('\n') && line.len() + 2 * depth < 110 {
        return format!("{open}{line}{close}");
    }
    format!("{open}\n{pad}{}\n{}{close}", items.join(&format!(",\n{pad}")), "  ".repeat(depth))
}
