//! What a call came to. Every message is idempotent by the id of its reservation.

use crate::{Call, MemoryStamp, StoredAnswer};

/// Some calls ended.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SettleRequest {
    /// The ends, of any projects.
    #[prost(message, repeated, tag = "1")]
    pub settlements: Vec<Settlement>,
}

/// All of them are in Redis.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SettleReply {}

/// The end of one reservation.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Settlement {
    /// The reservation.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its project.
    #[prost(string, tag = "2")]
    pub project: String,
    /// Its key.
    #[prost(string, tag = "3")]
    pub key_id: String,
    /// Its sender; empty: none.
    #[prost(string, tag = "4")]
    pub source: String,
    /// How it ended; always there.
    #[prost(oneof = "settlement::End", tags = "5, 6, 140")]
    pub end: Option<settlement::End>,
    /// Of a side call, which counts as money only: no call, no tokens. Heeded where the reservation is unknown.
    #[prost(bool, tag = "200")]
    pub side_call: bool,
}

/// Parts of [`Settlement`].
pub mod settlement {
    /// How a reservation ends.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum End {
        /// The hold becomes what was used.
        #[prost(message, tag = "5")]
        Settle(Box<super::Settle>),
        /// The hold is given back whole.
        #[prost(message, tag = "6")]
        Release(super::Release),
        /// No reservation: free hits that a filter answered by itself. The id names this batch of them.
        #[prost(message, tag = "140")]
        Hits(super::Hits),
    }
}

/// Free hits of one key that are alike, and were answered without a word to the control plane.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Hits {
    /// What they have in common; the instant is that of the first.
    #[prost(message, required, tag = "1")]
    pub call: Call,
    /// Catalog name of the model whose answer it was.
    #[prost(string, tag = "2")]
    pub model: String,
    /// How many.
    #[prost(uint64, tag = "3")]
    pub count: u64,
}

/// Gives everything back.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Release {}

/// Replaces the hold by what was used, and records it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Settle {
    /// What was known before the call.
    #[prost(message, required, tag = "1")]
    pub call: Call,
    /// Catalog name of the model that answered (or was paid for).
    #[prost(string, tag = "2")]
    pub model: String,
    /// Its provider.
    #[prost(string, tag = "3")]
    pub provider: String,
    /// The tokens.
    #[prost(message, required, tag = "4")]
    pub usage: Usage,
    /// The cost.
    #[prost(int64, tag = "5")]
    pub cost_nano_usd: i64,
    /// The provider told no usage; it was estimated.
    #[prost(bool, tag = "6")]
    pub estimated: bool,
    /// The caller ended the call after it was sent.
    #[prost(bool, tag = "7")]
    pub abandoned: bool,
    /// Every attempt in order.
    #[prost(message, repeated, tag = "8")]
    pub attempts: Vec<Attempt>,
    /// From the request's headers to the answer.
    #[prost(uint64, tag = "9")]
    pub latency_ms: u64,
    /// Keep this answer.
    #[prost(message, optional, tag = "10")]
    pub store: Option<Store>,
    /// The id under which the provider keeps the answer; empty: it keeps none. The project may go on from it.
    #[prost(string, tag = "120")]
    pub response_id: String,
    /// The provider was called with the project's own credential.
    #[prost(bool, tag = "121")]
    pub own_credential: bool,
}

/// Tokens by kind. The kinds are disjoint but for reasoning, which is part of the output.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Usage {
    /// Input that no cache served.
    #[prost(uint64, tag = "1")]
    pub input: u64,
    /// Input read from the provider's cache.
    #[prost(uint64, tag = "2")]
    pub cached_input: u64,
    /// Input written to the provider's 5-minute cache.
    #[prost(uint64, tag = "3")]
    pub cache_write_5m: u64,
    /// Input written to the provider's 1-hour cache.
    #[prost(uint64, tag = "4")]
    pub cache_write_1h: u64,
    /// Output, reasoning included.
    #[prost(uint64, tag = "5")]
    pub output: u64,
    /// Reasoning among the output.
    #[prost(uint64, tag = "6")]
    pub reasoning: u64,
    /// Searches (rerank).
    #[prost(uint64, tag = "7")]
    pub searches: u64,
}

impl Usage {
    /// What a token ceiling counts.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.input
            .saturating_add(self.cached_input)
            .saturating_add(self.cache_write_5m)
            .saturating_add(self.cache_write_1h)
            .saturating_add(self.output)
    }
}

/// One call of one entry.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Attempt {
    /// Catalog name of the model.
    #[prost(string, tag = "1")]
    pub model: String,
    /// What came of it, a word of the outcome table: `ok`, `timeout`, `status_500`, `reset`, …
    #[prost(string, tag = "2")]
    pub outcome: String,
    /// How long it took.
    #[prost(uint64, tag = "3")]
    pub ms: u64,
}

/// An answer to keep.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Store {
    /// The exact key of the model that answered.
    #[prost(bytes = "vec", tag = "1")]
    pub cache_key: Vec<u8>,
    /// The answer.
    #[prost(message, required, tag = "2")]
    pub answer: StoredAnswer,
    /// For how long.
    #[prost(uint32, tag = "3")]
    pub ttl_s: u32,
    /// It replaces one that may be stored already, and that filters may have.
    #[prost(bool, tag = "140")]
    pub renews: bool,
    /// Makes the answer findable by questions near its own.
    #[prost(message, optional, tag = "160")]
    pub vector: Option<Vector>,
    /// Whose memories the question carried: the answer goes with them.
    #[prost(message, repeated, tag = "161")]
    pub memories: Vec<MemoryStamp>,
}

/// Where a stored answer's question stands among others.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Vector {
    /// As [`crate::Alternative::partition`], of the model that answered.
    #[prost(bytes = "vec", tag = "1")]
    pub partition: Vec<u8>,
    /// As [`crate::Near::vector`].
    #[prost(bytes = "vec", tag = "2")]
    pub vector: Vec<u8>,
    /// As [`crate::Near::question`]. It is read, not kept.
    #[prost(string, tag = "210")]
    pub question: String,
}
