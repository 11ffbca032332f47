//! What the filter and the control plane say to each other, and exact money.
//!
//! The messages are protobuf, derived by hand (no `protoc`): a tag, once released, keeps its number and its meaning for ever, since
//! filters and control planes of different versions talk during a roll-out. `tests/golden.rs` pins the bytes. Every call is an HTTP/2
//! `POST` of one message to one of [`path`]'s paths with the header [`SECRET_HEADER`]; the answer is 200 with one message, 400 for bytes
//! that do not decode, 401 for a wrong secret, 503 when Redis cannot answer (try again; every message is idempotent by its id).

mod admit;
mod catalog;
mod group;
mod key;
pub mod metric;
mod money;
mod recall;
mod settle;
mod snapshot;

pub use admit::{
    AdmitReply, AdmitRequest, Admitted, Alternative, Call, Embed, Hit, Hold, Limit, Near, OwnCredential, RateLimit, Refused, ResponseOwner,
    StoredAnswer, Window, admit_reply,
};
pub use catalog::{Breaker, Catalog, Classifier, Dialect, Endpoint, Limits, Model, Names, Prices, Provider};
pub use group::{GroupReply, GroupRequest, GroupedAnswer, GroupedCall};
pub use key::{AuthenticateReply, AuthenticateRequest, KeyRecord, ProjectRecord, Rules};
pub use money::{MoneyError, NanoUsd};
pub use recall::{Memory, MemoryStamp, MemoryVector, RecallReply, RecallRequest};
pub use settle::{Attempt, Hits, Release, Settle, SettleReply, SettleRequest, Settlement, Store, Usage, Vector, settlement};
pub use snapshot::{Change, OpenBreaker, Purge, SnapshotReply, SnapshotRequest, change};

/// Carries the secret that filters and control planes share.
pub const SECRET_HEADER: &str = "x-proxium-secret";

/// The paths of the internal port.
pub mod path {
    /// [`crate::AuthenticateRequest`] to [`crate::AuthenticateReply`].
    pub const AUTHENTICATE: &str = "/v1/authenticate";
    /// [`crate::AdmitRequest`] to [`crate::AdmitReply`].
    pub const ADMIT: &str = "/v1/admit";
    /// [`crate::GroupRequest`] to [`crate::GroupReply`].
    pub const GROUP: &str = "/v1/group";
    /// [`crate::RecallRequest`] to [`crate::RecallReply`].
    pub const RECALL: &str = "/v1/recall";
    /// [`crate::SettleRequest`] to [`crate::SettleReply`].
    pub const SETTLE: &str = "/v1/settle";
    /// [`crate::SnapshotRequest`] to [`crate::SnapshotReply`].
    pub const SNAPSHOT: &str = "/v1/snapshot";
}

/// Every due hold is charged this long after the deadline of its call: time for a settlement that is on its way.
pub const HOLD_GRACE_MS: u64 = 30_000;
