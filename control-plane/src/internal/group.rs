//! Many calls that came together.

use super::{ASKS, Answer, State};
use axum::body::Bytes;
use axum::extract::State as Extract;
use axum::http::StatusCode;
use futures_util::future::join_all;
use prost::Message;
use proxium_wire::{GroupReply, GroupRequest, GroupedAnswer, GroupedCall};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// So long the others wait for one of them: a part of a cluster may be down that only some need.
const PATIENCE: Duration = Duration::from_millis(250);
/// Envoy keeps at most 32 MiB of an answer.
const MAX_ANSWERS: usize = 16 << 20;

/// Answers each call as if it came alone, all at the same time: what they ask of Redis goes there together, too.
pub(super) async fn handle(Extract(state): Extract<Arc<State>>, body: Bytes) -> Answer {
    let GroupRequest { path, calls } = match GroupRequest::decode(body) {
        Ok(group) => group,
        Err(error) => return super::Failure::from(error).answer(),
    };
    let asked = ASKS.into_iter().find(|(known, _)| *known == path);
    let one = |call: GroupedCall| {
        let state = Arc::clone(&state);
        async move {
            match asked {
                Some((path, ask)) => super::answer(&state, path, ask, &call.traceparent, call.body.into()).await,
                None => Answer { status: StatusCode::NOT_FOUND, body: Vec::new() },
            }
        }
    };
    Answer { status: StatusCode::OK, body: together(calls, one).await.encode_to_vec() }
}

async fn together<F: Future<Output = Answer>>(calls: Vec<GroupedCall>, answer: impl Fn(GroupedCall) -> F) -> GroupReply {
    let answers = join_all(calls.into_iter().map(|call| timeout(PATIENCE, answer(call)))).await;
    let mut room = MAX_ANSWERS;
    let fitting = |answer: Result<Answer, _>| {
        let fits = answer.ok().and_then(|Answer { status, body }| {
            room = room.checked_sub(body.len())?;
            Some(GroupedAnswer { status: status.as_u16().into(), body, alone: false })
        });
        fits.unwrap_or_else(|| GroupedAnswer { alone: true, ..GroupedAnswer::default() })
    };
    GroupReply { answers: answers.into_iter().map(fitting).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(answer: impl AsyncFn(&[u8]) -> Vec<u8>, bodies: &[&[u8]]) -> Vec<GroupedAnswer> {
        let call = |body: &&[u8]| GroupedCall { body: body.to_vec(), traceparent: String::new() };
        let answer = &answer;
        let one = |call: GroupedCall| async move { Answer { status: StatusCode::OK, body: answer(&call.body).await } };
        together(bodies.iter().map(call).collect(), one).await.answers
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_takes_long_is_to_be_asked_alone_and_the_others_are_answered() {
        let slow = async |body: &[u8]| {
            if body == b"slow" {
                tokio::time::sleep(PATIENCE * 2).await;
            }
            body.to_vec()
        };
        let answers = ask(slow, &[b"one", b"slow", b"two"]).await;
        assert_eq!(
            answers.iter().map(|answer| (answer.body.as_slice(), answer.alone)).collect::<Vec<_>>(),
            [(&b"one"[..], false), (b"", true), (b"two", false)]
        );
    }

    #[tokio::test]
    async fn answers_that_do_not_fit_together_are_to_be_asked_alone() {
        let large = async |body: &[u8]| vec![0_u8; if body == b"large" { MAX_ANSWERS / 2 } else { 1 }];
        let answers = ask(large, &[b"large", b"large", b"large", b"", b""]).await;
        assert_eq!(answers.iter().map(|answer| answer.alone).collect::<Vec<_>>(), [false, false, true, true, true]);
        let answers = ask(large, &[b"", b"large", b"large", b""]).await;
        assert_eq!(answers.iter().map(|answer| answer.alone).collect::<Vec<_>>(), [false, false, true, false]);
    }
}
