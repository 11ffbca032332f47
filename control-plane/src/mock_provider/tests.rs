use super::*;
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

fn mock() -> Mock {
    Mock::start((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
}

/// Sends one request on a connection of its own; all bytes until the other end closes, or how it broke.
fn send(mock: &Mock, path: &str, headers: &str, body: &Value) -> (String, Option<ErrorKind>) {
    let (bytes, broke) = send_bytes(mock, path, headers, body);
    (String::from_utf8(bytes).unwrap(), broke)
}

fn send_bytes(mock: &Mock, path: &str, headers: &str, body: &Value) -> (Vec<u8>, Option<ErrorKind>) {
    let mut socket = TcpStream::connect(mock.addr()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let body = body.to_string();
    write!(socket, "POST {path} HTTP/1.1\r\nhost: m\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
        .unwrap();
    let mut answer = Vec::new();
    let broke = socket.read_to_end(&mut answer).err().map(|error| error.kind());
    (answer, broke)
}

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello there"}]})
}

fn body_of(answer: &str) -> Value {
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn a_chat_answer_echoes_the_user_and_counts_words() {
    let mock = mock();
    let (answer, _) = send(&mock, "/v1/chat/completions", "", &chat("m"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let body = body_of(&answer);
    assert_eq!(body.pointer("/choices/0/message/content"), Some(&json!("You said: hello there")));
    assert_eq!(body.pointer("/choices/0/finish_reason"), Some(&json!("stop")));
    assert_eq!(body.pointer("/usage/prompt_tokens"), Some(&json!(4)));
    assert_eq!(body.pointer("/usage/completion_tokens"), Some(&json!(4)));
}

#[test]
fn a_message_speaks_anthropic_under_any_prefix() {
    let mock = mock();
    let request = json!({"model": "m", "system": "be brief", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]});
    let body = body_of(&send(&mock, "/some/where/messages?beta=true", "", &request).0);
    assert_eq!(body.pointer("/content/0/text"), Some(&json!("You said: hi")));
    assert_eq!(body.pointer("/usage/input_tokens"), Some(&json!(3)));
    assert_eq!(mock.requests()[0].path, "/some/where/messages?beta=true");
    assert_eq!(body_of(&send(&mock, "/v1/messages/count_tokens", "", &request).0), json!({"input_tokens": 3}));
}

#[test]
fn a_stream_ends_with_usage_only_when_asked() {
    let mock = mock();
    let mut request = chat("m");
    request["stream"] = json!(true);
    let (plain, _) = send(&mock, "/v1/chat/completions", "", &request);
    assert!(plain.contains("data: [DONE]") && !plain.contains("prompt_tokens"), "{plain}");
    request["stream_options"] = json!({"include_usage": true});
    let (metered, _) = send(&mock, "/v1/chat/completions", "", &request);
    assert!(metered.contains(r#""choices":[],"#) && metered.contains(r#""prompt_tokens":4"#), "{metered}");
    let (messages, _) = send(&mock, "/v1/messages", "", &request);
    for event in ["message_start", "content_block_delta", "message_delta", "message_stop"] {
        assert!(messages.contains(&format!("event: {event}\n")), "{messages}");
    }
}

#[test]
fn a_models_name_scripts_its_failure() {
    let mock = mock();
    let (refused, _) = send(&mock, "/v1/chat/completions", "", &chat("mock-error-429"));
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("retry-after: 1"), "{refused}");
    let (overloaded, _) = send(&mock, "/v1/messages", "", &chat("mock-error-529"));
    assert!(overloaded.starts_with("HTTP/1.1 529") && overloaded.contains("overloaded_error"), "{overloaded}");
    assert!(send(&mock, "/v1/chat/completions", "", &chat("mock-html")).0.contains("text/html"));
    assert!(send(&mock, "/v1/chat/completions", "", &chat("mock-empty")).0.ends_with("\r\n\r\n"));
    assert!(body_of(&send(&mock, "/v1/chat/completions", "", &chat("mock-200-error")).0).get("error").is_some());
    assert_eq!(body_of(&send(&mock, "/v1/chat/completions", "", &chat("mock-no-choices")).0)["choices"], json!([]));
    assert!(body_of(&send(&mock, "/v1/chat/completions", "", &chat("mock-no-usage")).0).get("usage").is_none());
    let cached = body_of(&send(&mock, "/v1/chat/completions", "", &chat("mock-cached-3")).0);
    assert_eq!(cached.pointer("/usage/prompt_tokens_details/cached_tokens"), Some(&json!(3)));
    assert!(send(&mock, "/v1/chat/completions", "", &chat("mock-huge-100000")).0.len() > 100_000);
    assert!(send(&mock, "/v1/chat/completions", "x-mock: mock-error-503\r\n", &chat("m")).0.starts_with("HTTP/1.1 503"));
}

#[test]
fn a_reset_is_a_reset_before_the_headers_and_within_the_body() {
    let mock = mock();
    let (answer, broke) = send(&mock, "/v1/chat/completions", "", &chat("mock-reset"));
    assert_eq!((answer.as_str(), broke), ("", Some(ErrorKind::ConnectionReset)));
    let (answer, broke) = send(&mock, "/v1/chat/completions", "", &chat("mock-reset-mid-body"));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("chatcmpl-mock"), "{answer}");
    assert_eq!(broke, Some(ErrorKind::ConnectionReset));
}

#[test]
fn a_hung_call_gets_no_byte() {
    let mock = mock();
    let mut socket = TcpStream::connect(mock.addr()).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let body = chat("mock-hang").to_string();
    write!(socket, "POST /v1/chat/completions HTTP/1.1\r\nhost: m\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let error = socket.read(&mut [0]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    assert_eq!(mock.calls("mock-hang"), 1);
}

#[test]
fn a_body_is_compressed_only_for_who_accepts_it() {
    let mock = mock();
    let (plain, _) = send(&mock, "/v1/chat/completions", "", &chat("mock-gzip"));
    assert!(plain.contains("You said"), "{plain}");
    let (packed, _) = send_bytes(&mock, "/v1/chat/completions", "accept-encoding: gzip\r\n", &chat("mock-gzip"));
    let body = packed.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let mut text = String::new();
    flate2::read::GzDecoder::new(&packed[body..]).read_to_string(&mut text).unwrap();
    assert!(text.contains("You said"), "{text}");
}

#[test]
fn scripts_come_in_order_then_the_standing_one_then_the_name() {
    let mock = mock();
    mock.next("m", [Behaviour::status(500), Behaviour::status(503).header("retry-after", "7")]);
    mock.always(ANY, Behaviour::answer().text("always").usage(json!({"prompt_tokens": 0})));
    assert!(send(&mock, "/v1/chat/completions", "", &chat("m")).0.starts_with("HTTP/1.1 500"));
    assert!(send(&mock, "/v1/chat/completions", "", &chat("m")).0.contains("retry-after: 7"));
    let body = body_of(&send(&mock, "/v1/chat/completions", "", &chat("m")).0);
    assert_eq!(body.pointer("/choices/0/message/content"), Some(&json!("always")));
    assert_eq!(body["usage"], json!({"prompt_tokens": 0}));
    mock.behave();
    assert!(send(&mock, "/v1/chat/completions", "", &chat("m")).0.contains("You said"));
    assert_eq!((mock.calls("m"), mock.calls("other"), mock.calls(ANY)), (4, 0, 4));
}

#[test]
fn calls_wait_at_the_gate_until_it_opens() {
    let mock = mock();
    let gate = mock.gate();
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..3).map(|_| scope.spawn(|| send(&mock, "/v1/chat/completions", "", &chat("m")).0)).collect();
        let until = Instant::now() + Duration::from_secs(10);
        while gate.waiting() < 3 {
            assert!(Instant::now() < until, "{} of 3 calls wait", gate.waiting());
            std::thread::yield_now();
        }
        assert!(calls.iter().all(|call| !call.is_finished()));
        gate.open();
        assert!(calls.into_iter().all(|call| call.join().unwrap().starts_with("HTTP/1.1 200")));
    });
}

#[test]
fn nothing_listens_after_it_is_dropped() {
    let mock = mock();
    let addr = mock.addr();
    let mut idle = TcpStream::connect(addr).unwrap();
    idle.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    drop(mock);
    assert_eq!(idle.read(&mut [0]).unwrap_or(0), 0);
    let until = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(addr).is_ok() {
        assert!(Instant::now() < until, "still listening");
    }
}

#[test]
fn scripts_follow_from_the_request_in_both_dialects() {
    let mock = mock();
    let order = |model: &str| json!({"model": model, "stop": ["!"], "messages": [{"role": "user", "content": "Please\n call f {\"x\": 1}\ncall g {}"}]});
    let chat = |model: &str| body_of(&send(&mock, "/v1/chat/completions", "", &order(model)).0);
    let message = |model: &str| body_of(&send(&mock, "/v1/messages", "", &order(model)).0);

    let calls = chat("mock-tools");
    assert_eq!(calls["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(calls["choices"][0]["message"]["tool_calls"][0]["function"], json!({"name": "f", "arguments": "{\"x\": 1}"}));
    let calls = message("mock-tools");
    assert_eq!(calls["stop_reason"], "tool_use");
    assert_eq!(calls["content"][2], json!({"type": "tool_use", "id": "call_mock_1", "name": "g", "input": {}}));

    assert!(chat("mock-thinking")["choices"][0]["message"]["reasoning_content"].as_str().unwrap().starts_with("They said: "));
    assert_eq!(message("mock-thinking")["content"][0]["type"], "thinking");
    let mirrored = message("mock-mirror")["content"][0]["text"].as_str().map(serde_json::from_str::<Value>).unwrap().unwrap();
    assert_eq!(mirrored, order("mock-mirror"));
}

#[test]
fn an_answer_ends_before_a_stop_sequence() {
    let mock = mock();
    let request = json!({"model": "m", "stop_sequences": ["no", "END"], "messages": [{"role": "user", "content": "one END two"}]});
    let body = body_of(&send(&mock, "/v1/messages", "", &request).0);
    assert_eq!(
        (&body["content"][0]["text"], &body["stop_reason"], &body["stop_sequence"]),
        (&json!("You said: one "), &json!("stop_sequence"), &json!("END"))
    );
}
