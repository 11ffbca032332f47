//! Who may do what: an admin token for everything, a viewer token for reading.

use super::State;
use super::refusal::Refusal;
use crate::secret;
use axum::extract::{Request, State as Extract};
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// The tokens. An absent one opens nothing.
#[derive(Default)]
pub struct Tokens {
    /// May do everything.
    pub admin: Option<String>,
    /// May read.
    pub viewer: Option<String>,
}

/// What a token allows; its name stands in the audit stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Admin,
    /// Reading.
    Viewer,
}

impl Role {
    /// The name in the audit stream.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Viewer => "viewer",
        }
    }
}

impl Tokens {
    fn role(&self, token: &str) -> Option<Role> {
        let is = |own: &Option<String>| own.as_ref().is_some_and(|own| secret::same(token.as_bytes(), own.as_bytes()));
        // Both are always compared.
        match (is(&self.admin), is(&self.viewer)) {
            (true, _) => Some(Role::Admin),
            (false, true) => Some(Role::Viewer),
            (false, false) => None,
        }
    }
}

/// Lets a request through with its [`Role`] as an extension.
pub async fn guard(Extract(state): Extract<State>, mut request: Request, next: Next) -> Response {
    match role(&state.tokens, &request) {
        Ok(role) => {
            request.extensions_mut().insert(role);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

fn role(tokens: &Tokens, request: &Request) -> Result<Role, Refusal> {
    if tokens.admin.is_none() && tokens.viewer.is_none() {
        return Err(Refusal::Unauthenticated("no token is configured: start the control plane with PROXIUM_ADMIN_TOKEN set"));
    }
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = given.and_then(|given| given.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let (_, token) = token.ok_or(Refusal::Unauthenticated("send the header `Authorization: Bearer <admin token>`"))?;
    let role = tokens.role(token.trim()).ok_or(Refusal::Unauthenticated("the token is neither the admin's nor the viewer's"))?;
    if role == Role::Viewer && !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(Refusal::Forbidden);
    }
    Ok(role)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_the_role_it_was_given_and_no_token_has_none() {
        let tokens = Tokens { admin: Some("a".to_owned()), viewer: Some("v".to_owned()) };
        assert_eq!(tokens.role("a"), Some(Role::Admin));
        assert_eq!(tokens.role("v"), Some(Role::Viewer));
        assert_eq!(tokens.role("x"), None);
        assert_eq!(Tokens::default().role(""), None);
        assert_eq!(Tokens { admin: Some(String::new()), viewer: None }.role(""), None);
    }
}
