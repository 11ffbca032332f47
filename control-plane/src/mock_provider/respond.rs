//! From a request to what the script wants done with it.

use super::behaviour::{Act, Answer, Behaviour};
use super::call::Call;
use super::socket::Reset;
use super::sse::{self, BEFORE_THE_RESET};
use super::{Captured, Shared, anthropic, endpoints, openai, responses};
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::{Compression, write::GzEncoder};
use futures_util::stream;
use serde_json::Value;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

const LARGEST_BODY: usize = 256 << 20;

/// What is called, by the end of the path: the mock serves under any prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Api {
    Chat,
    Responses,
    Embeddings,
    Moderations,
    Rerank,
    Models,
    Messages,
    CountTokens,
}

impl Api {
    fn of(method: &Method, path: &str) -> Option<Self> {
        [
            ("/chat/completions", Method::POST, Self::Chat),
            ("/responses", Method::POST, Self::Responses),
            ("/embeddings", Method::POST, Self::Embeddings),
            ("/moderations", Method::POST, Self::Moderations),
            ("/rerank", Method::POST, Self::Rerank),
            ("/models", Method::GET, Self::Models),
            ("/messages/count_tokens", Method::POST, Self::CountTokens),
            ("/messages", Method::POST, Self::Messages),
        ]
        .into_iter()
        .find_map(|(end, of_method, api)| (path.ends_with(end) && *method == of_method).then_some(api))
    }

    fn error(self, status: u16) -> Value {
        match self {
            Self::Messages | Self::CountTokens => anthropic::error(status),
            _ => openai::error(status),
        }
    }

    /// The answer's events; none where there are no streams.
    fn events(self, call: &Call, answer: &Answer, id: u64) -> Option<Vec<Bytes>> {
        let events = match self {
            Self::Chat if call.stream => openai::stream(call, answer, &format!("chatcmpl-mock-{id}")),
            Self::Responses if call.stream => responses::stream(call, answer, &responses::id(call, id)),
            Self::Messages if call.stream => anthropic::stream(call, answer, &format!("msg_mock_{id}")),
            _ => return None,
        };
        Some(events.into_iter().map(Bytes::from).collect())
    }
}

pub(super) async fn respond(State(shared): State<Arc<Shared>>, ConnectInfo(reset): ConnectInfo<Reset>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let at = Instant::now();
    let Ok(bytes) = to_bytes(body, LARGEST_BODY).await else { return StatusCode::BAD_REQUEST.into_response() };
    let json: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let call = Call::of(&json);
    let id = shared.capture(Captured {
        path: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
        headers: parts.headers.clone(),
        body: bytes,
        model: call.model.clone(),
        at,
    });
    let Some(api) = Api::of(&parts.method, parts.uri.path()) else { return StatusCode::NOT_FOUND.into_response() };
    let by_header = parts.headers.get("x-mock").and_then(|name| name.to_str().ok());
    let behaviour = shared.behaviour(&call.model, by_header);
    shared.wait_at_the_gate().await;
    tokio::time::sleep(behaviour.delay).await;
    perform(api, &call, &json, behaviour, &reset, &parts.headers, id).await
}

async fn perform(api: Api, call: &Call, json: &Value, behaviour: Behaviour, reset: &Reset, asked: &HeaderMap, id: u64) -> Response {
    let Behaviour { act, headers, gzip, delivery, .. } = behaviour;
    let gzip = gzip && asked.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).is_some_and(|value| value.contains("gzip"));
    let mut response = match act {
        Act::Answer(answer) => match api.events(call, &answer, id) {
            Some(events) => sse::respond(events, delivery, reset.clone()),
            None => answered(api, call, json, &answer, id, gzip),
        },
        Act::Sse(pieces) => sse::respond(pieces, delivery, reset.clone()),
        Act::Status(status) => json_body(status, &api.error(status.as_u16()), gzip),
        Act::ErrorIn200 => json_body(StatusCode::OK, &api.error(500), gzip),
        Act::Raw(status, body) => (status, body).into_response(),
        Act::Hang => std::future::pending().await,
        Act::Reset => {
            reset.pull();
            StatusCode::OK.into_response()
        }
        Act::ResetMidBody => half_a_body(reset.clone()),
    };
    response.headers_mut().extend(headers);
    response
}

fn answered(api: Api, call: &Call, json: &Value, answer: &Answer, id: u64, gzip: bool) -> Response {
    let (chat, message) = (format!("chatcmpl-mock-{id}"), format!("msg_mock_{id}"));
    match api {
        Api::Chat => json_body(StatusCode::OK, &openai::unary(call, answer, &chat), gzip),
        Api::Messages => json_body(StatusCode::OK, &anthropic::unary(call, answer, &message), gzip),
        Api::Responses => json_body(StatusCode::OK, &responses::unary(call, answer, &responses::id(call, id)), gzip),
        Api::Embeddings => json_body(StatusCode::OK, &endpoints::embeddings(call, json, answer), gzip),
        Api::Moderations => json_body(StatusCode::OK, &endpoints::moderations(call, json, answer, id), gzip),
        Api::Rerank => json_body(StatusCode::OK, &endpoints::rerank(call, json, answer, id), gzip),
        Api::Models => json_body(StatusCode::OK, &endpoints::models(), gzip),
        Api::CountTokens => json_body(StatusCode::OK, &anthropic::count_tokens(call), gzip),
    }
}

fn json_body(status: StatusCode, body: &Value, gzip: bool) -> Response {
    let text = body.to_string();
    let plain = [(header::CONTENT_TYPE, "application/json")];
    if !gzip {
        return (status, plain, text).into_response();
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    match encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()) {
        Ok(packed) => (status, plain, [(header::CONTENT_ENCODING, "gzip")], packed).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn half_a_body(reset: Reset) -> Response {
    const HALF: &[u8] = br#"{"id":"chatcmpl-mock","object":"chat.completion","choices":[{"index":0,"#;
    let body = Body::from_stream(stream::unfold(0_u8, move |step| {
        let reset = reset.clone();
        async move {
            if step == 0 {
                return Some((Ok(Bytes::from_static(HALF)), 1));
            }
            tokio::time::sleep(BEFORE_THE_RESET).await;
            reset.pull();
            Some((Err(io::Error::from(io::ErrorKind::ConnectionReset)), 2))
        }
    }));
    ([(header::CONTENT_TYPE, "application/json"), (header::CONTENT_LENGTH, "4096")], body).into_response()
}
