//! What one attempt sends: made from a call and an entry of its plan, by the listener's filter for a callout, and by the upstream filter
//! for an attempt of Envoy's router, which it reaches as JSON in filter state.

use crate::dialect::NOT_IN_CACHE_KEY;
use crate::json::Document;
use crate::message::Headers;
use crate::object::{members, optional};
use crate::refusal::Refusal;
use crate::request::Head;
use crate::snapshot::Entry;
use crate::speaks::Speaks;
use crate::translate::{Outgoing, anthropic_openai, openai_anthropic, responses_anthropic, responses_openai};
use crate::value::written;
use proxium_wire::Dialect;
use serde::Serialize;

/// Headers of the client that go on to every provider.
pub const SHARED_HEADERS: &[&str] = &["content-type", "accept", "user-agent", "traceparent", "tracestate"];
/// Headers of the client that go on to a provider of its dialect.
const DIALECT_HEADERS: &[&str] = &["anthropic-version", "anthropic-beta", "openai-beta"];
/// Headers that differ from hop to hop: each hop sets or removes every one of them.
pub const HOP_HEADERS: &[&str] = &["authorization", "x-api-key", "anthropic-version", "anthropic-beta", "openai-beta"];
/// Anthropic's API wants a version; this is the only one there is (docs.anthropic.com/en/api/versioning, 2026).
pub const ANTHROPIC_VERSION: &str = "2023-06-01";

/// One attempt. The credential travels apart, so that a hop can be logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hop {
    /// `:path`
    pub path: String,
    /// `:authority`
    pub authority: String,
    /// Those of [`HOP_HEADERS`] to set, but for the credential.
    pub headers: Vec<(String, String)>,
    client: Speaks,
    provider: Speaks,
    model: String,
    max_output_tokens: u64,
}

impl Hop {
    /// The attempt of this entry.
    ///
    /// # Errors
    /// Its provider has no such endpoint.
    pub fn new(head: &Head, entry: &Entry) -> Result<Self, Refusal> {
        let (client, provider) = (head.route.speaks, Speaks::of(&entry.provider, &head.route));
        let same = client == provider;
        // A query is the client's dialect's own.
        let query = head.query.as_deref().filter(|_| same).map(|query| format!("?{query}")).unwrap_or_default();
        let path = (head.route.path)(provider).ok_or_else(|| {
            Refusal::invalid("model", format!("The provider of `{}` has no such endpoint. Name another model.", entry.model.name))
        })?;
        let mut headers = Headers::new();
        if same {
            headers.copy_allowed(&head.headers, DIALECT_HEADERS);
        }
        if provider == Speaks::Anthropic && headers.get("anthropic-version").is_none() {
            headers.add("anthropic-version", ANTHROPIC_VERSION);
        }
        Ok(Self {
            path: format!("{}{path}{query}", entry.provider.path_prefix),
            authority: entry.provider.authority.clone(),
            headers: headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            client,
            provider,
            model: entry.model.upstream.clone(),
            max_output_tokens: entry.model.max_output_tokens,
        })
    }

    /// Reads it back. `None`: it is none.
    #[must_use]
    pub fn read(json: &str) -> Option<Self> {
        let [path, authority, headers, client, provider, model, max_output_tokens] =
            members(json, ["path", "authority", "headers", "client", "provider", "model", "max_output_tokens"])?;
        Some(Self {
            path: optional(path)??,
            authority: optional(authority)??,
            headers: optional(headers)??,
            client: optional(client)??,
            provider: optional(provider)??,
            model: optional(model)??,
            max_output_tokens: optional(max_output_tokens)??,
        })
    }

    /// How the client speaks.
    #[must_use]
    pub fn client(&self) -> Dialect {
        self.client.dialect()
    }

    /// How the provider speaks.
    #[must_use]
    pub fn provider(&self) -> Dialect {
        self.provider.dialect()
    }

    /// The body that the provider gets. A stream is always asked for its usage.
    ///
    /// # Errors
    /// The provider's dialect cannot carry the request: a 400 that names what.
    pub fn body(&self, request: &Document, stream: bool) -> Result<Outgoing, Refusal> {
        let name = written(&self.model.as_str().into());
        let with_usage = with_usage(request);
        let edits: &[(&str, Option<&str>)] = match (self.client, self.provider, stream) {
            (Speaks::Openai, Speaks::Openai, true) => &[("model", Some(&name)), ("stream_options", Some(&with_usage))],
            (Speaks::Openai, Speaks::Openai, false) => &[("model", Some(&name)), ("stream", None), ("stream_options", None)],
            (Speaks::Anthropic, Speaks::Anthropic, true) | (_, Speaks::Responses, true) => &[("model", Some(&name))],
            (_, Speaks::Responses, false) => &[("model", Some(&name)), ("stream", None), ("stream_options", None)],
            (Speaks::Anthropic, Speaks::Anthropic, false) => &[("model", Some(&name)), ("stream", None)],
            (Speaks::Responses, Speaks::Openai, _) => {
                return responses_openai::request(&request.text, &self.model, self.max_output_tokens, stream);
            }
            (Speaks::Responses, Speaks::Anthropic, _) => {
                return responses_anthropic::request(&request.text, &self.model, self.max_output_tokens, stream);
            }
            (Speaks::Openai, Speaks::Anthropic, _) => {
                return openai_anthropic::request(&request.text, &self.model, self.max_output_tokens, stream);
            }
            (Speaks::Anthropic, Speaks::Openai, _) => {
                return anthropic_openai::request(&request.text, &self.model, self.max_output_tokens, stream);
            }
        };
        Ok(Outgoing { body: request.edited(edits), dropped: Vec::new() })
    }

    /// The parameters that the provider's dialect cannot carry.
    ///
    /// # Errors
    /// As [`Hop::body`].
    pub fn dropped(&self, request: &Document) -> Result<Vec<String>, Refusal> {
        if self.client == self.provider { Ok(Vec::new()) } else { Ok(self.body(request, true)?.dropped) }
    }

    /// The same as [`Hop::body`] for a stream, from the request's bytes.
    ///
    /// # Errors
    /// As [`Hop::body`]; also for bytes that are no JSON object.
    pub fn body_of(&self, body: Vec<u8>) -> Result<Outgoing, Refusal> {
        let document = Document::read(body, NOT_IN_CACHE_KEY).map_err(Refusal::from)?;
        self.body(&document, true)
    }
}

/// `stream_options` as the client has it, with `include_usage`.
fn with_usage(request: &Document) -> String {
    let given = request.member("stream_options").and_then(|text| serde_json::from_str::<serde_json::Map<_, _>>(text).ok());
    let mut options = given.unwrap_or_default();
    options.insert("include_usage".into(), true.into());
    written(&serde_json::Value::Object(options))
}

/// The header that carries a credential to a provider of this dialect.
#[must_use]
pub fn credential_header(dialect: Dialect, secret: &str) -> (&'static str, String) {
    match dialect {
        Dialect::Openai => ("authorization", format!("Bearer {secret}")),
        Dialect::Anthropic => ("x-api-key", secret.to_owned()),
    }
}
