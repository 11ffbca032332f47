//! The admin API.

use crate::client::{Call, Response, unpooled};
use serde_json::{Value, json};

/// A key and whose it is.
#[derive(Clone, Debug)]
pub struct Key {
    /// The project's id.
    pub project: String,
    /// The key's id.
    pub id: String,
    /// What a client sends.
    pub text: String,
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

/// A client of one control plane's admin port. Paths are those after `/admin/v1`.
#[derive(Clone, Debug)]
pub struct Admin {
    client: reqwest::Client,
    base: String,
    token: String,
}

impl Admin {
    pub(crate) fn new(base: String, token: &str) -> Self {
        Self { client: unpooled(), base, token: token.into() }
    }

    /// Any request, of any path of the port, without the token.
    ///
    /// # Panics
    /// No answer.
    pub async fn send(&self, call: &Call) -> Response {
        self.try_send(call).await.expect("an answer of the admin port")
    }

    /// The same while the control plane may be down.
    ///
    /// # Errors
    /// No whole answer came.
    pub async fn try_send(&self, call: &Call) -> Result<Response, reqwest::Error> {
        call.send(&self.client, &self.base).await
    }

    /// Any request with the token; `null` sends no body.
    pub async fn call(&self, method: &str, path: &str, body: &Value) -> Response {
        let call = Call::new(method, &format!("/admin/v1{path}")).header("authorization", &format!("Bearer {}", self.token));
        self.send(&if body.is_null() { call } else { call.json(body) }).await
    }

    /// `GET`
    pub async fn get(&self, path: &str) -> Response {
        self.call("GET", path, &Value::Null).await
    }

    /// `POST`
    pub async fn post(&self, path: &str, body: &Value) -> Response {
        self.call("POST", path, body).await
    }

    /// `PATCH`
    pub async fn patch(&self, path: &str, body: &Value) -> Response {
        self.call("PATCH", path, body).await
    }

    /// `PUT`
    pub async fn put(&self, path: &str, body: &Value) -> Response {
        self.call("PUT", path, body).await
    }

    /// `DELETE`
    pub async fn delete(&self, path: &str) -> Response {
        self.call("DELETE", path, &Value::Null).await
    }

    /// Makes a project with these settings (a name is added if there is none) and tells its id.
    ///
    /// # Panics
    /// It is refused.
    pub async fn project(&self, settings: Value) -> String {
        text_of(&self.post("/projects", &named(settings)).await, "id")
    }

    /// Makes a key of a project with these settings (a name is added if there is none).
    ///
    /// # Panics
    /// It is refused.
    pub async fn key_of(&self, project: &str, settings: Value) -> Key {
        let made = self.post(&format!("/projects/{project}/keys"), &named(settings)).await;
        Key { project: project.into(), id: text_of(&made, "id"), text: text_of(&made, "key") }
    }
}

fn named(mut settings: Value) -> Value {
    if let Some(fields) = settings.as_object_mut() {
        fields.entry("name").or_insert_with(|| json!("test"));
    }
    settings
}

fn text_of(made: &Response, field: &str) -> String {
    assert!(matches!(made.status, 200 | 201), "{} {}", made.status, made.text());
    made.json()[field].as_str().unwrap_or_else(|| panic!("no {field:?} in the answer of {}", made.status)).into()
}
