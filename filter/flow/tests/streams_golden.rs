//! Streams as files a person can read: `golden/streams/<what>.<case>.in.sse` is what a provider sends, `.out.sse` what the client gets.
//!
//! `<what>` is a translation (`<client>_<provider>`) or `hide`. A provider's stream whose first line is the comment `: include_usage` goes
//! to a client that asked for usage. `UPDATE_GOLDEN=1 cargo test -p proxium-flow --test streams_golden` writes the `.out.sse` files anew.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // test support: a surprise is a failed test

use proxium_flow::json::Document;
use proxium_flow::sse::Reader;
use proxium_flow::stream::Hider;
use proxium_flow::stream::responses::Frame;
use proxium_flow::translate::{anthropic_openai_stream, openai_anthropic_stream, responses_anthropic, responses_openai_stream};
use std::path::{Path, PathBuf};

fn run(what: &str, bytes: &[u8]) -> Vec<u8> {
    let include_usage = bytes.starts_with(b": include_usage");
    let (mut reader, mut out) = (Reader::new(), Vec::new());
    let mut events = reader.push(bytes);
    events.extend(reader.finish());
    match what {
        "openai_anthropic" => {
            let mut translator = openai_anthropic_stream::Translator::new("fast", "chatcmpl-7", 1_790_000_000, include_usage);
            events.iter().for_each(|event| translator.event(event, &mut out));
            translator.finish(&mut out);
        }
        "anthropic_openai" => {
            let mut translator = anthropic_openai_stream::Translator::new("fast", "msg_7", 1_790_000_000, include_usage);
            events.iter().for_each(|event| translator.event(event, &mut out));
            translator.finish(&mut out);
        }
        "responses_openai" => {
            let mut translator =
                responses_openai_stream::Translator::new(Frame::new(&Document::default(), "fast", "resp_7", 1_790_000_000));
            events.iter().for_each(|event| translator.event(event, &mut out));
            translator.finish(&mut out);
        }
        "responses_anthropic" => {
            let mut translator = responses_anthropic::Translator::new(Frame::new(&Document::default(), "fast", "resp_7", 1_790_000_000));
            events.iter().for_each(|event| translator.event(event, &mut out));
            translator.finish(&mut out);
        }
        "hide" => {
            let mut hider = Hider::new();
            hider.push(bytes, &mut out);
            out.extend(hider.finish());
        }
        other => panic!("{other}: not a translation, not `hide`"),
    }
    out
}

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/streams");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut cases: Vec<PathBuf> = files.filter(|path| path.to_str().unwrap().ends_with(".in.sse")).collect();
    cases.sort();
    cases
}

#[test]
fn every_stream_comes_out_as_its_file_says() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let cases = cases();
    assert!(cases.len() >= 10);
    let mut wrong = Vec::new();
    for path in cases {
        let name = path.file_name().unwrap().to_str().unwrap();
        let got = run(name.split('.').next().unwrap(), &std::fs::read(&path).unwrap());
        let expected = path.with_file_name(name.replace(".in.sse", ".out.sse"));
        if update {
            std::fs::write(&expected, &got).unwrap();
        } else if std::fs::read(&expected).ok().as_deref() != Some(&got) {
            wrong.push(format!("{name} gave\n{}", String::from_utf8_lossy(&got)));
        }
    }
    assert!(wrong.is_empty(), "{}\nUPDATE_GOLDEN=1 writes what came; read the difference.", wrong.join("\n"));
}
