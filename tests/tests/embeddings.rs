//! `/v1/embeddings`: every form of input and answer, and answers of 8 MB.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium::mock_provider::Behaviour;
use proxium_e2e::{Call, Key, Stack, catalog};
use serde_json::{Value, json};

fn embed(key: &Key, mut body: Value) -> Call {
    body["model"] = "embed".into();
    Call::new("POST", "/v1/embeddings").header("authorization", &format!("Bearer {}", key.text)).json(&body)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_of_input_goes_on_as_it_came_and_is_priced_by_its_tokens() {
    let stack = Stack::builder().catalog(catalog::every_endpoint).start().await;
    let key = stack.key().await;
    for (body, count, tokens) in [
        (json!({"input": "one"}), 1, 1),
        (json!({"input": ["one two", "three"]}), 2, 3),
        (json!({"input": [1, 2, 3]}), 1, 3),
        (json!({"input": [[1, 2, 3], [4]], "user": "u", "unknown": {"kept": true}}), 2, 4),
        (json!({"input": "x", "dimensions": 3}), 1, 1),
        (json!({"input": "x", "encoding_format": "base64"}), 1, 1),
    ] {
        let answer = stack.call(&embed(&key, body.clone())).await.expect(200);
        let data = answer.json()["data"].clone();
        assert_eq!(data.as_array().unwrap().len(), count, "{body}");
        assert_eq!(answer.header("x-proxium-cost-usd"), Some(proxium_wire::NanoUsd(tokens * 20).to_string().as_str()), "{body}");
        let mut sent = body;
        sent["model"] = "e1".into();
        assert_eq!(stack.mocks.first.requests().pop().unwrap().json(), sent);
        match (sent.get("dimensions"), sent.get("encoding_format")) {
            (Some(_), _) => assert_eq!(data[0]["embedding"].as_array().unwrap().len(), 3),
            (_, Some(_)) => assert!(data[0]["embedding"].is_string()),
            _ => assert!(data[0]["embedding"].is_array()),
        }
    }
    for bad in [json!({}), json!({"input": []}), json!({"input": 5}), json!({"input": "x", "dimensions": "many"})] {
        assert_eq!(stack.call(&embed(&key, bad)).await.expect(400).code(), "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_eight_megabytes_pass_and_leave_nothing_behind() {
    let stack = Stack::builder().catalog(catalog::every_endpoint).concurrency(1).start().await;
    let key = stack.key().await;
    let many: Vec<String> = (0..100).map(|number| format!("text {number}")).collect();
    let floats = stack.call(&embed(&key, json!({"input": many, "dimensions": 1536}))).await.expect(200);
    assert_eq!(floats.json()["data"][99]["embedding"].as_array().unwrap().len(), 1536);

    let vector = vec!["0.123456789"; 1536].join(",");
    let item = |index: usize| format!(r#"{{"object":"embedding","index":{index},"embedding":[{vector}]}}"#);
    let data: Vec<String> = (0..(8 << 20) / (12 * 1536)).map(item).collect();
    let body = format!(r#"{{"object":"list","data":[{}],"usage":{{"prompt_tokens":1,"total_tokens":1}}}}"#, data.join(","));
    assert!(body.len() > 8_000_000, "{}", body.len());
    stack.mocks.first.always("e1", Behaviour::raw(200, "application/json", body.clone()));
    let mut resident = Vec::new();
    for _ in 0..24 {
        let calls = (0..6).map(|_| embed(&key, json!({"input": "x"})));
        for answer in stack.all_at_once(calls).await {
            let answer = answer.expect(200);
            assert!(answer.body == body.as_bytes() && answer.header("x-proxium-cost-usd") == Some("0.00000002"));
        }
        resident.push(stack.envoys[0].process().resident_bytes());
    }
    // How many of six answers meet in the VM differs from round to round, so some go by until all six have met
    // and its memory, which never shrinks, has its size. From then on what was taken is used again: one answer
    // left behind a round would be 100 MB by the last.
    assert!(resident[23] < resident[11] + (64 << 20), "{resident:?}");
}
