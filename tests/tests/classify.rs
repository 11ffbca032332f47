//! `auto` by a classifier: which tier, who is asked, and what it costs.

// Helpers of tests: a panic is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use proxium::mock_provider::Behaviour;
use proxium_e2e::{BOTH, BOUND, Key, Response, Stack, catalog, chat, eventually};
use serde_json::json;

/// The third provider sorts; simple calls go to `m1`, hard ones to `m2`, those that cannot be sorted to `m1` and `m2`.
async fn stack(classifier: &'static str, more: &str) -> Stack {
    Stack::builder()
        .catalog(move |mocks| {
            let chains = "chains:\n  cheap: [m1]\n  dear: [m2]\n  auto: [m2]\n";
            catalog::both_dialects(mocks).replace("chains:\n", chains)
                + &format!("classifier: {{model: {classifier}, tiers: {{simple: cheap, hard: dear}}, fallback: m1-m2, timeout: 1s}}\n")
        })
        .and_catalog(more)
        .start()
        .await
}

async fn on(stack: &Stack) -> Key {
    stack.key_with(json!({"auto_classify": true}), json!({})).await
}

fn told(answer: &Response) -> (Option<&str>, Option<&str>) {
    (answer.header("x-proxium-tier"), answer.header("x-proxium-model"))
}

#[tokio::test(flavor = "multi_thread")]
async fn auto_gets_the_tier_that_the_classifier_says_and_keeps_it_for_the_same_request() {
    for classifier in ["m3", "a3"] {
        let stack = stack(classifier, "").await;
        let key = on(&stack).await;
        for (number, (word, tier)) in [("simple", ("cheap", "m1")), ("I would say: **Hard**.", ("dear", "m2"))].into_iter().enumerate() {
            stack.mocks.third.always(classifier, Behaviour::answer().text(word));
            for ask in BOTH {
                let call = ask.call(&key, &ask.body("auto", &format!("Is number {number} hard?")));
                let answer = stack.call(&call).await.expect(200);
                assert_eq!(told(&answer), (Some(tier.0), Some(tier.1)));
                stack.kept(&key.project, &answer).await;
            }
        }
        assert_eq!(stack.mocks.third.calls(classifier), 4);
        let prompt = String::from_utf8(stack.mocks.third.requests()[0].body.to_vec()).unwrap();
        assert!(prompt.contains("hard, simple") && prompt.contains("Is number 0 hard?") && prompt.len() < 1_000, "{prompt}");

        // The same request: neither the classifier nor a model is asked, and it is the tier's model that is known.
        let books = stack.closed_books(&key, 8).await;
        assert_eq!((books.calls, books.count("call")), (4, 8), "a classification takes no slot");
        let call = BOTH[0].call(&key, &BOTH[0].body("auto", "Is number 0 hard?"));
        eventually("the tier is kept", BOUND, || async {
            let asked = stack.mocks.third.calls(classifier);
            let answer = stack.call(&call).await.expect(200);
            assert_eq!((told(&answer), answer.header("x-proxium-cache")), ((Some("cheap"), Some("m1")), Some("hit")));
            stack.mocks.third.calls(classifier) == asked
        })
        .await;
        // Not read, and not kept.
        let asked = stack.mocks.third.calls(classifier);
        let fresh = stack.call(&call.clone().header("x-proxium-cache", "bypass")).await.expect(200);
        assert_eq!((told(&fresh), stack.mocks.third.calls(classifier)), ((Some("dear"), Some("m2")), asked + 1));
        // A stream, and a name that is not `auto`.
        let stream = stack.streamed(&BOTH[0].stream(&key, "auto", "stream")).await.whole();
        assert_eq!(told(&stream.answer()), (Some("dear"), Some("m2")));
        assert_eq!(told(&stack.chat(&key, &chat("cheap", "x")).await), (None, Some("m1")));
        // Without it, `auto` is a name like any other.
        let asked = stack.mocks.third.calls(classifier);
        let off = stack.key().await;
        assert_eq!((told(&stack.chat(&off, &chat("auto", "x")).await), stack.mocks.third.calls(classifier)), ((None, Some("m2")), asked));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_goes_wrong_with_the_classifier_is_the_fallback_and_costs_nothing() {
    let stack = stack("m3", "breaker: {consecutive_failures: 4, min_requests: 1000, cooldown: 60s}").await;
    let key = on(&stack).await;
    let ask = async |number: usize| {
        let answer = stack.chat(&key, &chat("auto", &format!("number {number}"))).await.expect(200);
        assert_eq!(told(&answer), (Some("m1-m2"), Some("m1")), "{number}");
    };
    let failures = [
        Behaviour::answer().text("no idea"),
        Behaviour::answer().text("simple or hard"),
        Behaviour::status(500),
        Behaviour::html(),
        Behaviour::hang(),
        Behaviour::reset(),
        Behaviour::answer().text("simple"),
    ];
    let count = failures.len();
    stack.mocks.third.next("m3", failures);
    for number in 0..count {
        ask(number).await;
    }
    // Four failures opened the classifier's breaker: the last word was not heard. The model itself may be called.
    assert_eq!(stack.mocks.third.calls("m3"), count - 1);
    assert_eq!(told(&stack.chat(&key, &chat("m3", "hi")).await.expect(200)), (None, Some("m3")));
    // A word that says nothing was paid for, a failure was not.
    let books = stack.closed_books(&key, count + 1 + 2).await;
    assert_eq!(books.calls, count as i64 + 1);
    assert_eq!(books.ledger.iter().filter(|record| record["model"] == "m3" && record["calls"] == "0").count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_refused_buys_no_tier_and_pays_none() {
    let stack = stack("m3", "").await;
    stack.mocks.third.always("m3", Behaviour::answer().text("simple"));
    let key = stack.key_with(json!({"auto_classify": true}), json!({"ceilings": {"calls_per_hour": 1}})).await;
    let _ = stack.chat(&key, &chat("auto", "one")).await.expect(200);
    let before = stack.closed_books(&key, 2).await;
    let _ = stack.chat(&key, &chat("auto", "two")).await.expect(429);
    assert_eq!((stack.mocks.third.calls("m3"), stack.books(&key).await), (1, before));

    // The tier's models are not the key's: refused after the tier was paid for.
    let key = stack.admin().key_of(&key.project, json!({"allowed_models": ["m2", "m3"]})).await;
    let _ = stack.chat(&key, &chat("auto", "three")).await.expect(403);
    assert_eq!(stack.mocks.third.calls("m3"), 2);
    eventually("its money is given back", BOUND, || async { stack.books(&key).await.holds == 0 }).await;
    assert_eq!(stack.ledger(&key.project).await.len(), 2);
    let without = Stack::start().await;
    let refused = without.admin().post("/projects", &json!({"name": "x", "auto_classify": true})).await.expect(400);
    assert!(refused.text().contains("classifier"), "{}", refused.text());
    let refused = without.admin().post("/projects", &json!({"name": "x", "cache": {"near": {"enabled": true}}})).await.expect(400);
    assert!(refused.text().contains("embeddings"), "{}", refused.text());
}
