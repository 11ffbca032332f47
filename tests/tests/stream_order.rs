//! A stream is true: each event is with the client before the provider sends the next.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test
#![allow(clippy::print_stdout)] // figures for who asks (--nocapture)

use proxium::mock_provider::{Behaviour, Steps};
use proxium_e2e::{Ask, BOTH, Stack, catalog};
use std::time::{Duration, Instant};

const WORDS: [&str; 6] = ["one ", "two ", "three ", "four ", "five ", "six"];
/// Many failures on purpose must not open a breaker.
const PATIENT: &str = "breaker: {consecutive_failures: 1000, min_requests: 1000}";

/// Reads a stream of `answering`, which is the last of `chain`, word by word; the spans between the release of a word and its arrival.
async fn word_by_word(stack: &Stack, ask: Ask, chain: &str, answering: &str) -> Vec<Duration> {
    let key = stack.key().await;
    let mock = [&stack.mocks.first, &stack.mocks.second, &stack.mocks.third][answering[1..].parse::<usize>().unwrap() - 1];
    let steps = Steps::new();
    mock.next(answering, [Behaviour::answer().text(&WORDS.concat()).stepped(&steps)]);
    // What comes before the first word: the role; the message's and the block's start.
    let before = if answering.starts_with('m') { 1 } else { 2 };
    steps.release(before);
    let mut stream = stack.stream(&ask.stream(&key, chain, "count")).await;
    let row = format!("{ask:?} over {chain}");
    assert_eq!(stream.status, 200, "{row}");
    let mut spans = Vec::new();
    for (number, word) in WORDS.into_iter().enumerate() {
        assert_eq!(steps.sent(), before + number, "{row}: the provider is not ahead");
        let released = Instant::now();
        steps.release(1);
        stream.until_text(word).await;
        spans.push(released.elapsed());
    }
    assert_eq!(steps.sent(), before + WORDS.len(), "{row}");
    steps.open();
    let rest = stream.rest().await;
    assert!(rest.is_terminated(), "{row}: {}", rest.raw());
    assert_eq!(rest.header("x-proxium-model"), Some(answering), "{row}");
    spans
}

fn tell(what: &str, mut spans: Vec<Duration>) {
    spans.sort();
    println!(
        "{what}: from the release of an event to the client {:?} (median), {:?} (most)",
        spans[spans.len() / 2],
        spans.last().unwrap()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_first_hop() {
    let stack = Stack::builder().catalog(catalog::both_dialects).start().await;
    let mut spans = Vec::new();
    for ask in BOTH {
        for model in ["m1", "a1"] {
            spans.extend(word_by_word(&stack, ask, model, model).await);
        }
    }
    tell("first hop", spans);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_two_failed_hops() {
    let stack = Stack::builder().catalog(catalog::both_dialects).and_catalog(PATIENT).start().await;
    let mut spans = Vec::new();
    for ask in BOTH {
        for [first, second, third] in [["m1", "a2", "m3"], ["a1", "m2", "a3"], ["m1", "m2", "a3"], ["a1", "a2", "m3"]] {
            stack.mocks.first.next(first, [Behaviour::status(500)]);
            stack.mocks.second.next(second, [Behaviour::reset()]);
            spans.extend(word_by_word(&stack, ask, &format!("{first}-{second}-{third}"), third).await);
        }
    }
    tell("after two failed hops", spans);
}
