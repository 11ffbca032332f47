//! The catalog as the filter needs it: flattened, priced, with the platform's credentials.

use std::collections::BTreeMap;

/// How a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Dialect {
    /// The OpenAI API (`/chat/completions`, …) and everything compatible with it.
    Openai = 0,
    /// The Anthropic API (`/messages`, …).
    Anthropic = 1,
}

impl Dialect {
    /// The name used in the catalog.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Anthropic => "anthropic",
        }
    }
}

/// What a client calls; also what a model's catalog entry lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`
    Chat = 0,
    /// `POST /v1/messages`
    Messages = 1,
    /// `POST /v1/embeddings`
    Embeddings = 2,
    /// `POST /v1/responses`
    Responses = 3,
    /// `POST /v1/moderations`
    Moderations = 4,
    /// `POST /v1/rerank`
    Rerank = 5,
    /// `GET /v1/models`, which no model serves.
    Models = 120,
}

impl Endpoint {
    /// The name used in the catalog, the ledger and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::Responses => "responses",
            Self::Moderations => "moderations",
            Self::Rerank => "rerank",
            Self::Models => "models",
        }
    }
}

/// A company that serves models, and how to reach it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Provider {
    /// Catalog name, `[a-z0-9_-]{1,40}`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// How it speaks.
    #[prost(enumeration = "Dialect", tag = "2")]
    pub dialect: i32,
    /// Envoy's cluster for it.
    #[prost(string, tag = "3")]
    pub cluster: String,
    /// `:authority` of a call.
    #[prost(string, tag = "4")]
    pub authority: String,
    /// What stands before `/chat/completions` in a path, without a closing slash: `/v1`.
    #[prost(string, tag = "5")]
    pub path_prefix: String,
    /// The platform's own credential, when it has one. Never in a log.
    #[prost(string, optional, tag = "6")]
    pub credential: Option<String>,
    /// Envoy's cluster for streams through the router, with the upstream filter; empty: streams of this provider go by callout.
    #[prost(string, tag = "7")]
    pub stream_cluster: String,
    /// It has `/chat/completions` and no `/responses`: calls of the latter are translated.
    #[prost(bool, tag = "120")]
    pub chat_only: bool,
}

/// What a model costs, in pico-USD (10^-12 USD) per token, call or search; 1 USD per million tokens is 1,000,000.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Prices {
    /// Per input token that no cache served.
    #[prost(uint64, tag = "1")]
    pub input: u64,
    /// Per input token read from the provider's cache.
    #[prost(uint64, tag = "2")]
    pub cached_input: u64,
    /// Per input token written to the provider's 5-minute cache.
    #[prost(uint64, tag = "3")]
    pub cache_write_5m: u64,
    /// Per input token written to the provider's 1-hour cache.
    #[prost(uint64, tag = "4")]
    pub cache_write_1h: u64,
    /// Per output token.
    #[prost(uint64, tag = "5")]
    pub output: u64,
    /// Per reasoning token where it differs from [`Prices::output`]; the output count includes the reasoning tokens.
    #[prost(uint64, optional, tag = "6")]
    pub reasoning_output: Option<u64>,
    /// Per call.
    #[prost(uint64, tag = "7")]
    pub per_call: u64,
    /// Per search (rerank).
    #[prost(uint64, tag = "8")]
    pub per_search: u64,
}

/// One model of one provider.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Model {
    /// Catalog name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its provider's catalog name.
    #[prost(string, tag = "2")]
    pub provider: String,
    /// The name sent to the provider.
    #[prost(string, tag = "3")]
    pub upstream: String,
    /// Its prices; all zero for a free model.
    #[prost(message, required, tag = "4")]
    pub prices: Prices,
    /// The most it can generate for one choice.
    #[prost(uint64, tag = "5")]
    pub max_output_tokens: u64,
    /// The longest one attempt may take.
    #[prost(uint64, tag = "6")]
    pub timeout_ms: u64,
    /// The longest a stream may take to its first byte.
    #[prost(uint64, tag = "7")]
    pub first_byte_timeout_ms: u64,
    /// What it can be called for.
    #[prost(enumeration = "Endpoint", repeated, tag = "8")]
    pub endpoints: Vec<i32>,
}

/// Names in order.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Names {
    /// The names.
    #[prost(string, repeated, tag = "1")]
    pub names: Vec<String>,
}

/// Bounds of every call.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Limits {
    /// The largest request body in bytes.
    #[prost(uint64, tag = "1")]
    pub max_body_bytes: u64,
    /// The deadline of a call that names none.
    #[prost(uint64, tag = "2")]
    pub default_timeout_ms: u64,
    /// The latest deadline a call may ask for.
    #[prost(uint64, tag = "3")]
    pub max_timeout_ms: u64,
}

/// When a credential's circuit breaker opens, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Breaker {
    /// Opens after this many failures in a row.
    #[prost(uint32, tag = "1")]
    pub consecutive_failures: u32,
    /// Opens when this share of a window's calls failed, in parts per million.
    #[prost(uint32, tag = "2")]
    pub failure_ratio_ppm: u32,
    /// The share counts from this many calls in the window.
    #[prost(uint32, tag = "3")]
    pub min_requests: u32,
    /// Length of the window.
    #[prost(uint64, tag = "4")]
    pub window_ms: u64,
    /// The first time it stays open.
    #[prost(uint64, tag = "5")]
    pub cooldown_ms: u64,
    /// Each opening without a success between doubles the time, up to this.
    #[prost(uint64, tag = "6")]
    pub max_cooldown_ms: u64,
}

/// Everything the filter knows of providers and models.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Catalog {
    /// The providers.
    #[prost(message, repeated, tag = "1")]
    pub providers: Vec<Provider>,
    /// The models.
    #[prost(message, repeated, tag = "2")]
    pub models: Vec<Model>,
    /// The default level: requested name to model names, chains of chains already flattened.
    #[prost(btree_map = "string, message", tag = "3")]
    pub chains: BTreeMap<String, Names>,
    /// Bounds of every call.
    #[prost(message, required, tag = "4")]
    pub limits: Limits,
    /// Settings of every breaker.
    #[prost(message, required, tag = "5")]
    pub breaker: Breaker,
    /// Failover never goes to an entry whose worst case is above the first one's by more than this factor, in parts per million; absent: it
    /// may.
    #[prost(uint64, optional, tag = "6")]
    pub max_failover_ratio_ppm: Option<u64>,
    /// The model that compares texts; empty: none.
    #[prost(string, tag = "160")]
    pub embeddings_model: String,
    /// How `auto` becomes a tier.
    #[prost(message, optional, tag = "161")]
    pub classifier: Option<Classifier>,
}

/// How `auto` becomes a concrete tier.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Classifier {
    /// The model that is asked.
    #[prost(string, tag = "1")]
    pub model: String,
    /// Its word to the tier: a chain or model.
    #[prost(btree_map = "string, string", tag = "2")]
    pub tiers: BTreeMap<String, String>,
    /// The tier when there is no usable word.
    #[prost(string, tag = "3")]
    pub fallback: String,
    /// How long it may take.
    #[prost(uint64, tag = "4")]
    pub timeout_ms: u64,
}
