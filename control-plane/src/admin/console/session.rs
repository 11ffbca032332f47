//! Who looks at a page. A token of the admin API opens a session; its cookie is out of reach of scripts and of other sites, and every form
//! carries the session's own word besides.

use super::form::Fields;
use super::page::{Failed, open};
use crate::admin::State;
use crate::admin::auth::Actor;
use crate::admin::refusal::Refusal;
use crate::store::keys::hash;
use crate::store::sessions;
use crate::store::tokens::Role;
use axum::Extension;
use axum::extract::{FromRequest, Request, State as Extract};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Form, extract::rejection::FormRejection};
use serde_json::json;

const COOKIE: &str = "proxium_session";
const LOGIN: &str = "/console/login";

/// Who is logged in.
#[derive(Clone, Debug)]
pub struct Visitor {
    /// As the audit stream calls them.
    pub actor: Actor,
    /// What their forms carry.
    pub csrf: String,
}

impl Visitor {
    /// Whether they may change anything.
    pub fn changes(&self) -> bool {
        self.actor.role == Role::Admin
    }
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(name, _)| *name == COOKIE).map(|(_, value)| value).next()
}

async fn visitor(state: &State, headers: &HeaderMap) -> Result<Option<Visitor>, Refusal> {
    let Some(cookie) = cookie(headers) else { return Ok(None) };
    let Some(session) = sessions::get(&state.redis, cookie).await? else { return Ok(None) };
    let actor = state.tokens.actor(&state.redis, &session.token).await?;
    Ok(actor.map(|actor| Visitor { actor, csrf: session.csrf }))
}

/// Lets a request through with its [`Visitor`] as an extension, and a form's [`Fields`]; others are sent to the login.
pub async fn guard(Extract(state): Extract<State>, request: Request, next: Next) -> Response {
    match admitted(&state, request).await {
        Ok(request) => next.run(request).await,
        Err(response) => response,
    }
}

async fn admitted(state: &State, mut request: Request) -> Result<Request, Response> {
    let failed = |why: Refusal| Failed::from(why).into_response();
    let Some(visitor) = visitor(state, request.headers()).await.map_err(failed)? else {
        return Err(Redirect::to(LOGIN).into_response());
    };
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        request.extensions_mut().insert(visitor);
        return Ok(request);
    }
    same_site(request.headers()).map_err(failed)?;
    let leaves = request.uri().path() == "/console/logout";
    if !visitor.changes() && !leaves {
        return Err(failed(Refusal::Forbidden));
    }
    let (head, body) = request.into_parts();
    let fields = form(Form::<Fields>::from_request(Request::from_parts(head.clone(), body), &()).await).map_err(failed)?;
    if fields.get("csrf") != Some(&visitor.csrf) {
        return Err(failed(Refusal::Other(StatusCode::FORBIDDEN, "this form is of another session: load the page anew".to_owned())));
    }
    let mut request = Request::from_parts(head, axum::body::Body::empty());
    request.extensions_mut().insert(visitor);
    request.extensions_mut().insert(fields);
    Ok(request)
}

fn form(read: Result<Form<Fields>, FormRejection>) -> Result<Fields, Refusal> {
    read.map(|Form(fields)| fields).map_err(|error| Refusal::Other(error.status(), error.body_text()))
}

/// Browsers say where a request was made.
fn same_site(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.get("sec-fetch-site").map(|site| site.as_bytes()) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => Err(Refusal::Other(StatusCode::FORBIDDEN, "this request was made by another site".to_owned())),
    }
}

pub async fn form_page() -> Response {
    open(StatusCode::OK, "login.html", json!({"failed": false}))
}

pub async fn login(
    Extract(state): Extract<State>,
    headers: HeaderMap,
    fields: Result<Form<Fields>, FormRejection>,
) -> Result<Response, Failed> {
    same_site(&headers)?;
    let fields = form(fields)?;
    let token = hash(fields.get("token").map_or("", |token| token.trim()));
    if state.tokens.actor(&state.redis, &token).await?.is_none() {
        return Ok(open(StatusCode::UNAUTHORIZED, "login.html", json!({"failed": true})));
    }
    let cookie = sessions::open(&state.redis, token).await?;
    Ok((set(&headers, &cookie, sessions::LASTS_S), Redirect::to("/console")).into_response())
}

pub async fn logout(Extract(state): Extract<State>, headers: HeaderMap, Extension(_): Extension<Visitor>) -> Result<Response, Failed> {
    if let Some(cookie) = cookie(&headers) {
        sessions::end(&state.redis, cookie).await?;
    }
    Ok((set(&headers, "", 0), Redirect::to(LOGIN)).into_response())
}

/// A browser that came by TLS never sends the cookie without; the port itself may be behind what ends TLS, so the browser is asked.
fn set(headers: &HeaderMap, value: &str, max_age_s: i64) -> [(header::HeaderName, String); 1] {
    let secure = headers.get(header::ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let secure = if secure { "; Secure" } else { "" };
    [(header::SET_COOKIE, format!("{COOKIE}={value}; Path=/console; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}"))]
}
