//! The port that filters call: protobuf over HTTP/2 (prior knowledge) or HTTP/1.1, guarded by a secret that filters and control planes
//! share. Handlers answer within [`PATIENCE`]; every message is idempotent, so a filter that heard nothing asks again.

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
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State as Extract};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use fred::prelude::Client;
use prost::Message;
use proxium_wire::{SECRET_HEADER, path};
use std::sync::Arc;
use std::time::Duration;

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

/// The internal port.
pub fn router(state: State) -> Router {
    let calls = calls(&state);
    let group = Router::new().route(path::GROUP, post(group::handle)).with_state(calls.clone());
    calls.merge(group).layer(DefaultBodyLimit::max(MAX_BODY)).layer(middleware::from_fn_with_state(state.secret, guard))
}

/// What filters ask, each by itself.
fn calls(state: &State) -> Router {
    Router::new()
        .route(path::AUTHENTICATE, post(authenticate::handle))
        .route(path::ADMIT, post(admit::handle))
        .route(path::RECALL, post(recall::handle))
        .route(path::SETTLE, post(settle::handle))
        .route(path::SNAPSHOT, post(snapshot::handle))
        .route_layer(middleware::from_fn_with_state(Port::Internal, crate::trace::span))
        .layer(middleware::from_fn_with_state(state.clone(), bound))
        .layer(middleware::from_fn_with_state((Arc::clone(&state.metrics), Port::Internal), crate::metrics::count))
        .with_state(state.clone())
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

/// Bounds the time, and counts what Redis could not serve.
async fn bound(Extract(state): Extract<State>, request: Request, next: Next) -> Response {
    let trace = request.headers().get("traceparent").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let path = request.uri().path().to_owned();
    let response = match tokio::time::timeout(PATIENCE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "Redis did not answer in time").into_response(),
    };
    if response.status() == StatusCode::SERVICE_UNAVAILABLE {
        state.metrics.redis_error();
    }
    if let Some(traceparent) = trace {
        tracing::debug!(traceparent, path, status = response.status().as_u16(), "answered a filter for its client");
    }
    response
}

/// Why a request was not answered.
pub(crate) enum Failure {
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

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::Undecodable(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
            Self::Unavailable(why) => {
                tracing::warn!(why, "a filter was answered 503");
                (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
            }
        }
    }
}

/// One message of a body.
fn decode<M: Message + Default>(body: Bytes) -> Result<M, Failure> {
    Ok(M::decode(body)?)
}

/// One message as an answer.
fn encode(message: &impl Message) -> Response {
    ([("content-type", "application/x-protobuf")], message.encode_to_vec()).into_response()
}
