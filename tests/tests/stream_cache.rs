//! Streams and the cache: either mode is served from either, in the right shape.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::{ANY, Behaviour};
use proxium_e2e::{Ask, BOTH, Key, Stack, Streamed, catalog, streamed};
use proxium_flow::stream::Fold;
use proxium_wire::Dialect;
use serde_json::{Value, json};

/// A call in one mode: the unary answer, folded from the events if it was streamed, and the whole of it.
async fn ask_in(stack: &Stack, key: &Key, ask: Ask, body: &Value, stream: bool) -> (Value, Streamed) {
    let body = if stream { streamed(body.clone()) } else { body.clone() };
    let answer = stack.streamed(&ask.call(key, &body)).await;
    if !stream {
        return (answer.json_answer(200), answer);
    }
    let answer = answer.whole();
    let mut fold = Fold::new(if ask == Ask::Chat { Dialect::Openai } else { Dialect::Anthropic }, 1 << 20);
    answer.events.iter().for_each(|event| fold.event(event));
    (serde_json::from_slice(&fold.finish().unwrap()).unwrap(), answer)
}

/// What of an answer must survive.
fn content(ask: Ask, unary: &Value) -> Value {
    match ask {
        Ask::Chat => {
            let choice = &unary["choices"][0];
            // Without text: a stream begins with an empty string or null, an answer has null.
            let text = choice["message"]["content"].as_str().unwrap_or_default();
            json!([text, choice["message"]["tool_calls"], choice["finish_reason"]])
        }
        Ask::Messages => json!([unary["content"], unary["stop_reason"]]),
    }
}

async fn either_mode_from_either(path: &str) {
    let stack = Stack::builder().catalog(catalog::both_dialects).render("--streams", path).start().await;
    for ask in BOTH {
        for model in ["m1", "a1"] {
            for (first, second) in [(true, true), (true, false), (false, true)] {
                let row = format!("{path}: {ask:?} over {model}: streamed {first}, then {second}");
                let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 1}})).await;
                stack.mocks.first.forget();
                let body = ask.body(model, &row);
                let (made, answer) = ask_in(&stack, &key, ask, &body, first).await;
                assert_eq!(answer.header("x-proxium-cache"), Some("miss"), "{row}");
                stack.kept(&key.project, &answer.answer()).await;
                for stream in [second, first] {
                    let (hit, answer) = ask_in(&stack, &key, ask, &body, stream).await;
                    assert_eq!((answer.header("x-proxium-cache"), answer.header("x-proxium-model")), (Some("hit"), Some(model)), "{row}");
                    assert_eq!(content(ask, &hit), content(ask, &made), "{row}");
                    assert!(hit.to_string().contains("You said: "), "{row}: {hit}");
                    let cost = answer.header("x-proxium-cost-usd");
                    assert!(if stream { cost.is_none_or(|cost| cost == "0") } else { cost == Some("0") }, "{row}: {cost:?}");
                }
                assert_eq!(stack.mocks.first.calls(ANY), 1, "{row}");
                let books = stack.closed_books(&key, 3).await;
                assert_eq!(books.calls, 1, "{row}: a hit uses no slot");
                assert_eq!(
                    books.ledger.iter().filter(|record| record["cached"] == "1" && record["cost_nano_usd"] == "0").count(),
                    2,
                    "{row}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn either_mode_is_served_from_either() {
    either_mode_from_either("router").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn either_mode_is_served_from_either_on_the_callout_path() {
    either_mode_from_either("callout").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hit_has_the_usage_chunk_for_who_asks() {
    for path in ["router", "callout"] {
        let stack = Stack::builder().catalog(catalog::both_dialects).render("--streams", path).start().await;
        let key = stack.key().await;
        for model in ["m1", "a1"] {
            let made = stack.streamed(&Ask::Chat.stream(&key, model, "hello there")).await.whole();
            assert!(!made.raw().contains("prompt_tokens"), "{path}");
            stack.kept(&key.project, &made.answer()).await;
            let mut body = streamed(Ask::Chat.body(model, "hello there"));
            body["stream_options"] = json!({"include_usage": true});
            let hit = stack.streamed(&Ask::Chat.call(&key, &body)).await.whole();
            assert_eq!(hit.header("x-proxium-cache"), Some("hit"), "{path}");
            let last = hit.json().pop().unwrap();
            assert_eq!(last["choices"], json!([]), "{path}: {}", hit.raw());
            assert_eq!([&last["usage"]["prompt_tokens"], &last["usage"]["completion_tokens"]], [2, 4], "{path}: {}", hit.raw());
            assert!(hit.raw().ends_with("data: [DONE]\n\n"));
        }
    }
}

/// Two parallel tool calls, their pieces interleaved.
fn openai_tools() -> Vec<String> {
    let chunk = |delta: Value, finish: Value| {
        format!(
            "data: {}\n\n",
            json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
        )
    };
    let start = |index: u32, name: &str| json!({"tool_calls": [{"index": index, "id": format!("call_{index}"), "type": "function", "function": {"name": name, "arguments": ""}}]});
    let piece = |index: u32, text: &str| json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]});
    let mut chunks: Vec<String> = [
        json!({"role": "assistant", "content": null}),
        start(0, "weather"),
        start(1, "time"),
        piece(0, "{\"city\":"),
        piece(1, "{\"zone\":"),
        piece(0, "\"Paris\"}"),
        piece(1, "\"CET\"}"),
    ]
    .into_iter()
    .map(|delta| chunk(delta, Value::Null))
    .collect();
    chunks.push(chunk(json!({}), json!("tool_calls")));
    chunks.push(
        "data: {\"id\":\"chatcmpl-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":7,\"total_tokens\":16}}\n\n"
            .into(),
    );
    chunks.push("data: [DONE]\n\n".into());
    chunks
}

fn anthropic_tools() -> Vec<String> {
    let event = |data: Value| format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap());
    let mut events = vec![event(
        json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "a1", "content": [], "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 9, "output_tokens": 1}}}),
    )];
    for (index, name, pieces) in [(0, "weather", ["{\"city\":", "\"Paris\"}"]), (1, "time", ["{\"zone\":", "\"CET\"}"])] {
        events.push(event(json!({"type": "content_block_start", "index": index, "content_block": {"type": "tool_use", "id": format!("call_{index}"), "name": name, "input": {}}})));
        events.extend(pieces.map(|piece| {
            event(json!({"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": piece}}))
        }));
        events.push(event(json!({"type": "content_block_stop", "index": index})));
    }
    events.push(event(
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": {"output_tokens": 7}}),
    ));
    events.push(event(json!({"type": "message_stop"})));
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_calls_come_back_whole() {
    let stack = Stack::builder().catalog(catalog::both_dialects).start().await;
    for ask in BOTH {
        for (model, events) in [("m1", openai_tools()), ("a1", anthropic_tools())] {
            let row = format!("{ask:?} over {model}");
            let key = stack.key().await;
            stack.mocks.first.next(model, [Behaviour::sse(events)]);
            let mut body = ask.body(model, "where and when?");
            body["tools"] = match ask {
                Ask::Chat => json!(
                    ["weather", "time"]
                        .map(|name| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}))
                ),
                Ask::Messages => json!(["weather", "time"].map(|name| json!({"name": name, "input_schema": {"type": "object"}}))),
            };
            let (made, answer) = ask_in(&stack, &key, ask, &body, true).await;
            let calls: Vec<(String, String, Value)> = match ask {
                Ask::Chat => {
                    assert_eq!(made["choices"][0]["finish_reason"], "tool_calls", "{row}: {made}");
                    let calls = made["choices"][0]["message"]["tool_calls"].as_array().unwrap().iter();
                    let text = |value: &Value| value.as_str().unwrap().to_owned();
                    calls
                        .map(|call| {
                            (
                                text(&call["id"]),
                                text(&call["function"]["name"]),
                                serde_json::from_str(&text(&call["function"]["arguments"])).unwrap(),
                            )
                        })
                        .collect()
                }
                Ask::Messages => {
                    assert_eq!(made["stop_reason"], "tool_use", "{row}: {made}");
                    let blocks = made["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_use");
                    blocks
                        .map(|block| (block["id"].as_str().unwrap().into(), block["name"].as_str().unwrap().into(), block["input"].clone()))
                        .collect()
                }
            };
            let expected = [("call_0", "weather", json!({"city": "Paris"})), ("call_1", "time", json!({"zone": "CET"}))];
            assert_eq!(calls, expected.map(|(id, name, input)| (id.into(), name.into(), input)), "{row}: {}", answer.raw());
            stack.kept(&key.project, &answer.answer()).await;
            for stream in [true, false] {
                let (hit, answer) = ask_in(&stack, &key, ask, &body, stream).await;
                assert_eq!(answer.header("x-proxium-cache"), Some("hit"), "{row}");
                assert_eq!(content(ask, &hit), content(ask, &made), "{row}: {}", answer.raw());
                assert!(stream || hit["usage"].as_object().is_some_and(|usage| !usage.is_empty()), "{row}");
            }
        }
    }
}

async fn kept_under_who_answered(path: &str) {
    let stack = Stack::builder().catalog(catalog::both_dialects).render("--streams", path).start().await;
    for (ask, first, second) in [(Ask::Chat, "m1", "m2"), (Ask::Messages, "m1", "a2"), (Ask::Chat, "a1", "m2")] {
        let key = stack.key().await;
        let chain = format!("{first}-{second}");
        stack.mocks.first.next(first, [Behaviour::status(503)]);
        stack.mocks.second.next(second, [Behaviour::answer().text("said by the second")]);
        let told =
            |answer: &Streamed| ["x-proxium-cache", "x-proxium-model"].map(|name| answer.header(name).unwrap_or_default().to_owned());
        let answer = stack.streamed(&ask.stream(&key, &chain, "hello")).await.whole();
        assert_eq!(told(&answer), ["miss", second], "{path}");
        stack.kept(&key.project, &answer.answer()).await;
        let answer = stack.streamed(&ask.stream(&key, &chain, "hello")).await.whole();
        assert_eq!(told(&answer), ["miss", first], "{path}: never served as the first hop's");
        stack.kept(&key.project, &answer.answer()).await;
        let answer = stack.streamed(&ask.stream(&key, second, "hello")).await.whole();
        assert_eq!((told(&answer), answer.text().as_str()), (["hit".into(), second.into()], "said by the second"), "{path}");
        assert_eq!(told(&stack.streamed(&ask.stream(&key, &chain, "hello")).await.whole()), ["hit", first], "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_kept_under_the_model_that_gave_it() {
    kept_under_who_answered("router").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_kept_under_the_model_that_gave_it_on_the_callout_path() {
    kept_under_who_answered("callout").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_did_not_end_by_itself_is_not_kept() {
    for path in ["router", "callout"] {
        let stack = Stack::builder().catalog(catalog::both_dialects).render("--streams", path).start().await;
        let key = stack.key().await;
        let rows = [("m1", "length"), ("m1", "content_filter"), ("a1", "max_tokens"), ("a1", "refusal")];
        for ask in BOTH {
            for (model, finish) in rows {
                let row = format!("{path}: {ask:?} over {model}: {finish}");
                for _ in 0..2 {
                    stack.mocks.first.next(model, [Behaviour::answer().finish(finish)]);
                    let answer = stack.streamed(&ask.stream(&key, model, finish)).await.whole();
                    assert_eq!(answer.header("x-proxium-cache"), Some("miss"), "{row}");
                    stack.settled(&key.project, &answer.answer()).await;
                }
            }
        }
    }
}
