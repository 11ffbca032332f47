//! Any bytes: the one reading of a request body never panics, and its canonical form is its own canonical form.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxium_flow::json::Document;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(document) = Document::read(bytes.to_vec(), &["model", "stream"]) {
        let _ = document.member("messages");
        let again = Document::read(document.canonical.clone(), &[]).expect("the canonical form is JSON");
        assert_eq!(again.canonical, document.canonical);
    }
});
