//! What no log may hold: keys, tokens, credentials, prompts, answers. Looked for in the whole log of every process of every test, when it ends.

use crate::catalog::CREDENTIALS;
use crate::control_plane::{ADMIN_TOKEN, INTERNAL_SECRET, SEAL_KEY};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Shorter texts may stand in a log by chance.
const LEAST: usize = 8;
/// Of a longer one, its beginning.
const MOST: usize = 64;
/// So many are looked for; a test that makes thousands of calls makes them all alike.
const KEPT: usize = 300;
/// What keys of proxium and tokens of its admin API begin with, and how many letters follow.
const PREFIXES: [&str; 2] = ["px_", "pxa_"];
const LETTERS: usize = 43;
/// What every answer of the mock provider begins with, unless it was told another.
const ANSWER: &str = "You said: ";

static PROMPTS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A text of a user, which must not be logged.
pub fn prompt(text: &str) {
    let mut prompts = PROMPTS.lock().unwrap_or_else(PoisonError::into_inner);
    if text.len() >= LEAST && prompts.len() < KEPT {
        prompts.insert(text.chars().take(MOST).collect());
    }
}

/// What a log holds that it must not, if anything.
pub fn leak(log: &str) -> Option<String> {
    let key = log.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').find(|word| is_key(word));
    let fixed = CREDENTIALS.iter().map(|(_, value)| *value).chain([ADMIN_TOKEN, INTERNAL_SECRET, ANSWER]);
    let fixed = fixed.chain(SEAL_KEY.split_once(':').map(|(_, digits)| digits));
    let found = key.or_else(|| fixed.into_iter().find(|text| log.contains(text))).map(str::to_owned);
    found.or_else(|| PROMPTS.lock().unwrap_or_else(PoisonError::into_inner).iter().find(|text| log.contains(*text)).cloned())
}

fn is_key(word: &str) -> bool {
    PREFIXES.iter().any(|prefix| word.strip_prefix(prefix).is_some_and(|rest| rest.len() == LETTERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_secrets_and_prompts_are_found_wherever_they_stand() {
        prompt("a very private question");
        let key = format!("px_{}", "k1Z".repeat(15).split_at(43).0);
        for line in [format!("key={key},"), format!("\"{}\"", CREDENTIALS[0].1), "x a very private question y".to_owned()] {
            assert!(leak(&line).is_some(), "{line}");
        }
        assert_eq!(leak("key_abc px_requests 200 /v1/chat/completions"), None);
    }
}
