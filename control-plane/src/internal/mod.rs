//! The port that filters call: protobuf over HTTP/2 (prior knowledge) or HTTP/1.1, guarded by a secret that filters and control planes
//! share. Calls are answered within [`PATIENCE`]; every message is idempotent, so a filter that heard nothing asks again.

mod admit;
mod authenticate;
mod group;
mod recall;
mod settle;
mod snapshot;

use crate::catalog::Watched;
use crate::metrics::{Metrics, Port};
use crate::seal::Seal;
use crate::secret;
use crate::store::changes::Changes;
use crate::store::refusals::Refusals;
use crate::store::{Money, StoreError};
use crate::trace;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State as Extract};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use fred::prelude::Client;
use futures_util::future::BoxFuture;
use proxium_wire::{SECRET_HEADER, path};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest a request may take; longer than one command's own bound, so that Redis is what is named as the cause.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// A settlement may carry an answer to store.
const MAX_BODY: usize = 64 << 20;

/// What the internal port works with. Cheap to clone.
#[derive(Clone)]
pub struct State {
    /// Keys, projects, budgets, ledger.
    pub redis: Client,
    /// Stored answers and vectors; the same as `redis` unless they have a Redis of their own.
    pub cache: Client,
    /// Admissions and settlements.
    pub money: Money,
    /// Opens a project's own credentials.
    pub seal: Arc<Seal>,
    /// The catalog.
    pub catalog: Watched,
    /// What filters must forget.
    pub changes: Changes,
    /// What every request must carry in [`SECRET_HEADER`].
    pub secret: Arc<str>,
    /// How often limits refused.
    pub refusals: Refusals,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// What a filter may ask.
#[derive(Clone, Copy)]
enum Ask {
    Authenticate,
    Admit,
    Recall,
    Settle,
    Snapshot,
}

const ASKS: [(&str, Ask); 5] = [
    (path::AUTHENTICATE, Ask::Authenticate),
    (path::ADMIT, Ask::Admit),
    (path::RECALL, Ask::Recall),
    (path::SETTLE, Ask::Settle),
    (path::SNAPSHOT, Ask::Snapshot),
];

/// The internal port.
pub fn router(state: State) -> Router {
    let (secret, state) = (Arc::clone(&state.secret), Arc::new(state));
    let mut router = Router::new().route(path::GROUP, post(group::handle));
    for (path, ask) in ASKS {
        let alone = async move |Extract(state): Extract<Arc<State>>, headers: HeaderMap, body: Bytes| {
            let traceparent = headers.get("traceparent").and_then(|value| value.to_str().ok());
            answer(&state, path, ask, traceparent.unwrap_or_default(), body).await
        };
        router = router.route(path, post(alone));
    }
    router.with_state(state).layer(DefaultBodyLimit::max(MAX_BODY)).layer(middleware::from_fn_with_state(secret, guard))
}

/// Checks the secret.
async fn guard(Extract(secret): Extract<Arc<str>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(SECRET_HEADER).map_or(&[][..], |value| value.as_bytes());
    if secret::same(given, secret.as_bytes()) {
        return next.run(request).await;
    }
    let why = format!("the header {SECRET_HEADER} does not carry this control plane's internal secret");
    (StatusCode::UNAUTHORIZED, why).into_response()
}

/// What a call is answered.
struct Answer {
    status: StatusCode,
    /// Protobuf if all is well, else why not.
    body: Vec<u8>,
}

/// Answers a call that came alone or in a group: within [`PATIENCE`], counted and traced. Empty `traceparent`: it is of no trace.
async fn answer(state: &Arc<State>, path: &'static str, ask: Ask, traceparent: &str, body: Bytes) -> Answer {
    let (began, span) = (Instant::now(), trace::of_filter(path, traceparent));
    let told: BoxFuture<'_, Result<Vec<u8>, Failure>> = match ask {
        Ask::Authenticate => Box::pin(authenticate::answer(state, body)),
        Ask::Admit => Box::pin(admit::answer(state, body)),
        Ask::Recall => Box::pin(recall::answer(state, body)),
        Ask::Settle => Box::pin(settle::answer(Arc::clone(state), body)),
        Ask::Snapshot => Box::pin(snapshot::answer(state, body)),
    };
    let told = tokio::time::timeout(PATIENCE, told).await;
    let answer = match told.unwrap_or_else(|_| Err(Failure::Unavailable("Redis did not answer in time".to_owned()))) {
        Ok(body) => Answer { status: StatusCode::OK, body },
        Err(failure) => failure.answer(),
    };
    if answer.status == StatusCode::SERVICE_UNAVAILABLE {
        state.metrics.redis_error();
    }
    state.metrics.answered(Port::Internal, path, answer.status, began);
    if let Some(span) = span {
        span.end(answer.status);
        tracing::debug!(traceparent, path, status = answer.status.as_u16(), "answered a filter for its client");
    }
    answer
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let kind = if self.status == StatusCode::OK { "application/x-protobuf" } else { "text/plain; charset=utf-8" };
        (self.status, [("content-type", kind)], self.body).into_response()
    }
}

/// Why a request was not answered.
enum Failure {
    /// The bytes are not the message of this path.
    Undecodable(prost::DecodeError),
    /// Nothing can be said now.
    Unavailable(String),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<prost::DecodeError> for Failure {
    fn from(error: prost::DecodeError) -> Self {
        Self::Undecodable(error)
    }
}

impl Failure {
    fn answer(self) -> Answer {
        match self {
            Self::Undecodable(error) => Answer { status: StatusCode::BAD_REQUEST, body: error.to_string().into() },
            Self::Unavailable(why) => {
                tracing::warn!(why, "a filter was answered 503");
                Answer { status: StatusCode::SERVICE_UNAVAILABLE, body: why.into() }
            }
        }
    }
}
