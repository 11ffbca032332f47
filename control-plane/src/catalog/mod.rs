//! The catalog: providers, models, prices, default chains, limits, breaker. One YAML file, validated as a whole.
//!
//! Unknown fields, keys written twice and everything else that is wrong are reported at once, each with its path. [`load`] reads the file
//! with the credentials it names, [`Watched`] keeps it current, [`Catalog::to_wire`] is what filters get, [`crate::render`] what Envoy gets.
//!
//! Names: a provider's is 1 to 40 of `a-z 0-9 _ -`; a model's or chain's is 1 to 128 of `A-Z a-z 0-9 . _ : / @ -`. A chain may bear the
//! name of a model (so that calling the model by its name gets failover) or be `*` (any name that nothing else matches); within a list a
//! name that both a model and a chain bear means the model, so `gpt-5: [gpt-5, claude]` is no cycle.

mod chains;
mod check;
mod endpoint;
mod faults;
mod load;
mod node;
mod parse;
mod parse_model;
mod reader;
mod scalar;
mod watch;

pub use check::{CheckArgs, check};
pub use endpoint::{BaseUrl, split_port};
pub use faults::Faults;
pub use load::{load, load_without_credentials};
pub use parse::parse;
pub use watch::Watched;

use prost::Message;
use proxium_wire::{Breaker, Dialect, Endpoint, Limits, Names, Prices};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Where a credential is, as the catalog names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secret {
    /// In this environment variable.
    Env(String),
    /// The content of this file, without white space around it. A relative path starts at the catalog's directory.
    File(PathBuf),
}

/// A provider's secret. Its `Debug` text hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential(String);

impl Credential {
    /// The secret itself: never for a log.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(hidden)")
    }
}

/// Who serves models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// How it speaks.
    pub dialect: Dialect,
    /// Where it is.
    pub endpoint: BaseUrl,
    /// A cluster that Envoy has from elsewhere, instead of a rendered one.
    pub cluster: Option<String>,
    /// With `mesh: istio`: `cluster` is the mesh's, and `proxium render istio` gives it the upstream filter.
    pub in_mesh: bool,
    /// `:authority` of calls and name in the TLS handshake, where it is not the endpoint's host.
    pub authority: Option<String>,
    /// The platform's own credential.
    pub credential: Option<Credential>,
    /// `responses: chat`: it has no `/responses`, and such calls are translated.
    pub chat_only: bool,
}

impl Provider {
    /// Envoy's cluster for the provider of this name: `cluster`, else `provider-<name>-<hash of where it leads>`. A changed provider is
    /// thus a new cluster, and calls on the old one end undisturbed (`render/retire.rs`).
    #[must_use]
    pub fn cluster_name(&self, name: &str) -> String {
        self.cluster.clone().unwrap_or_else(|| {
            let BaseUrl { tls, host, port, .. } = &self.endpoint;
            let leads_to = format!("{tls} {host} {port} {}", self.authority.as_deref().unwrap_or(""));
            let hash: String = hex::encode(Sha256::digest(leads_to)).chars().take(8).collect();
            format!("provider-{name}-{hash}")
        })
    }

    /// Envoy's cluster for its streams through the router, which has the upstream filter; none where Envoy has the cluster from elsewhere.
    #[must_use]
    pub fn stream_cluster_name(&self, name: &str) -> Option<String> {
        match &self.cluster {
            Some(cluster) => self.in_mesh.then(|| cluster.clone()),
            None => Some(format!("{}-stream", self.cluster_name(name))),
        }
    }
}

/// One model of one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its provider's name.
    pub provider: String,
    /// The name sent to the provider.
    pub upstream: String,
    /// All zero for a free model.
    pub prices: Prices,
    /// The most it generates for one choice; 0 where it generates nothing (embeddings, moderations, rerank).
    pub max_output_tokens: u64,
    /// The longest one attempt may take.
    pub timeout_ms: u64,
    /// The longest a stream may take to its first byte.
    pub first_byte_timeout_ms: u64,
    /// What it can be called for.
    pub endpoints: Vec<Endpoint>,
}

/// Which model compares texts for the near-match cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embeddings {
    /// A model with the endpoint `embeddings`.
    pub model: String,
}

/// How `auto` gets a concrete tier where a project has auto-classify on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classifier {
    /// The model that classifies.
    pub model: String,
    /// The classifier's answer to the chain or model that then serves.
    pub tiers: BTreeMap<String, String>,
    /// The chain or model when there is no usable answer.
    pub fallback: String,
    /// How long the classifier may take.
    pub timeout_ms: u64,
}

/// A whole catalog; everything in it was validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Catalog {
    /// By name.
    pub providers: BTreeMap<String, Provider>,
    /// By name.
    pub models: BTreeMap<String, Model>,
    /// The default level: requested name to models, without chains or repetitions.
    pub chains: BTreeMap<String, Vec<String>>,
    /// For the near-match cache.
    pub embeddings: Option<Embeddings>,
    /// For auto-classify.
    pub classifier: Option<Classifier>,
    /// Bounds of every call.
    pub limits: Limits,
    /// Settings of every breaker.
    pub breaker: Breaker,
    /// The failover price guard's factor in parts per million; off when absent.
    pub max_failover_ratio_ppm: Option<u64>,
}

impl Catalog {
    /// What filters get, credentials included: for the internal port only.
    #[must_use]
    pub fn to_wire(&self) -> proxium_wire::Catalog {
        let provider = |(name, provider): (&String, &Provider)| proxium_wire::Provider {
            name: name.clone(),
            dialect: provider.dialect.into(),
            cluster: provider.cluster_name(name),
            authority: provider.authority.clone().unwrap_or_else(|| provider.endpoint.authority()),
            path_prefix: provider.endpoint.path_prefix.clone(),
            stream_cluster: provider.stream_cluster_name(name).unwrap_or_default(),
            credential: provider.credential.as_ref().map(|credential| credential.reveal().to_owned()),
            chat_only: provider.chat_only,
        };
        let model = |(name, model): (&String, &Model)| proxium_wire::Model {
            name: name.clone(),
            provider: model.provider.clone(),
            upstream: model.upstream.clone(),
            prices: model.prices,
            max_output_tokens: model.max_output_tokens,
            timeout_ms: model.timeout_ms,
            first_byte_timeout_ms: model.first_byte_timeout_ms,
            endpoints: model.endpoints.iter().map(|endpoint| i32::from(*endpoint)).collect(),
        };
        proxium_wire::Catalog {
            providers: self.providers.iter().map(provider).collect(),
            models: self.models.iter().map(model).collect(),
            chains: self.chains.iter().map(|(name, models)| (name.clone(), Names { names: models.clone() })).collect(),
            limits: self.limits,
            breaker: self.breaker,
            max_failover_ratio_ppm: self.max_failover_ratio_ppm,
            embeddings_model: self.embeddings.as_ref().map(|embeddings| embeddings.model.clone()).unwrap_or_default(),
            classifier: self.classifier.as_ref().map(|classifier| proxium_wire::Classifier {
                model: classifier.model.clone(),
                tiers: classifier.tiers.clone(),
                fallback: classifier.fallback.clone(),
                timeout_ms: classifier.timeout_ms,
            }),
        }
    }

    /// Names this content, credentials included, without revealing them: the hex SHA-256 of the wire message.
    #[must_use]
    pub fn revision(&self) -> String {
        hex::encode(Sha256::digest(self.to_wire().encode_to_vec()))
    }
}

#[cfg(test)]
mod tests;
