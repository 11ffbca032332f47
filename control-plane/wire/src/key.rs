//! Who calls.

use crate::Names;
use std::collections::BTreeMap;

/// Asks whose key this is.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AuthenticateRequest {
    /// SHA-256 of the whole key text, 32 bytes. The key itself never leaves the filter.
    #[prost(bytes = "vec", tag = "1")]
    pub key_hash: Vec<u8>,
}

/// The key, or nothing for a key that never was or is deleted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AuthenticateReply {
    /// The record. A revoked or expired key is told too: the filter checks both at each use.
    #[prost(message, optional, tag = "1")]
    pub key: Option<KeyRecord>,
}

/// One level of rules: requested name (model, tier or `*`) to a chain. An element names a catalog model or a catalog chain.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Rules {
    /// The rules.
    #[prost(btree_map = "string, message", tag = "1")]
    pub chains: BTreeMap<String, Names>,
}

/// What the filter needs of a key and of its project. Ceilings and caps are not here: the control plane reads them at each admission.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyRecord {
    /// The key's public id.
    #[prost(string, tag = "1")]
    pub key_id: String,
    /// The project's id.
    #[prost(string, tag = "2")]
    pub project: String,
    /// Milliseconds since 1970; the key is refused from this instant on.
    #[prost(uint64, optional, tag = "3")]
    pub expires_at_ms: Option<u64>,
    /// Refused for ever.
    #[prost(bool, tag = "4")]
    pub revoked: bool,
    /// Catalog models this key may use; empty means all.
    #[prost(string, repeated, tag = "5")]
    pub allowed_models: Vec<String>,
    /// The key's rules.
    #[prost(message, required, tag = "6")]
    pub rules: Rules,
    /// The project's part.
    #[prost(message, required, tag = "7")]
    pub project_record: ProjectRecord,
}

/// What the filter needs of a project.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProjectRecord {
    /// The project's rules.
    #[prost(message, required, tag = "1")]
    pub rules: Rules,
    /// Rules of the senders that have some, by `x-proxium-source` value.
    #[prost(btree_map = "string, message", tag = "2")]
    pub sender_rules: BTreeMap<String, Rules>,
    /// Answers are cached.
    #[prost(bool, tag = "3")]
    pub exact_cache: bool,
    /// How long an answer is kept.
    #[prost(uint32, tag = "4")]
    pub cache_ttl_s: u32,
    /// Providers for which the project registered its own credential.
    #[prost(string, repeated, tag = "5")]
    pub own_credentials: Vec<String>,
    /// What a hit costs, in parts per million of what it saved.
    #[prost(uint32, tag = "6")]
    pub cached_answer_charge_ppm: u32,
    /// The cheaper chain past the soft cap; empty: the project has none.
    #[prost(string, repeated, tag = "7")]
    pub soft_cap_chain: Vec<String>,
    /// Memories are recalled where a call asks for it.
    #[prost(bool, tag = "160")]
    pub memory: bool,
    /// `auto` becomes a tier by the catalog's classifier.
    #[prost(bool, tag = "161")]
    pub auto_classify: bool,
    /// Near matches are looked for from this cosine on, in parts per million; absent: they are not.
    #[prost(uint32, optional, tag = "162")]
    pub near_threshold_ppm: Option<u32>,
}
