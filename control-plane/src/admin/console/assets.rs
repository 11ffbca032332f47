//! Style and scripts, part of the binary: nothing is loaded from elsewhere.

use super::page::Failed;
use crate::admin::refusal::Refusal;
use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};

const SCRIPT: &str = "text/javascript; charset=utf-8";

pub async fn get(Path(name): Path<String>) -> Result<Response, Failed> {
    let (kind, text) = match name.as_str() {
        "console.css" => ("text/css; charset=utf-8", include_str!("assets/console.css")),
        "console.js" => (SCRIPT, include_str!("assets/console.js")),
        "chart.js" => (SCRIPT, include_str!("assets/chart.umd.min.js")),
        _ => return Err(Refusal::NotFound("there is no such file".to_owned()).into()),
    };
    // Short: a new control plane may have new ones.
    Ok(([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "max-age=300")], text).into_response())
}
