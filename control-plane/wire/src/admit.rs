//! One round trip before a provider is called: the cached answer, or a reservation, or a refusal.

use crate::Endpoint;

/// A call wants in.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AdmitRequest {
    /// The id of the reservation, minted by the filter; a call's own reservation has the request id. Idempotent by it.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The project of the key.
    #[prost(string, tag = "2")]
    pub project: String,
    /// The key.
    #[prost(string, tag = "3")]
    pub key_id: String,
    /// `x-proxium-source`; empty: none.
    #[prost(string, tag = "4")]
    pub source: String,
    /// What a ledger record tells of the call.
    #[prost(message, required, tag = "5")]
    pub call: Call,
    /// What is wanted. On the short path (reserve before resolve) it has no cache key and no providers.
    #[prost(message, required, tag = "6")]
    pub normal: Alternative,
    /// What is wanted past the project's soft cap.
    #[prost(message, optional, tag = "7")]
    pub soft_cap: Option<Alternative>,
    /// From now on, the hold is due after this long: what is left of the deadline and [`crate::HOLD_GRACE_MS`].
    #[prost(uint64, tag = "8")]
    pub hold_ms: u64,
    /// A paid side call (embedding, classifier): holds money, takes no call slot and no tokens, and is refused when any limit would
    /// refuse a call now.
    #[prost(bool, tag = "9")]
    pub side_call: bool,
    /// Whose this response is, is to be told with the admission; empty: none is asked for.
    #[prost(string, tag = "120")]
    pub previous_response_id: String,
    /// Of a side call: what the call itself will hold. The side call is refused where that call would be.
    #[prost(message, optional, tag = "160")]
    pub beside: Option<Hold>,
    /// Where the answer is not stored: may an embedding be paid for, to look for a near match? Where it may not, the call is admitted at once.
    #[prost(message, optional, tag = "161")]
    pub embed: Option<Embed>,
    /// The embedding that was paid for: an answer to a question near enough is as good as the exact one.
    #[prost(message, optional, tag = "162")]
    pub near: Option<Near>,
}

/// The side call that makes an embedding.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Embed {
    /// Its reservation.
    #[prost(string, tag = "1")]
    pub id: String,
    /// What it holds; only the money counts.
    #[prost(message, required, tag = "2")]
    pub hold: Hold,
    /// The provider whose credential is wanted.
    #[prost(string, tag = "3")]
    pub provider: String,
    /// Catalog name of the embedding model.
    #[prost(string, tag = "4")]
    pub model: String,
}

/// A question and how near another must be.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Near {
    /// 32-bit floats, little-endian.
    #[prost(bytes = "vec", tag = "1")]
    pub vector: Vec<u8>,
    /// The text that the vector stands for: another must agree with it in what a vector hardly shows.
    #[prost(string, tag = "2")]
    pub question: String,
    /// The least cosine, in parts per million.
    #[prost(uint32, tag = "3")]
    pub threshold_ppm: u32,
}

/// What is known of a call before it is made.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Call {
    /// The endpoint.
    #[prost(enumeration = "Endpoint", tag = "1")]
    pub endpoint: i32,
    /// The model the client named.
    #[prost(string, tag = "2")]
    pub requested_model: String,
    /// The first entry of its chain that the key may use; empty on the short path.
    #[prost(string, tag = "3")]
    pub resolved_model: String,
    /// `x-proxium-user`, else the body's own user tag; empty: none.
    #[prost(string, tag = "4")]
    pub end_user: String,
    /// When its headers came, milliseconds since 1970 by the filter's clock.
    #[prost(uint64, tag = "5")]
    pub started_at_ms: u64,
}

/// One way to make the call.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Alternative {
    /// Look here before reserving; empty: no lookup (cache off, bypassed or refreshed).
    #[prost(bytes = "vec", tag = "1")]
    pub cache_key: Vec<u8>,
    /// What to hold.
    #[prost(message, required, tag = "2")]
    pub hold: Hold,
    /// Providers of the plan whose credentials of the project's own are wanted. Empty: all of the project.
    #[prost(string, repeated, tag = "3")]
    pub providers: Vec<String>,
    /// The first entry of its plan, where that is not [`Call::resolved_model`].
    #[prost(string, tag = "4")]
    pub resolved_model: String,
    /// With [`AdmitRequest::near`]: the questions that may be compared with this one, 32 bytes.
    #[prost(bytes = "vec", tag = "160")]
    pub partition: Vec<u8>,
}

/// The most a call is expected to use.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Hold {
    /// Input tokens.
    #[prost(uint64, tag = "1")]
    pub input_tokens: u64,
    /// Output tokens.
    #[prost(uint64, tag = "2")]
    pub output_tokens: u64,
    /// Money; never negative.
    #[prost(int64, tag = "3")]
    pub nano_usd: i64,
}

/// What became of it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AdmitReply {
    /// The outcome; always there.
    #[prost(oneof = "admit_reply::Outcome", tags = "1, 2, 3, 4, 160")]
    pub outcome: Option<admit_reply::Outcome>,
}

/// Parts of [`AdmitReply`].
pub mod admit_reply {
    /// The outcomes of an admission.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Outcome {
        /// The answer is known; nothing is held.
        #[prost(message, tag = "1")]
        Hit(super::Hit),
        /// Reserved: call.
        #[prost(message, tag = "2")]
        Admitted(super::Admitted),
        /// A limit says no; nothing was reserved.
        #[prost(message, tag = "3")]
        Refused(super::Refused),
        /// The key is revoked, expired or gone; the filter's record of it is stale. Nothing was reserved.
        #[prost(message, tag = "4")]
        InvalidKey(()),
        /// The answer is not stored and [`super::AdmitRequest::embed`] is held: make the embedding and ask again.
        #[prost(message, tag = "160")]
        Embed(super::Admitted),
    }
}

/// An answer kept from an earlier call, always unary.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StoredAnswer {
    /// The provider's own bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub body: Vec<u8>,
    /// Catalog name of the model that answered.
    #[prost(string, tag = "2")]
    pub model: String,
    /// What it cost then.
    #[prost(int64, tag = "3")]
    pub cost_nano_usd: i64,
    /// The call that paid for it.
    #[prost(string, tag = "4")]
    pub request_id: String,
}

/// A hit.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Hit {
    /// The answer.
    #[prost(message, required, tag = "1")]
    pub answer: StoredAnswer,
    /// What this hit cost: 0, or the project's fraction.
    #[prost(int64, tag = "2")]
    pub charged_nano_usd: i64,
    /// It is the answer of the soft-cap alternative.
    #[prost(bool, tag = "3")]
    pub soft_cap: bool,
    /// For the `x-ratelimit-*` headers; absent for a free hit, which passes no ceiling.
    #[prost(message, optional, tag = "4")]
    pub rate_limit: Option<RateLimit>,
    /// So long the answer stays stored if nobody purges it. 0: the filter must ask again each time.
    #[prost(uint64, tag = "140")]
    pub expires_in_ms: u64,
    /// A near match, of this cosine in parts per million; absent: an exact one.
    #[prost(uint32, optional, tag = "160")]
    pub similarity_ppm: Option<u32>,
}

/// A reservation is held.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Admitted {
    /// The soft-cap alternative was taken.
    #[prost(bool, tag = "1")]
    pub soft_cap: bool,
    /// The project's own credentials among the providers asked for. Never in a log.
    #[prost(message, repeated, tag = "2")]
    pub credentials: Vec<OwnCredential>,
    /// For the `x-ratelimit-*` headers.
    #[prost(message, required, tag = "3")]
    pub rate_limit: RateLimit,
    /// Who keeps [`AdmitRequest::previous_response_id`] for this project; absent: nobody, as far as is known.
    #[prost(message, optional, tag = "120")]
    pub previous_response: Option<ResponseOwner>,
}

/// Who keeps a response of `/v1/responses`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ResponseOwner {
    /// Catalog name of the provider.
    #[prost(string, tag = "1")]
    pub provider: String,
    /// On the account of the project's own credential, not the platform's.
    #[prost(bool, tag = "2")]
    pub own_credential: bool,
}

/// A credential of the project's own.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OwnCredential {
    /// Catalog name of the provider.
    #[prost(string, tag = "1")]
    pub provider: String,
    /// The secret.
    #[prost(string, tag = "2")]
    pub secret: String,
}

/// Where the ceilings stand after an admission or at a refusal; a part is absent when no such ceiling exists.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RateLimit {
    /// Of the request ceilings (calls per hour, requests per minute; key and sender) the one with least left.
    #[prost(message, optional, tag = "1")]
    pub requests: Option<Window>,
    /// Of the token ceilings the one with least left.
    #[prost(message, optional, tag = "2")]
    pub tokens: Option<Window>,
}

/// One ceiling.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Window {
    /// The ceiling.
    #[prost(uint64, tag = "1")]
    pub limit: u64,
    /// What is left.
    #[prost(uint64, tag = "2")]
    pub remaining: u64,
    /// Until it is whole again if nothing more comes.
    #[prost(uint64, tag = "3")]
    pub reset_ms: u64,
}

/// What says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Limit {
    /// The project's month.
    MonthlyCap = 0,
    /// Calls in the last hour.
    CallsPerHour = 1,
    /// Calls in the last minute.
    RequestsPerMinute = 2,
    /// Tokens in the last minute.
    TokensPerMinute = 3,
    /// Calls at once.
    MaxParallelCalls = 4,
}

impl Limit {
    /// The name in `error.param`, in the admin API and in the scripts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MonthlyCap => "monthly_cap",
            Self::CallsPerHour => "calls_per_hour",
            Self::RequestsPerMinute => "requests_per_minute",
            Self::TokensPerMinute => "tokens_per_minute",
            Self::MaxParallelCalls => "max_parallel_calls",
        }
    }
}

/// A limit said no.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Refused {
    /// Which.
    #[prost(enumeration = "Limit", tag = "1")]
    pub limit: i32,
    /// It is the sender's ceiling, not the project's or the key's.
    #[prost(bool, tag = "2")]
    pub of_sender: bool,
    /// When the same call could pass, at the earliest; absent when waiting does not help (a ceiling of 0).
    #[prost(uint64, optional, tag = "3")]
    pub retry_after_ms: Option<u64>,
    /// Where the ceilings stand.
    #[prost(message, required, tag = "4")]
    pub rate_limit: RateLimit,
}
