//! What changed, polled by every filter once a second.

use crate::Catalog;

/// Asks for what changed since the last answer. All empty: tell everything.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SnapshotRequest {
    /// [`SnapshotReply::catalog_revision`] of the last answer.
    #[prost(string, tag = "1")]
    pub catalog_revision: String,
    /// [`SnapshotReply::cursor`] of the last answer.
    #[prost(string, tag = "2")]
    pub cursor: String,
    /// Breakers that are not closed, for people to see.
    #[prost(message, repeated, tag = "180")]
    pub breakers: Vec<OpenBreaker>,
    /// Which Envoy asks, by the id it gives itself; empty without breakers.
    #[prost(string, tag = "181")]
    pub node: String,
}

/// A breaker that is open or half-open.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OpenBreaker {
    /// `<provider>` for the platform's credential, `<project>/<provider>` for a project's own.
    #[prost(string, tag = "1")]
    pub credential: String,
    /// Open until this instant, in milliseconds since 1970, then half-open.
    #[prost(uint64, tag = "2")]
    pub until_ms: u64,
}

/// The state of things; only what is new when the asker knows the rest.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SnapshotReply {
    /// Names the catalog and the platform's credentials; opaque.
    #[prost(string, tag = "1")]
    pub catalog_revision: String,
    /// The catalog, unless the asker has it.
    #[prost(message, optional, tag = "2")]
    pub catalog: Option<Catalog>,
    /// Names the newest change told here; the same on every control plane.
    #[prost(string, tag = "3")]
    pub cursor: String,
    /// Changes since the asker's cursor.
    #[prost(message, repeated, tag = "4")]
    pub changes: Vec<Change>,
    /// The asker's cursor is too old or unknown: forget every cached key record and answer.
    #[prost(bool, tag = "5")]
    pub forget_all: bool,
    /// Too many answers were forgotten or renewed to tell them all: forget every cached answer.
    #[prost(bool, tag = "140")]
    pub forget_answers: bool,
}

/// One change of the admin API.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Change {
    /// What changed.
    #[prost(oneof = "change::What", tags = "1, 2, 140, 141")]
    pub what: Option<change::What>,
}

/// Parts of [`Change`].
pub mod change {
    /// What to forget.
    #[derive(Clone, PartialEq, Eq, prost::Oneof)]
    pub enum What {
        /// The record of the key with this SHA-256.
        #[prost(bytes, tag = "1")]
        KeyHash(Vec<u8>),
        /// Every key record and every answer of this project.
        #[prost(string, tag = "2")]
        Project(String),
        /// Answers that were purged.
        #[prost(message, tag = "140")]
        Purge(super::Purge),
        /// The answer under this exact key, which is another now.
        #[prost(bytes, tag = "141")]
        Answer(Vec<u8>),
    }
}

/// Some answers of a project: all of them, or those of a model, or that of a call.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Purge {
    /// The project.
    #[prost(string, tag = "1")]
    pub project: String,
    /// Catalog name of the model that answered; empty: any.
    #[prost(string, tag = "2")]
    pub model: String,
    /// The call that paid for the answer; empty: any.
    #[prost(string, tag = "3")]
    pub request_id: String,
}
