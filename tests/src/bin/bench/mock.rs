//! A provider that is faster than any gateway: its answers are made once.

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::pin::Pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Chunks of a stream that hold text.
pub const CHUNKS: usize = 100;
/// Under this prefix a stream ends after its first chunk only when the client leaves.
pub const HELD: &str = "/held";

struct Canned {
    answer: Bytes,
    stream: Vec<Bytes>,
}

/// One stream: after each chunk it waits for another turn, so that each chunk is written by itself.
struct Stream {
    canned: Rc<Canned>,
    at: usize,
    written: bool,
    held: bool,
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.at > 0 && self.held {
            return Poll::Pending;
        }
        if self.at > 0 && !std::mem::replace(&mut self.written, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let chunk = self.canned.stream.get(self.at).cloned();
        self.at += 1;
        self.written = false;
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

fn canned() -> Canned {
    const META: &str = r#""id":"chatcmpl-mock0000000000000000000001","created":1760000000,"model":"gpt-4o-mini""#;
    const USAGE: &str = r#""usage":{"prompt_tokens":180,"completion_tokens":100,"total_tokens":280,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}"#;
    let text: String = "the quick brown fox jumps over the lazy dog and keeps on running ".chars().cycle().take(584).collect();
    let answer = format!(
        r#"{{{META},"object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}","refusal":null}},"logprobs":null,"finish_reason":"stop"}}],{USAGE},"system_fingerprint":"fp_mock"}}"#
    );
    let chunk =
        |choices: &str, more: &str| format!("data: {{{META},\"object\":\"chat.completion.chunk\",\"choices\":[{choices}]{more}}}\n\n");
    let mut stream: Vec<Bytes> = (0..CHUNKS)
        .map(|number| {
            let end = if number + 1 == CHUNKS { r#""stop""# } else { "null" };
            chunk(&format!(r#"{{"index":0,"delta":{{"content":"tok{number} "}},"finish_reason":{end}}}"#), "").into()
        })
        .collect();
    stream.push(chunk("", &format!(",{USAGE}")).into());
    stream.push("data: [DONE]\n\n".into());
    Canned { answer: answer.into(), stream }
}

async fn respond(request: Request<Incoming>, canned: Rc<Canned>) -> Result<Response<Either<Full<Bytes>, Stream>>, hyper::Error> {
    let held = request.uri().path().starts_with(HELD);
    let body = request.into_body().collect().await?.to_bytes();
    let streams = body.windows(13).any(|bytes| bytes == br#""stream":true"#);
    let (kind, body) = if streams {
        ("text/event-stream", Either::Right(Stream { canned, at: 0, written: false, held }))
    } else {
        ("application/json", Either::Left(Full::new(canned.answer.clone())))
    };
    Ok(Response::builder().header("content-type", kind).body(body).expect("an answer"))
}

/// Serves on this port until it is killed.
pub async fn run(port: u16) -> ExitCode {
    let canned = Rc::new(canned());
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.expect("the mock's port");
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        socket.set_nodelay(true).ok();
        let canned = canned.clone();
        let serve = service_fn(move |request| respond(request, canned.clone()));
        tokio::task::spawn_local(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), serve));
    }
}
