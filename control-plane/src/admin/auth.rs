//! Who may do what: tokens of the role admin change, tokens of the role viewer look.
//!
//! Tokens are made, listed and revoked through the API and kept hashed in Redis. To make the first one there are those that the control
//! plane was started with; they work without Redis too.

use super::State;
use super::refusal::Refusal;
use crate::store::StoreError;
use crate::store::keys::hash;
use crate::store::tokens::{self, Role};
use axum::extract::{Request, State as Extract};
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use fred::prelude::Client;
use jiff::Timestamp;

/// The tokens that the control plane was started with. An absent one opens nothing.
#[derive(Default)]
pub struct Tokens {
    /// May do everything.
    pub admin: Option<String>,
    /// May read.
    pub viewer: Option<String>,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// As the audit stream calls it: `admin`, `viewer`, or a token's name and id.
    pub name: String,
    /// What it may.
    pub role: Role,
}

impl Tokens {
    /// Whom the token with this SHA-256 (lower-case hex) stands for; `None`: nobody, or it has expired.
    ///
    /// Digests are compared, never texts: what a comparison of those leaks by its time says nothing of the secrets.
    pub async fn actor(&self, redis: &Client, hash: &str) -> Result<Option<Actor>, StoreError> {
        if let Some(role) = self.role(hash) {
            return Ok(Some(Actor { name: role.name().to_owned(), role }));
        }
        let token = tokens::by_hash(redis, hash).await?.filter(|token| token.is_good(Timestamp::now()));
        Ok(token.map(|token| Actor { name: format!("{} ({})", token.name, token.id), role: token.role }))
    }

    fn role(&self, given: &str) -> Option<Role> {
        let is = |own: &Option<String>| own.as_ref().is_some_and(|own| !own.is_empty() && hash(own) == given);
        match (is(&self.admin), is(&self.viewer)) {
            (true, _) => Some(Role::Admin),
            (false, true) => Some(Role::Viewer),
            (false, false) => None,
        }
    }
}

/// Lets a request through with its [`Actor`] as an extension.
pub async fn guard(Extract(state): Extract<State>, mut request: Request, next: Next) -> Response {
    let token = bearer(&request).map(hash);
    match actor(&state, token, request.method()).await {
        Ok(actor) => {
            request.extensions_mut().insert(actor);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

fn bearer(request: &Request) -> Option<&str> {
    let given = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (_, token) = given.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))?;
    Some(token.trim())
}

async fn actor(state: &State, token: Option<String>, method: &Method) -> Result<Actor, Refusal> {
    let token = token.ok_or(Refusal::Unauthenticated("send the header `Authorization: Bearer <admin token>`"))?;
    let actor = state.tokens.actor(&state.redis, &token).await?;
    let actor = actor.ok_or(Refusal::Unauthenticated(
        "there is no such token, or it has expired; the first one is set by PROXIUM_ADMIN_TOKEN or --admin-token-file of the control plane",
    ))?;
    if actor.role == Role::Viewer && !matches!(*method, Method::GET | Method::HEAD) {
        return Err(Refusal::Forbidden);
    }
    Ok(actor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_the_role_it_was_given_and_no_token_has_none() {
        let tokens = Tokens { admin: Some("a".to_owned()), viewer: Some("v".to_owned()) };
        assert_eq!(tokens.role(&hash("a")), Some(Role::Admin));
        assert_eq!(tokens.role(&hash("v")), Some(Role::Viewer));
        assert_eq!(tokens.role(&hash("x")), None);
        assert_eq!(Tokens::default().role(&hash("")), None);
        assert_eq!(Tokens { admin: Some(String::new()), viewer: None }.role(&hash("")), None);
    }
}
