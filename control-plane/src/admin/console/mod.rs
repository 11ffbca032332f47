//! The console: what the admin API knows and does, as pages for people.
//!
//! Rendered here, complete without scripts; a script draws the charts and fetches the page anew every few seconds. Every change goes
//! through the functions of the API, so that it is checked, told to filters and audited the same way.
//!
//! | file | what |
//! |---|---|
//! | `session.rs` | login by a token of the admin API, the cookie, what a request must prove |
//! | `page.rs` | templates; errors as pages |
//! | `form.rs` | fields of a form as a document of the API |
//! | `projects.rs`, `overview.rs`, `keys.rs`, `settings.rs`, `people.rs` | the pages |
//! | `assets/` | style, script, and Chart.js 4.6.1 (MIT), unchanged but for its last comment |

mod assets;
mod form;
mod keys;
mod overview;
mod page;
mod people;
mod projects;
mod session;
mod settings;

use super::State;
use axum::Router;
use axum::http::{HeaderValue, header};
use axum::middleware;
use axum::response::{Redirect, Response};
use axum::routing::{get, post};

/// Nothing from elsewhere, nothing inline, in no frame.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                                       form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Everything under `/console`, and the way there.
pub fn routes(state: &State) -> Router<State> {
    let inside = Router::new()
        .route("/console", get(projects::list))
        .route("/console/projects", post(projects::create))
        .route("/console/projects/{project}", get(overview::show))
        .route("/console/projects/{project}/keys", get(keys::list).post(keys::create))
        .route("/console/projects/{project}/keys/{key}/revoke", post(keys::revoke))
        .route("/console/projects/{project}/settings", get(settings::show).post(settings::save))
        .route("/console/projects/{project}/cache/purge", post(settings::purge))
        .route("/console/tokens", get(people::tokens).post(people::create))
        .route("/console/tokens/{token}/revoke", post(people::revoke))
        .route("/console/audit", get(people::audit))
        .route("/console/logout", post(session::logout))
        .route_layer(middleware::from_fn_with_state(state.clone(), session::guard));
    Router::new()
        .merge(inside)
        .route("/", get(async || Redirect::to("/console")))
        .route("/console/login", get(session::form_page).post(session::login))
        .route("/console/assets/{name}", get(assets::get))
        .layer(middleware::map_response(guarded))
}

async fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
