//! The port that people and their tools call: JSON under `/admin/v1`, guarded by bearer tokens; the same for browsers under `/console`;
//! health and metrics, open.
//!
//! A change is written in this order: audit entry, record, change entry for filters. A crash or an error between leaves something that
//! repeating the request completes; nothing is reported done that filters will not hear of.

mod audit;
mod auth;
mod cache;
mod catalog;
mod console;
mod credentials;
mod health;
mod json;
mod keys;
mod memories;
mod names;
mod projects;
mod reader;
mod refusal;
mod senders;
mod spend;
mod tokens;

pub use auth::Tokens;

use crate::catalog::Watched;
use crate::metrics::{Metrics, Port};
use crate::seal::Seal;
use crate::store::Money;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State as Extract};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use fred::prelude::Client;
use refusal::Refusal;
use std::sync::Arc;
use std::time::Duration;

/// The longest a request may take.
const PATIENCE: Duration = Duration::from_secs(10);
const MAX_BODY: usize = 1 << 20;

/// What the admin port works with. Cheap to clone.
#[derive(Clone)]
pub struct State {
    /// Keys, projects, ledger.
    pub redis: Client,
    /// Stored answers; the same as `redis` unless they have a Redis of their own.
    pub cache: Client,
    /// Budgets.
    pub money: Money,
    /// Seals a project's own credentials.
    pub seal: Arc<Seal>,
    /// The catalog.
    pub catalog: Watched,
    /// Who may do what.
    pub tokens: Arc<Tokens>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// The admin port.
pub fn router(state: State) -> Router {
    let api = Router::new()
        .route("/admin/v1/projects", get(projects::list).post(projects::create))
        .route("/admin/v1/projects/{project}", get(projects::get).patch(projects::patch).delete(projects::delete))
        .route("/admin/v1/projects/{project}/keys", get(keys::list).post(keys::create))
        .route("/admin/v1/projects/{project}/keys/{key}", get(keys::get).patch(keys::patch).delete(keys::delete))
        .route("/admin/v1/projects/{project}/senders", get(senders::list))
        .route("/admin/v1/projects/{project}/senders/{source}", get(senders::get).put(senders::put).delete(senders::delete))
        .route("/admin/v1/projects/{project}/credentials", get(credentials::list))
        .route("/admin/v1/projects/{project}/credentials/{provider}", put(credentials::put).delete(credentials::delete))
        .route("/admin/v1/projects/{project}/cache", delete(cache::purge))
        .route("/admin/v1/projects/{project}/memories", get(memories::list).post(memories::add).delete(memories::delete_some))
        .route("/admin/v1/projects/{project}/memories/{memory}", delete(memories::delete))
        .route("/admin/v1/projects/{project}/spend", get(spend::report))
        .route("/admin/v1/projects/{project}/spend/reset", post(spend::reset))
        .route("/admin/v1/projects/{project}/spend/correct", post(spend::correct))
        .route("/admin/v1/projects/{project}/ledger", get(spend::ledger))
        .route("/admin/v1/credentials/reseal", post(credentials::reseal))
        .route("/admin/v1/tokens", get(tokens::list).post(tokens::create))
        .route("/admin/v1/tokens/{token}", delete(tokens::delete))
        .route("/admin/v1/audit", get(audit::list))
        .route("/admin/v1/catalog", get(catalog::show))
        .route_layer(middleware::from_fn_with_state(state.clone(), auth::guard))
        .route_layer(middleware::from_fn(crate::trace::span));
    Router::new()
        .merge(api)
        .merge(console::routes(&state))
        .route("/healthz", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(health::metrics))
        .fallback(async || Refusal::NotFound("there is nothing at this path".to_owned()))
        .method_not_allowed_fallback(async || Refusal::Method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(state.clone(), bound))
        .layer(middleware::from_fn_with_state((Arc::clone(&state.metrics), Port::Admin), crate::metrics::count))
        .with_state(state)
}

/// Bounds the time of every request, and counts those that Redis could not serve.
async fn bound(Extract(state): Extract<State>, request: Request, next: Next) -> Response {
    let response = match tokio::time::timeout(PATIENCE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Refusal::Unavailable("Redis did not answer in time; repeat the request".to_owned()).into_response(),
    };
    if response.status() == StatusCode::SERVICE_UNAVAILABLE {
        state.metrics.redis_error();
    }
    as_json(response).await
}

/// The framework's own refusals (a body too large, a path that is not UTF-8) are plain text; ours are JSON.
async fn as_json(response: Response) -> Response {
    let told = |kind: &HeaderValue| kind == "application/json" || kind.as_bytes().starts_with(b"text/html");
    if response.headers().get(header::CONTENT_TYPE).is_some_and(told) || !response.status().is_client_error() {
        return response;
    }
    let (head, body) = response.into_parts();
    let why = axum::body::to_bytes(body, 4_096).await.unwrap_or_default();
    Refusal::Other(head.status, String::from_utf8_lossy(&why).into_owned()).into_response()
}
