//! What is remembered of a project and of its end users: who gets it, where it stands, and what goes with it.

// Helpers of tests: a panic is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use proxium::mock_provider::Captured;
use proxium_e2e::{BOTH, BOUND, Call, Key, Response, Stack, catalog, chat, eventually};
use serde_json::{Value, json};

async fn stack() -> Stack {
    Stack::builder().catalog(catalog::both_dialects).render("--streams", "router").start().await
}

async fn remember(stack: &Stack, key: &Key, text: &str, end_user: Option<&str>) -> String {
    let memory = json!({"text": text, "end_user": end_user});
    let added = stack.admin().post(&format!("/projects/{}/memories", key.project), &memory).await.expect(201);
    added.json()["id"].as_str().unwrap().to_owned()
}

fn recalling(call: Call, end_user: &str) -> Call {
    let call = call.header("x-proxium-memory", "recall");
    if end_user.is_empty() { call } else { call.header("x-proxium-user", end_user) }
}

fn last(stack: &Stack) -> Captured {
    stack.mocks.first.requests().pop().expect("the provider was called")
}

/// The remembered lines in what the provider saw as system texts.
fn seen(request: &Captured) -> Vec<String> {
    let body = request.json();
    let mut texts: Vec<&str> =
        body["messages"].as_array().unwrap().iter().filter(|m| m["role"] == "system").map(|m| m["content"].as_str().unwrap()).collect();
    match &body["system"] {
        Value::String(text) => texts.push(text),
        Value::Array(blocks) => texts.extend(blocks.iter().map(|block| block["text"].as_str().unwrap())),
        _ => {}
    }
    texts.iter().flat_map(|text| text.lines()).filter_map(|line| Some(line.strip_prefix("- ")?.to_owned())).collect()
}

fn told(answer: &Response) -> (u16, Option<&str>, Option<&str>) {
    (answer.status, answer.header("x-proxium-memories"), answer.header("x-proxium-cache"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_gets_its_projects_memories_and_its_end_users_in_every_dialect_and_mode() {
    let stack = stack().await;
    let key = stack.key_with(json!({"memory": true}), json!({})).await;
    remember(&stack, &key, "The shop closes at six.", None).await;
    remember(&stack, &key, "Ann likes\ntea.", Some("ann")).await;
    remember(&stack, &key, "Bob likes coffee.", Some("bob")).await;
    let gone = json!({"text": "Ann is away.", "end_user": "ann", "expires_at": "2020-01-01T00:00:00Z"});
    let _ = stack.admin().post(&format!("/projects/{}/memories", key.project), &gone).await.expect(201);

    for (round, (ask, model)) in BOTH.into_iter().flat_map(|ask| [(ask, "m1"), (ask, "a1")]).enumerate() {
        let body = ask.body(model, &format!("hello {round}"));
        let answer = stack.call(&recalling(ask.call(&key, &body), "ann")).await.expect(200);
        assert_eq!(told(&answer), (200, Some("2"), Some("miss")));
        assert_eq!(seen(&last(&stack)), ["Ann likes tea.", "The shop closes at six."], "newest first");
        let plain = stack.call(&ask.call(&key, &body)).await.expect(200);
        assert_eq!(told(&plain), (200, None, Some("miss")), "another request, without memories");
        assert!(seen(&last(&stack)).is_empty());
        let stream = stack.streamed(&recalling(ask.stream(&key, model, &format!("stream {round}")), "bob")).await.whole();
        assert_eq!(stream.answer().header("x-proxium-memories"), Some("2"));
        assert_eq!(seen(&last(&stack)), ["Bob likes coffee.", "The shop closes at six."]);
    }
    // The end user may be named by the body alone; nobody's are the project's only.
    let mut body = chat("m1", "by the body");
    body["user"] = json!("bob");
    let _ = stack.call(&recalling(Call::chat(&key, &body), "")).await.expect(200);
    assert_eq!(seen(&last(&stack)), ["Bob likes coffee.", "The shop closes at six."]);
    let nobody = stack.call(&recalling(Call::chat(&key, &chat("m1", "of nobody")), "")).await;
    assert_eq!((told(&nobody).1, seen(&last(&stack))), (Some("1"), vec!["The shop closes at six.".to_owned()]));

    // Of another project, and of one with memory off, nothing.
    for settings in [json!({"memory": true}), json!({})] {
        let other = stack.key_with(settings.clone(), json!({})).await;
        if settings == json!({}) {
            remember(&stack, &other, "Kept for later.", None).await;
        }
        let answer = stack.call(&recalling(Call::chat(&other, &chat("m1", "hello")), "ann")).await.expect(200);
        assert!(seen(&last(&stack)).is_empty());
        assert_eq!(answer.header("x-proxium-memories"), (settings != json!({})).then_some("0"));
    }
    let wrong = stack.call(&Call::chat(&key, &chat("m1", "x")).header("x-proxium-memory", "yes")).await.expect(400);
    assert!(wrong.text().contains("x-proxium-memory"), "{}", wrong.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_belongs_to_the_memories_it_came_of_and_goes_with_them() {
    let stack = stack().await;
    let key = stack.key_with(json!({"memory": true}), json!({})).await;
    let memories = format!("/projects/{}/memories", key.project);
    remember(&stack, &key, "Ann likes tea.", Some("ann")).await;
    let bobs = remember(&stack, &key, "Bob likes coffee.", Some("bob")).await;
    let ask = async |end_user: &str| {
        let answer = stack.call(&recalling(Call::chat(&key, &chat("m1", "what do I like?")), end_user)).await.expect(200);
        let label = answer.header("x-proxium-cache").unwrap().to_owned();
        if label == "miss" {
            stack.kept(&key.project, &answer).await;
        }
        label
    };
    for (end_user, wanted) in [("ann", "miss"), ("bob", "miss"), ("ann", "hit"), ("bob", "hit"), ("", "miss"), ("carl", "hit")] {
        assert_eq!(ask(end_user).await, wanted, "{end_user}");
    }

    // The same words again are not the same memory.
    let _ = stack.admin().delete(&format!("{memories}?end_user=ann")).await.expect(204);
    remember(&stack, &key, "Ann likes tea.", Some("ann")).await;
    assert_eq!((ask("ann").await, ask("bob").await, ask("").await), ("miss".into(), "hit".into(), "hit".into()));
    let _ = stack.admin().delete(&format!("{memories}/{bobs}")).await.expect(204);
    let _ = stack.admin().delete(&format!("{memories}/{bobs}")).await.expect(404);
    remember(&stack, &key, "Bob likes coffee.", Some("bob")).await;
    assert_eq!((ask("bob").await, ask("ann").await), ("miss".into(), "hit".into()));

    // An answer that comes once its memory is gone is returned and not kept.
    let before = stack.mocks.first.calls("m1");
    let gate = stack.mocks.first.gate();
    let slow = stack.envoys[0].spawn(recalling(Call::chat(&key, &chat("m1", "slow")), "ann"));
    eventually("the provider has the call", BOUND, || async { stack.mocks.first.calls("m1") > before }).await;
    let _ = stack.admin().delete(&format!("{memories}?end_user=ann")).await.expect(204);
    gate.open();
    let answer = slow.await.unwrap().unwrap().expect(200);
    stack.settled(&key.project, &answer).await;
    remember(&stack, &key, "Ann likes tea.", Some("ann")).await;
    let again = stack.call(&recalling(Call::chat(&key, &chat("m1", "slow")), "ann")).await;
    assert_eq!(told(&again), (200, Some("1"), Some("miss")));
}

#[tokio::test(flavor = "multi_thread")]
async fn memories_are_listed_bounded_and_checked() {
    let stack = Stack::start().await;
    let key = stack.key_with(json!({"memory": true}), json!({})).await;
    let path = format!("/projects/{}/memories", key.project);
    let admin = stack.admin();
    remember(&stack, &key, " first ", None).await;
    remember(&stack, &key, "second", Some("ann@example.org")).await;
    let texts = async |query: &str| {
        let listed = admin.get(&format!("{path}{query}")).await.expect(200).json();
        listed["memories"].as_array().unwrap().iter().map(|memory| memory["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(texts("").await, ["second", "first"]);
    assert_eq!(texts("?end_user=ann%40example.org").await, ["second"]);
    for bad in [
        json!({}),
        json!({"text": " "}),
        json!({"text": "x".repeat(2_001)}),
        json!({"text": "x", "user": "ann"}),
        json!({"text": "x", "expires_at": "soon"}),
    ] {
        let _ = admin.post(&path, &bad).await.expect(400);
    }
    let _ = admin.post("/projects/nobody/memories", &json!({"text": "x"})).await.expect(404);
    let _ = admin.delete(&format!("{path}?user=ann")).await.expect(400);

    // Far more than the budget: as many as it holds.
    for number in 0..12 {
        remember(&stack, &key, &format!("{number} {}", "x".repeat(497)), None).await;
    }
    let answer = stack.call(&recalling(Call::chat(&key, &chat("m1", "hi")), "")).await.expect(200);
    let seen = seen(&last(&stack));
    assert_eq!(answer.header("x-proxium-memories"), Some(seen.len().to_string().as_str()));
    let numbers: Vec<&str> = seen.iter().filter_map(|text| text.split_once(' ')).map(|(number, _)| number).collect();
    assert_eq!(numbers, ["11", "10", "9", "8", "7"], "the newest");
    let _ = admin.delete(&path).await.expect(204);
    assert!(texts("").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn where_they_are_too_many_those_nearest_to_the_question_are_recalled() {
    // The mock's vectors are made of the text's bytes: equal texts are the nearest.
    let embed = "models:\n  embed: {provider: third, endpoints: [embeddings], price_usd_per_mtok: {input: 100}}\n";
    let stack = Stack::builder()
        .catalog(move |mocks| catalog::both_dialects(mocks).replace("models:\n", embed) + "embeddings: {model: embed}\n")
        .start()
        .await;
    let key = stack.key_with(json!({"memory": true}), json!({})).await;
    let question = format!("where is the key {}", "?".repeat(480));
    remember(&stack, &key, &question, None).await;
    for number in 0..8 {
        remember(&stack, &key, &format!("{number} {}", "x".repeat(497)), None).await;
    }
    let call = recalling(Call::chat(&key, &chat("m1", &question)), "");
    let answer = stack.call(&call).await.expect(200);
    assert_eq!(seen(&last(&stack))[0], question, "the oldest, and the nearest");
    assert_eq!(stack.mocks.third.calls("embed"), 1, "all texts in one call");
    stack.kept(&key.project, &answer).await;
    let books = stack.closed_books(&key, 2).await;
    assert_eq!((books.calls, books.ledger.iter().filter(|record| record["endpoint"] == "embeddings").count()), (1, 1));
    eventually("nobody is asked any more", BOUND, || async {
        let asked = stack.mocks.third.calls("embed");
        stack.call(&call).await.expect(200).header("x-proxium-cache") == Some("hit") && stack.mocks.third.calls("embed") == asked
    })
    .await;
    // Without vectors the newest are taken.
    stack.mocks.third.always("embed", proxium::mock_provider::Behaviour::status(500));
    let _ = stack.call(&recalling(Call::chat(&key, &chat("m1", "another question")), "")).await.expect(200);
    assert!(seen(&last(&stack))[0].starts_with("7 "), "{:?}", seen(&last(&stack)));
}
