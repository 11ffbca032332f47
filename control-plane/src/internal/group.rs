//! Many calls that came together.

use super::{Failure, decode, encode};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::future::join_all;
use proxium_wire::{GroupReply, GroupRequest, GroupedAnswer, GroupedCall};
use tower_service::Service;

/// Answers each call as if it came alone, all at the same time: what they ask of Redis goes there together, too.
pub(super) async fn handle(State(calls): State<Router>, body: Bytes) -> Result<Response, Failure> {
    let group: GroupRequest = decode(body)?;
    let answers = group.calls.into_iter().map(|call| answer(calls.clone(), &group.path, call));
    Ok(encode(&GroupReply { answers: join_all(answers).await }))
}

async fn answer(mut calls: Router, path: &str, call: GroupedCall) -> GroupedAnswer {
    let mut request = Request::post(path);
    if !call.traceparent.is_empty() {
        request = request.header("traceparent", call.traceparent);
    }
    let Ok(request) = request.body(Body::from(call.body)) else {
        return GroupedAnswer { status: StatusCode::BAD_REQUEST.as_u16().into(), body: b"no path, or no trace".to_vec() };
    };
    let Ok(response) = calls.call(request).await;
    let status = response.status();
    match to_bytes(response.into_body(), usize::MAX).await {
        Ok(body) => GroupedAnswer { status: status.as_u16().into(), body: body.into() },
        Err(error) => GroupedAnswer { status: StatusCode::SERVICE_UNAVAILABLE.as_u16().into(), body: error.to_string().into_bytes() },
    }
}
