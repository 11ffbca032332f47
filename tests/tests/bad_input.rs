//! What no good client sends: each a clear 4xx, nothing reserved, and the filter serves the next call.

// Helpers of tests: a panic is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use bytes::Bytes;
use http::{HeaderMap, Request};
use proxium::mock_provider::ANY;
use proxium_e2e::{BOUND, Call, Key, Stack, chat, eventually};
use serde_json::{Value, json};
use std::collections::HashMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LIMIT: usize = 64 << 10;

/// A stack of one worker, so that the next call meets the same VM; its bodies are at most [`LIMIT`].
struct Subject {
    stack: Stack,
    key: Key,
    before: (HashMap<String, String>, HashMap<String, String>),
}

impl Subject {
    async fn start() -> Self {
        let stack = Stack::builder().concurrency(1).and_catalog("limits: {max_body: 64KiB}").start().await;
        let key = stack
            .key_with(json!({"monthly_cap_usd": 10}), json!({"ceilings": {"calls_per_hour": 1000, "tokens_per_minute": 900_000}}))
            .await;
        let answer = stack.chat(&key, &chat("m1", "before")).await.expect(200);
        stack.kept(&key.project, &answer).await;
        let before = (stack.windows(&key).await, stack.state(&key.project).await);
        stack.mocks.first.forget();
        Self { stack, key, before }
    }

    /// A POST with a key and these lines more, up to the empty line.
    fn head(&self, more: &str) -> Vec<u8> {
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-api-key: {}\r\n{more}\r\n", self.key.text)
            .into_bytes()
    }

    fn post(&self, body: impl AsRef<[u8]>) -> Vec<u8> {
        let body = body.as_ref();
        [self.head(&format!("content-length: {}\r\n", body.len())), body.to_vec()].concat()
    }

    async fn raw(&self, bytes: &[u8]) -> Answer {
        Answer::of(&self.stack, bytes).await
    }

    /// The filter is alive and nothing was reserved, by anything so far.
    async fn unharmed(&self, what: &str) {
        // Free, and of the same worker.
        let next = self.stack.chat(&self.key, &chat("m1", "before")).await;
        assert_eq!((next.status, next.header("x-proxium-cache")), (200, Some("hit")), "after {what}: {}", next.text());
        let now = (self.stack.windows(&self.key).await, self.stack.state(&self.key.project).await);
        assert_eq!(now, self.before, "{what} left something");
        assert_eq!(self.stack.mocks.first.calls(ANY), 0, "{what} reached the provider");
        assert_no_trap(&self.stack).await;
    }
}

/// No VM of Envoy was lost or reloaded.
async fn assert_no_trap(stack: &Stack) {
    let envoy = &stack.envoys[0];
    let log = envoy.process().log();
    for word in ["panicked", "RuntimeError", "wasm trap", "Function: proxy_", "[critical]"] {
        assert!(!log.contains(word), "{word} in Envoy's log:\n{log}");
    }
    let stats = envoy.admin("/stats?filter=wasm").await;
    assert!(stats.contains("created"), "the statistics have another name now:\n{stats}");
    for line in stats.lines().filter(|line| line.contains("reload") || line.contains("error") || line.contains("fail")) {
        assert!(line.ends_with(": 0"), "{line}");
    }
}

/// An HTTP/1.1 answer as it came.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    /// Reads no further than the answer's length: Envoy takes a second to close a connection.
    async fn of(stack: &Stack, request: &[u8]) -> Self {
        let mut socket = stack.envoys[0].connect().await;
        // Envoy may answer and close before it has read all.
        socket.write_all(request).await.ok();
        Self::from(socket).await
    }

    async fn from(mut socket: TcpStream) -> Self {
        let mut bytes = Vec::new();
        loop {
            match tokio::time::timeout(BOUND, socket.read_buf(&mut bytes)).await.expect("an answer") {
                Ok(read) if read > 0 && !Self::is_whole(&bytes) => {}
                _ => return Self::read(&bytes),
            }
        }
    }

    fn is_whole(bytes: &[u8]) -> bool {
        let text = String::from_utf8_lossy(bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        length.is_some_and(|length| body.len() >= length)
    }

    fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no answer: {text:?}"));
        Self { status, head: head.to_lowercase(), body: body.into() }
    }

    #[track_caller]
    fn refused(&self, what: &str, status: u16, code: &str) {
        assert_eq!(self.status, status, "{what}: {self:?}");
        let body: Value = serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{what}: {error}: {self:?}"));
        assert_eq!(body["error"]["code"], json!(code), "{what}: {self:?}");
        assert!(body["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{what}: {self:?}");
        assert!(self.head.contains("content-type: application/json"), "{what}: {self:?}");
        assert!(self.head.contains("x-proxium-request-id: req_"), "{what}: {self:?}");
    }
}

fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for chunk in body.chunks(size) {
        bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
        bytes.extend(chunk);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\n\r\n");
    bytes
}

/// A good body of exactly this many bytes.
fn body_of(size: usize) -> Vec<u8> {
    let empty = chat("m1", "").to_string().len();
    chat("m1", &"x".repeat(size - empty)).to_string().into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_no_good_json_is_400_and_harmless() {
    let subject = Subject::start().await;
    let message = r#""messages":[{"role":"user","content":"hi"}]"#;
    let good = format!(r#"{{"model":"m1",{message}}}"#);
    let with = |more: &str| format!(r#"{{"model":"m1",{message},{more}}}"#).into_bytes();
    let nested = |open: &str, close: &str, levels: usize| [open.repeat(levels), close.repeat(levels)].concat();
    let mut bad: Vec<(&str, Vec<u8>)> = vec![
        ("an empty body", Vec::new()),
        ("spaces", b" \r\n\t ".to_vec()),
        ("a word", b"hello".to_vec()),
        ("an array", b"[]".to_vec()),
        ("a string", b"\"m1\"".to_vec()),
        ("null", b"null".to_vec()),
        ("two documents", format!("{good}{good}").into_bytes()),
        ("text after the end", format!("{good} x").into_bytes()),
        ("a byte-order mark", format!("\u{feff}{good}").into_bytes()),
        ("a form", b"model=m1&messages=hi".to_vec()),
        ("a comment", format!("{good}// done").into_bytes()),
        ("a comma too many", good.replace("}]}", "}],}").into_bytes()),
        ("200 levels of arrays", with(&format!("\"x\":{}", nested("[", "]", 200)))),
        ("200 levels of objects", with(&format!("\"x\":{}", nested("{\"a\":", "}", 200).replace("\"a\":}", "\"a\":1}")))),
        ("20,000 open brackets", with(&nested("[", "", 20_000))),
        ("200 levels of content", good.replace("\"hi\"", &nested("[", "]", 200)).into_bytes()),
        ("a member twice", with("\"model\":\"m2\"")),
        ("a member twice, once escaped", with("\"m\\u006fdel\":\"m2\"")),
        ("a member twice far inside", with("\"x\":[{\"a\":1,\"b\":2,\"a\":1}]")),
        ("a number beyond f64", with("\"temperature\":1e400")),
        ("a negative one", with("\"x\":-1e999")),
        ("a number of 5,000 digits", with(&format!("\"x\":{}", "9".repeat(5_000)))),
        ("no number", with("\"x\":NaN")),
        ("infinity", with("\"x\":Infinity")),
        ("a leading zero", with("\"x\":01")),
        ("more tokens than a number holds", with("\"max_tokens\":99999999999999999999999")),
        ("a NUL between members", with("\u{0}\"x\":1")),
        ("a NUL in a string", good.replace("hi", "h\u{0}i").into_bytes()),
        ("NULs alone", vec![0; 100]),
        ("a bare newline in a string", good.replace("hi", "h\ni").into_bytes()),
        ("a lone surrogate escape in the model", br#"{"model":"\ud800","messages":[{}]}"#.to_vec()),
        ("invalid UTF-8", [b"{\"model\":\"m1\xff\"".as_slice(), b",\"messages\":[{}]}"].concat()),
        ("an overlong form", b"{\"model\":\"\xc0\xaf\"}".to_vec()),
        ("an encoded surrogate", b"{\"model\":\"\xed\xa0\x80\"}".to_vec()),
        ("UTF-16", good.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        ("gzip", vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3]),
        ("10,000 messages", format!(r#"{{"model":"m1","messages":[{}{{}}]}}"#, "{},".repeat(9_999)).into_bytes()),
        ("a message that is no object", br#"{"model":"m1","messages":[{}, 7]}"#.to_vec()),
        ("a billion choices", with("\"n\":1000000000")),
    ];
    let cuts = [1, 2, 9, 14, 26, 40, good.len() - 1];
    bad.extend(cuts.map(|at| ("a truncated body", good.as_bytes()[..at].to_vec())));
    for (what, body) in &bad {
        subject.raw(&subject.post(body)).await.refused(what, 400, "invalid_request");
        let all_chunks = [subject.head("transfer-encoding: chunked\r\n"), chunked(body, 7)].concat();
        subject.raw(&all_chunks).await.refused(what, 400, "invalid_request");
        subject.unharmed(what).await;
    }
    // An answer tells where, not what: a prompt is not for logs.
    let answer = subject.raw(&subject.post("{\"model\":\"m1\",\"messages\":[{\"content\":\"secret text\" oops}]}")).await;
    answer.refused("JSON that ends early", 400, "invalid_request");
    assert!(answer.body.contains("column") && !answer.body.contains("secret"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_but_good_json_passes_unchanged() {
    let subject = Subject::start().await;
    let odd = [
        r#"{"model":"m1","messages":[{"role":"user","content":"\u0000 \ud83e\udd80 \/ \ud800"}]}"#.to_owned(),
        format!(
            "{{\"model\":\"m1\",\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}],\"x\":{}1{}}}",
            "[".repeat(100),
            "]".repeat(100)
        ),
        "\r\n{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}] , \"y\":-0.0e-5,\"model\":\"\\u006d1\"}\t".to_owned(),
        format!("{{\"model\":\"m1\",\"messages\":[{}{{\"role\":\"user\",\"content\":\"x\"}}]}}", "{},".repeat(2_047)),
    ];
    for body in odd {
        let answer = subject.raw(&subject.post(&body)).await;
        assert_eq!(answer.status, 200, "{body}: {answer:?}");
        assert_eq!(
            String::from_utf8_lossy(&subject.stack.mocks.first.requests().pop().unwrap().body).replace("\\u006d1", "m1"),
            body.replace("\\u006d1", "m1")
        );
    }
    assert_no_trap(&subject.stack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_413_json_however_it_comes_and_reserves_nothing() {
    let subject = Subject::start().await;
    let cold = subject.stack.key().await;
    for size in [LIMIT + 1, 2 * LIMIT, 1 << 20, 5 << 20] {
        let body = body_of(size);
        let whole = subject.post(&body);
        let all_chunks = [subject.head("transfer-encoding: chunked\r\n"), chunked(&body, 10_000)].concat();
        for bytes in [whole, all_chunks] {
            let answer = subject.raw(&bytes).await;
            answer.refused(&format!("{size} bytes"), 413, "request_too_large");
            assert!(answer.body.contains("65536"), "it names the limit: {answer:?}");
        }
        subject.unharmed(&format!("{size} bytes")).await;
    }
    // One that is only announced, or never ends.
    let mut endless = subject.stack.envoys[0].connect().await;
    endless.write_all(&subject.head("transfer-encoding: chunked\r\n")).await.unwrap();
    let chunk = [b"4000\r\n".as_slice(), &[b' '; 0x4000], b"\r\n"].concat();
    for _ in 0..40 {
        // Envoy may have answered and closed.
        if endless.write_all(&chunk).await.is_err() {
            break;
        }
    }
    drop(endless);
    // The key is not known yet while all of the body is there already.
    subject.stack.control_planes[0].process().pause();
    let body = body_of(LIMIT + 1);
    let late = Call::chat(&cold, &json!({})).body(body);
    let received = || subject.stack.envoys[0].stat("http.proxium.downstream_cx_rx_bytes_total");
    let before = received().await;
    let resume = async {
        eventually("the body is there", BOUND, || async { received().await > before + LIMIT as u64 }).await;
        subject.stack.control_planes[0].process().resume();
    };
    let (answer, ()) = tokio::join!(subject.stack.call(&late), resume);
    assert_eq!((answer.status, answer.code().as_str()), (413, "request_too_large"), "{}", answer.text());
    subject.unharmed("a body before its key").await;
    assert!(subject.stack.windows(&cold).await.is_empty());

    // The limit itself passes, whichever way.
    let answer = subject.raw(&subject.post(body_of(LIMIT))).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    for size in [LIMIT - 1, LIMIT] {
        let answer = subject.raw(&[subject.head("transfer-encoding: chunked\r\n"), chunked(&body_of(size), 999)].concat()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_no_trap(&subject.stack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_pass_up_to_the_default_limit_of_ten_mebibytes() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    for size in [32_769, 1 << 20, 10 << 20] {
        let body = body_of(size);
        let answer = stack.call(&Call::chat(&key, &json!({})).body(body.clone())).await;
        assert_eq!(answer.status, 200, "{size}: {}", answer.text().chars().take(300).collect::<String>());
        assert!(stack.mocks.first.requests().pop().unwrap().body == body, "{size}: the provider's copy differs");
        stack.mocks.first.forget();
    }
    let bytes = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-api-key: {}\r\ncontent-length: {}\r\n\r\n",
        key.text,
        (10 << 20) + 1
    );
    let answer = Answer::of(&stack, &[bytes.into_bytes(), body_of((10 << 20) + 1)].concat()).await;
    answer.refused("a byte more", 413, "request_too_large");
    assert_no_trap(&stack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_in_many_tiny_chunks_or_pieces_is_one_body() {
    let subject = Subject::start().await;
    let body = chat("m1", &"tiny ".repeat(800)).to_string();
    let answer = subject.raw(&[subject.head("transfer-encoding: chunked\r\n"), chunked(body.as_bytes(), 1)].concat()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(subject.stack.mocks.first.requests().pop().unwrap().body, body.as_bytes());

    let mut socket = subject.stack.envoys[0].connect().await;
    socket.set_nodelay(true).unwrap();
    for piece in subject.post(chat("m1", "byte by byte").to_string()).chunks(3) {
        socket.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(Answer::from(socket).await.status, 200);
    assert_no_trap(&subject.stack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn header_values_of_any_bytes_and_size_do_no_harm() {
    let subject = Subject::start().await;
    let body = chat("m1", "before").to_string();
    let post = |more: &[u8]| {
        let mut head = subject.head(&format!("content-length: {}\r\n", body.len()));
        head.truncate(head.len() - 2);
        [&head, more, b"\r\n\r\n", body.as_bytes()].concat()
    };
    let long = |name: &str, bytes: usize| format!("{name}: {}", "a".repeat(bytes)).into_bytes();
    // Refused by name.
    for more in [
        b"x-proxium-source: \xff\xfe".to_vec(),
        "x-proxium-source: \u{fc}nic\u{f6}de".into(),
        b"x-proxium-user: a\tb".to_vec(),
        b"x-proxium-cache: \x80".to_vec(),
        b"x-proxium-timeout-ms: \xb2".to_vec(),
        "x-proxium-timeout-ms: \u{0663}".into(),
        b"x-proxium-timeout-ms: -9223372036854775809".to_vec(),
        b"x-proxium-timeout-ms: 0x10".to_vec(),
        b"x-proxium-timeout-ms:".to_vec(),
        b"x-proxium-source:".to_vec(),
        long("x-proxium-source", 129),
        long("x-proxium-user", 30_000),
        long("x-proxium-timeout-ms", 30_000),
    ] {
        let what = String::from_utf8_lossy(&more[..more.len().min(60)]).into_owned();
        let answer = subject.raw(&post(&more)).await;
        answer.refused(&what, 400, "invalid_request");
        assert!(answer.body.contains("x-proxium-"), "it names the header: {answer:?}");
        subject.unharmed(&what).await;
    }
    // Of no concern.
    for more in [
        b"x-anything: \xff\xfe\x80".to_vec(),
        b"user-agent: \xe4\xf6\xfc".to_vec(),
        b"traceparent: not a trace".to_vec(),
        b"accept: \x80".to_vec(),
        b"x-proxium-timeout-ms: 99999999999999999999999999".to_vec(),
        b"content-type: \xff".to_vec(),
        long("cookie", 30_000),
    ] {
        let what = String::from_utf8_lossy(&more[..more.len().min(60)]).into_owned();
        let answer = subject.raw(&post(&more)).await;
        assert_eq!(answer.status, 200, "{what}: {answer:?}");
        subject.unharmed(&what).await;
    }
    // As a key.
    for value in [b"\xff\xfe".to_vec(), b"px_\x80".to_vec(), vec![b'k'; 30_000]] {
        let request = [
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer ".as_slice(),
            &value,
            b"\r\ncontent-length: 1\r\n\r\n{",
        ]
        .concat();
        subject.raw(&request).await.refused("a key of odd bytes", 401, "invalid_key");
        subject.unharmed("a key of odd bytes").await;
    }
    // Envoy's own refusals: a NUL, a header beyond 60 KiB, two lengths, no HTTP at all.
    for request in [
        post(b"x-anything: a\0b"),
        post(&long("x-anything", 100_000)),
        post(b"content-length: 1"),
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00".to_vec(),
    ] {
        let answer = subject.raw(&request).await;
        assert!((400..500).contains(&answer.status), "{answer:?}");
        subject.unharmed("a request that Envoy refuses").await;
    }
    // The body answered to, sent again with odd bytes that reach the provider.
    let text = chat("m1", "obs-text").to_string();
    let head = subject.head(&format!("content-length: {}\r\n", text.len()));
    let more = b"user-agent: \xe4\xf6\xfc\r\naccept: \x80\r\n\r\n".as_slice();
    let answer = subject.raw(&[&head[..head.len() - 2], more, text.as_bytes()].concat()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_no_trap(&subject.stack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http2_client_may_send_trailers_and_many_frames() {
    let subject = Subject::start().await;
    let socket = subject.stack.envoys[0].connect().await;
    let (client, connection) = h2::client::handshake(socket).await.unwrap();
    let connection = tokio::spawn(connection);
    let good = chat("m1", "over HTTP/2").to_string();
    let huge = body_of(LIMIT + 1);
    let bodies: [(&[u8], u16); 4] = [(good.as_bytes(), 200), (b"{\"model\":", 400), (b"", 400), (&huge, 413)];
    for (body, wanted) in bodies {
        for trailers in [true, false] {
            let mut client = client.clone().ready().await.unwrap();
            let request = Request::post("http://x/v1/chat/completions")
                .header("x-api-key", &subject.key.text)
                .header("x-proxium-cache", "bypass")
                .body(());
            let (answer, mut stream) = client.send_request(request.unwrap(), false).unwrap();
            for piece in body.chunks(body.len().div_ceil(50).max(1)) {
                // Envoy may have answered and closed the stream.
                stream.send_data(Bytes::copy_from_slice(piece), false).ok();
            }
            if trailers {
                let mut lines = HeaderMap::new();
                lines.insert("x-checksum", "abc".parse().unwrap());
                lines.insert("authorization", "Bearer px_of_somebody_else".parse().unwrap());
                stream.send_trailers(lines).ok();
            } else {
                stream.send_data(Bytes::new(), true).ok();
            }
            let answer = tokio::time::timeout(BOUND, answer).await.expect("an answer").unwrap();
            assert_eq!(answer.status().as_u16(), wanted, "trailers: {trailers}");
            let mut body = answer.into_body();
            let mut text = Vec::new();
            while let Some(piece) = body.data().await {
                let piece = piece.unwrap();
                body.flow_control().release_capacity(piece.len()).unwrap();
                text.extend(piece);
            }
            let json: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(json.get("error").is_some(), wanted != 200, "{json}");
        }
    }
    drop(client);
    let _ = connection.await;
    assert_eq!(subject.stack.mocks.first.calls("m1"), 2);
    assert_no_trap(&subject.stack).await;
}
