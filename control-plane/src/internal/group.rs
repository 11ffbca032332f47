//! Many calls that came together.

use super::{Failure, decode, encode};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::future::join_all;
use proxium_wire::{GroupReply, GroupRequest, GroupedAnswer, GroupedCall};
use std::time::Duration;
use tokio::time::timeout;
use tower_service::Service;

/// So long the others wait for one of them: a part of a cluster may be down that only some need.
const PATIENCE: Duration = Duration::from_millis(250);
/// Envoy keeps at most 32 MiB of an answer.
const MAX_ANSWERS: usize = 16 << 20;

/// Answers each call as if it came alone, all at the same time: what they ask of Redis goes there together, too.
pub(super) async fn handle(State(calls): State<Router>, body: Bytes) -> Result<Response, Failure> {
    let group: GroupRequest = decode(body)?;
    let answers = group.calls.into_iter().map(|call| timeout(PATIENCE, answer(calls.clone(), &group.path, call)));
    let mut room = MAX_ANSWERS;
    let fitting = |answer: Result<GroupedAnswer, _>| {
        let fits = answer.ok().and_then(|answer: GroupedAnswer| {
            room = room.checked_sub(answer.body.len())?;
            Some(answer)
        });
        fits.unwrap_or_else(|| GroupedAnswer { alone: true, ..GroupedAnswer::default() })
    };
    Ok(encode(&GroupReply { answers: join_all(answers).await.into_iter().map(fitting).collect() }))
}

async fn answer(mut calls: Router, path: &str, call: GroupedCall) -> GroupedAnswer {
    let failed = |status: StatusCode, why: String| GroupedAnswer { status: status.as_u16().into(), body: why.into(), alone: false };
    let mut request = Request::post(path);
    if !call.traceparent.is_empty() {
        request = request.header("traceparent", call.traceparent);
    }
    let request = match request.body(Body::from(call.body)) {
        Ok(request) => request,
        Err(error) => return failed(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let Ok(response) = calls.call(request).await;
    let status = response.status();
    match to_bytes(response.into_body(), usize::MAX).await {
        Ok(body) => GroupedAnswer { status: status.as_u16().into(), body: body.into(), alone: false },
        Err(error) => failed(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::post;
    use prost::Message;

    async fn ask(router: Router, bodies: &[&[u8]]) -> Vec<GroupedAnswer> {
        let call = |body: &&[u8]| GroupedCall { body: body.to_vec(), traceparent: String::new() };
        let group = GroupRequest { path: "/call".into(), calls: bodies.iter().map(call).collect() };
        let Ok(response) = handle(State(router), group.encode_to_vec().into()).await else { panic!("a group is answered") };
        GroupReply::decode(to_bytes(response.into_body(), usize::MAX).await.unwrap()).unwrap().answers
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_takes_long_is_to_be_asked_alone_and_the_others_are_answered() {
        let slow = |body: Bytes| async move {
            if body == "slow" {
                tokio::time::sleep(PATIENCE * 2).await;
            }
            body
        };
        let answers = ask(Router::new().route("/call", post(slow)), &[b"one", b"slow", b"two"]).await;
        assert_eq!(
            answers.iter().map(|answer| (answer.body.as_slice(), answer.alone)).collect::<Vec<_>>(),
            [(&b"one"[..], false), (b"", true), (b"two", false)]
        );
    }

    #[tokio::test]
    async fn answers_that_do_not_fit_together_are_to_be_asked_alone() {
        let large = |body: Bytes| async move { vec![0_u8; if body == "large" { MAX_ANSWERS / 2 } else { 1 }] };
        let answers = ask(Router::new().route("/call", post(large)), &[b"large", b"large", b"large", b"", b""]).await;
        assert_eq!(answers.iter().map(|answer| answer.alone).collect::<Vec<_>>(), [false, false, true, true, true]);
        let answers = ask(Router::new().route("/call", post(large)), &[b"", b"large", b"large", b""]).await;
        assert_eq!(answers.iter().map(|answer| answer.alone).collect::<Vec<_>>(), [false, false, true, false]);
    }

    #[tokio::test]
    async fn a_path_that_is_none_is_not_found_and_a_trace_that_is_none_is_refused() {
        let answers = ask(Router::new(), &[b""]).await;
        assert_eq!(answers[0].status, 404);
        let call = GroupedCall { body: Vec::new(), traceparent: "no\ntrace".into() };
        assert_eq!(answer(Router::new(), "/call", call).await.status, 400);
    }
}
