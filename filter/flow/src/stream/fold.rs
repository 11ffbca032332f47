//! A provider's stream becomes the unary answer of the same dialect: what the cache stores.

use super::fold_anthropic::AnthropicFold;
use super::fold_openai::OpenaiFold;
use super::node::Unreadable;
use crate::sse::Event;
use proxium_wire::Dialect;

/// Gathers a stream up to a limit.
#[derive(Debug)]
pub struct Fold {
    limit_bytes: usize,
    size: usize,
    /// `None`: given up; the memory is free again.
    state: Option<State>,
}

#[derive(Debug)]
enum State {
    Openai(OpenaiFold),
    Anthropic(Box<AnthropicFold>),
}

/// How far a fold is after an event.
pub(super) type Step = Result<usize, Unreadable>;

impl Fold {
    /// At the start of a stream. An answer larger than `limit_bytes` is given up, and so is its memory.
    #[must_use]
    pub fn new(dialect: Dialect, limit_bytes: usize) -> Self {
        let state = match dialect {
            Dialect::Openai => State::Openai(OpenaiFold::default()),
            Dialect::Anthropic => State::Anthropic(Box::default()),
        };
        Self { limit_bytes, size: 0, state: Some(state) }
    }

    /// Takes an event.
    pub fn event(&mut self, event: &Event) {
        let grown = match &mut self.state {
            None => return,
            Some(State::Openai(fold)) => fold.event(event),
            Some(State::Anthropic(fold)) => fold.event(event),
        };
        self.size = self.size.saturating_add(grown.unwrap_or(usize::MAX));
        if self.size > self.limit_bytes {
            self.state = None;
        }
    }

    /// The unary answer. `None`: the stream had no terminator, held an error or something unreadable (such as a tool's input cut in its
    /// middle), or is over the limit.
    #[must_use]
    pub fn finish(self) -> Option<Vec<u8>> {
        let body = match self.state? {
            State::Openai(fold) => fold.finish(),
            State::Anthropic(fold) => fold.finish(),
        }?;
        (body.len() <= self.limit_bytes).then_some(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::Reader;
    use serde_json::{Value, json};
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn fold_within(dialect: Dialect, limit_bytes: usize, data: &[&str]) -> Option<Value> {
        let mut fold = Fold::new(dialect, limit_bytes);
        let mut reader = Reader::new();
        for data in data {
            reader.push(format!("data: {data}\n\n").as_bytes()).iter().for_each(|event| fold.event(event));
        }
        fold.finish().map(|body| serde_json::from_slice(&body).unwrap())
    }

    fn openai(deltas: &[&str]) -> Option<Value> {
        let chunks: Vec<String> = deltas.iter().map(|delta| format!(r#"{{"choices":[{{"index":0,"delta":{delta}}}]}}"#)).collect();
        let mut data: Vec<&str> = chunks.iter().map(String::as_str).collect();
        data.push("[DONE]");
        fold_within(Dialect::Openai, 10_000, &data).map(|body| body["choices"][0]["message"].clone())
    }

    fn anthropic(events: &[&str]) -> Option<Value> {
        let mut data = vec![
            r#"{"type":"message_start","message":{"id":"msg_1","type":"message","content":[],"stop_reason":null,"usage":{"input_tokens":9,"cache_read_input_tokens":5,"output_tokens":1}}}"#,
        ];
        data.extend(events);
        data.push(
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":7,"cache_read_input_tokens":null}}"#,
        );
        data.push(r#"{"type":"message_stop"}"#);
        fold_within(Dialect::Anthropic, 10_000, &data)
    }

    #[test]
    fn chunks_become_a_completion_with_every_choice() {
        let body = fold_within(
            Dialect::Openai,
            10_000,
            &[
                r#"{"id":"","object":"chat.completion.chunk","created":0,"model":"","choices":[],"prompt_filter_results":[1]}"#,
                r#"{"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","system_fingerprint":"fp","service_tier":"default","obfuscation":"xx","usage":null,"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}]}"#,
                r#"{"id":"c1","choices":[{"index":1,"delta":{"role":"assistant","refusal":"No"},"finish_reason":null}]}"#,
                r#"{"id":"c1","choices":[{"index":0,"delta":{"content":"He"},"logprobs":{"content":[{"token":"He","logprob":-0.10000000000000000555}],"refusal":null}}]}"#,
                r#"{"id":"c1","choices":[{"index":0,"delta":{"content":"llo"},"logprobs":{"content":[{"token":"llo","logprob":-0.5}],"refusal":null}},{"index":1,"delta":{"refusal":"pe"}}]}"#,
                r#"{"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
                r#"{"id":"c1","choices":[{"index":1,"delta":{},"finish_reason":"stop"}]}"#,
                r#"{"id":"c1","system_fingerprint":null,"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
                "[DONE]",
            ],
        );
        assert_eq!(
            body,
            Some(json!({
                "id": "c1", "object": "chat.completion", "created": 7, "model": "m", "system_fingerprint": "fp", "service_tier": "default",
                "prompt_filter_results": [1], "usage": {"prompt_tokens": 3, "completion_tokens": 2},
                "choices": [
                    {"index": 0, "message": {"role": "assistant", "content": "Hello", "refusal": null}, "finish_reason": "stop",
                     "logprobs": {"content": [{"token": "He", "logprob": -0.1}, {"token": "llo", "logprob": -0.5}], "refusal": null}},
                    {"index": 1, "message": {"role": "assistant", "content": null, "refusal": "Nope"}, "finish_reason": "stop"}
                ]
            }))
        );
    }

    #[test]
    fn interleaved_tool_pieces_find_their_call() {
        let message = openai(&[
            r#"{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}"#,
            r#"{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"g","arguments":""}}]}"#,
            r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\""}}]}"#,
            r#"{"tool_calls":[{"index":1,"function":{"arguments":"{\"y\""}}]}"#,
            r#"{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}"#,
            r#"{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"g","arguments":":2}"}}]}"#,
        ]);
        assert_eq!(
            message,
            Some(json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
                {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{\"y\":2}"}}
            ]}))
        );
    }

    #[test]
    fn unknown_deltas_are_kept() {
        let message = openai(&[
            r#"{"role":"assistant","reasoning_content":"a","reasoning":"x","level":1,"annotations":[1],"audio":{"id":"au","data":"AA"}}"#,
            r#"{"reasoning_content":"b","reasoning":"y","level":2,"annotations":[2],"audio":{"id":"au","data":"BB","expires_at":5}}"#,
        ]);
        assert_eq!(
            message,
            Some(json!({"role": "assistant", "content": null, "reasoning_content": "ab", "reasoning": "xy", "level": 2,
                "annotations": [1, 2], "audio": {"id": "au", "data": "AABB", "expires_at": 5}}))
        );
    }

    #[test]
    fn blocks_become_a_message() {
        let body = anthropic(&[
            r#"{"type":"ping"}"#,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"m"}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"Eq/+=="}}"#,
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"zz"}}"#,
            r#"{"type":"content_block_stop","index":1}"#,
            r#"{"type":"content_block_start","index":2,"content_block":{"type":"text","text":"","citations":[]}}"#,
            r#"{"type":"content_block_delta","index":2,"delta":{"type":"citations_delta","citation":{"cited_text":"c"}}}"#,
            r#"{"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"Hé"}}"#,
            r#"{"type":"content_block_stop","index":2}"#,
            r#"{"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"toolu_1","name":"f","input":{}}}"#,
            r#"{"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":""}}"#,
            r#"{"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"{\"n\": 1"}}"#,
            r#"{"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":".50}"}}"#,
            r#"{"type":"content_block_stop","index":3}"#,
            r#"{"type":"content_block_start","index":4,"content_block":{"type":"tool_use","id":"toolu_2","name":"g","input":{}}}"#,
            r#"{"type":"content_block_stop","index":4}"#,
            r#"{"type":"content_block_start","index":5,"content_block":{"type":"web_search_tool_result","tool_use_id":"s","content":[{"url":"u"}]}}"#,
            r#"{"type":"content_block_stop","index":5}"#,
        ]);
        assert_eq!(
            body,
            Some(json!({
                "id": "msg_1", "type": "message", "stop_reason": "end_turn", "stop_sequence": null,
                "usage": {"input_tokens": 9, "cache_read_input_tokens": 5, "output_tokens": 7},
                "content": [
                    {"type": "thinking", "thinking": "hmm", "signature": "Eq/+=="},
                    {"type": "redacted_thinking", "data": "zz"},
                    {"type": "text", "text": "Hé", "citations": [{"cited_text": "c"}]},
                    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"n": 1.5}},
                    {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": "u"}]}
                ]
            }))
        );
    }

    #[test]
    fn what_is_not_whole_is_no_answer() {
        let hi = r#"{"choices":[{"delta":{"content":"hi"}}]}"#;
        for data in [
            &[hi][..],
            &["[DONE]"],
            &[hi, r#"{"error":{}}"#, "[DONE]"],
            &[hi, "oops", "[DONE]"],
            &[hi, r#"{"choices":[{"delta":{"content":"\ud83d"}}]}"#, "[DONE]"],
        ] {
            assert_eq!(fold_within(Dialect::Openai, 10_000, data), None, "{data:?}");
        }
        let tool = r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#;
        let cut = r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"a\":"}}"#;
        assert_eq!(anthropic(&[tool, cut]), None);
        assert_eq!(anthropic(&[cut]), None);
    }

    #[test]
    fn over_the_limit_nothing_is_kept() {
        let chunk = format!(r#"{{"choices":[{{"delta":{{"content":"{}"}}}}]}}"#, "a".repeat(900));
        assert!(fold_within(Dialect::Openai, 2_000, &[&chunk, "[DONE]"]).is_some());
        assert!(fold_within(Dialect::Openai, 2_000, &[&chunk, &chunk, &chunk, "[DONE]"]).is_none());
        let mut fold = Fold::new(Dialect::Openai, 2_000);
        for _ in 0..3 {
            fold.event(&Event { name: String::new(), data: chunk.clone() });
        }
        assert!(fold.state.is_none());
    }
}
