//! Pages of templates, and errors as pages.

use super::session::Visitor;
use crate::admin::reader::Fault;
use crate::admin::refusal::Refusal;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use jiff::Timestamp;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::LazyLock;

const TEMPLATES: [(&str, &str); 9] = [
    ("frame.html", include_str!("templates/frame.html")),
    ("error.html", include_str!("templates/error.html")),
    ("login.html", include_str!("templates/login.html")),
    ("projects.html", include_str!("templates/projects.html")),
    ("overview.html", include_str!("templates/overview.html")),
    ("keys.html", include_str!("templates/keys.html")),
    ("settings.html", include_str!("templates/settings.html")),
    ("tokens.html", include_str!("templates/tokens.html")),
    ("audit.html", include_str!("templates/audit.html")),
];

/// Names end in .html: every value is escaped.
static ENVIRONMENT: LazyLock<Result<Environment<'static>, String>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| error.to_string())?);
    for (name, text) in TEMPLATES {
        environment.add_template(name, text).map_err(|error| error.to_string())?;
    }
    Ok(environment)
});

fn render(name: &str, values: serde_json::Value) -> Result<String, String> {
    let environment = ENVIRONMENT.as_ref().map_err(Clone::clone)?;
    let template = environment.get_template(name).map_err(|error| error.to_string())?;
    // Its short form: the long one shows the values, secrets among them.
    template.render(Value::from(Serde(values))).map_err(|error| error.to_string())
}

/// A page for somebody who is not logged in.
pub fn open(status: StatusCode, name: &str, values: serde_json::Value) -> Response {
    match render(name, values) {
        Ok(text) => (status, Html(text)).into_response(),
        Err(error) => {
            tracing::error!(error, page = name, "a page cannot be rendered");
            (StatusCode::INTERNAL_SERVER_ERROR, "this page cannot be rendered; the log of the control plane tells why").into_response()
        }
    }
}

impl Visitor {
    /// A page for them: `values` and who they are.
    pub fn page(&self, status: StatusCode, name: &str, mut values: serde_json::Value) -> Response {
        if let Some(members) = values.as_object_mut() {
            members.insert("visitor".to_owned(), json!({"name": self.actor.name, "changes": self.changes(), "csrf": self.csrf}));
        }
        open(status, name, values)
    }
}

/// Why a page is not there.
pub struct Failed(Refusal);

impl<T: Into<Refusal>> From<T> for Failed {
    fn from(why: T) -> Self {
        Self(why.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let (status, message, _) = self.0.parts();
        open(status, "error.html", json!({"status": status.as_u16(), "message": message}))
    }
}

/// Bad fields of a form by name, or what else went wrong.
pub fn faults(why: Refusal) -> Result<BTreeMap<String, String>, Failed> {
    match why {
        Refusal::Fields(faults) => Ok(faults.into_iter().map(|Fault { field, message }| (field, message)).collect()),
        other => Err(other.into()),
    }
}

/// An instant as people read it, UTC.
pub fn instant(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// The same of milliseconds since 1970.
pub fn instant_ms(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| String::new(), instant)
}
