//! Why a request is not done, as JSON: `{"error":{"message","fields":[{"field","message"}]}}`.

use super::reader::Fault;
use crate::seal::SealError;
use crate::store::StoreError;
use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// The reasons.
#[derive(Debug)]
pub enum Refusal {
    /// The document, or a parameter, is not as it must be.
    Fields(Vec<Fault>),
    /// The body is not JSON.
    NotJson(String),
    /// No such thing; says which.
    NotFound(String),
    /// The path does not know this method.
    Method,
    /// No token, or a wrong one; says what to send.
    Unauthenticated(&'static str),
    /// The token may only look.
    Forbidden,
    /// Others changed the same thing over and over.
    Conflict,
    /// Something is not configured, or not reachable.
    Unavailable(String),
    /// What the framework refused, in its words.
    Other(StatusCode, String),
}

impl Refusal {
    /// There is no such project.
    pub fn no_project(id: &str) -> Self {
        Self::NotFound(format!("there is no project `{id}`"))
    }

    /// One bad field.
    pub fn field(field: &str, message: impl Into<String>) -> Self {
        Self::Fields(vec![Fault { field: field.to_owned(), message: message.into() }])
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        tracing::warn!(%error, "an admin request was answered 503");
        Self::Unavailable(format!("{}; repeat the request", error.to_string().trim_end_matches('.')))
    }
}

impl From<SealError> for Refusal {
    fn from(error: SealError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<Vec<Fault>> for Refusal {
    fn from(faults: Vec<Fault>) -> Self {
        Self::Fields(faults)
    }
}

impl Refusal {
    /// Status, message and bad fields.
    pub fn parts(self) -> (StatusCode, String, Vec<Fault>) {
        match self {
            Self::Fields(fields) => {
                let told: Vec<_> = fields.iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect();
                (StatusCode::BAD_REQUEST, told.join("; "), fields)
            }
            Self::NotJson(why) => (StatusCode::BAD_REQUEST, format!("the body is not a JSON document: {why}"), Vec::new()),
            Self::NotFound(what) => (StatusCode::NOT_FOUND, what, Vec::new()),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "this path does not know this method".to_owned(), Vec::new()),
            Self::Unauthenticated(what) => (StatusCode::UNAUTHORIZED, what.to_owned(), Vec::new()),
            Self::Forbidden => (StatusCode::FORBIDDEN, "a viewer token may only read; send the admin token".to_owned(), Vec::new()),
            Self::Conflict => (StatusCode::CONFLICT, "it was changed by others meanwhile; repeat the request".to_owned(), Vec::new()),
            Self::Unavailable(why) => (StatusCode::SERVICE_UNAVAILABLE, why, Vec::new()),
            Self::Other(status, why) => (status, why, Vec::new()),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, message, fields) = self.parts();
        let body = Json(json!({"error": {"message": message, "fields": fields}}));
        if status == StatusCode::UNAUTHORIZED {
            return (status, [(header::WWW_AUTHENTICATE, "Bearer")], body).into_response();
        }
        (status, body).into_response()
    }
}
