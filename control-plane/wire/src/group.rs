//! Calls that travel together.

/// Calls of one path of many clients in one message. Each is answered as if it came alone.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GroupRequest {
    /// One of [`crate::path`]'s.
    #[prost(string, tag = "1")]
    pub path: String,
    /// The calls.
    #[prost(message, repeated, tag = "2")]
    pub calls: Vec<GroupedCall>,
}

/// One call of a [`GroupRequest`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GroupedCall {
    /// The message of its path.
    #[prost(bytes = "vec", tag = "1")]
    pub body: Vec<u8>,
    /// The trace that it belongs to; empty: none.
    #[prost(string, tag = "2")]
    pub traceparent: String,
}

/// The answers, in the order of the calls.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GroupReply {
    /// One for each call.
    #[prost(message, repeated, tag = "1")]
    pub answers: Vec<GroupedAnswer>,
}

/// One answer of a [`GroupReply`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GroupedAnswer {
    /// The HTTP status.
    #[prost(uint32, tag = "1")]
    pub status: u32,
    /// The message, or why there is none.
    #[prost(bytes = "vec", tag = "2")]
    pub body: Vec<u8>,
    /// There is no answer: this one took longer than the others can wait, or its answer was too large. It may be asked again by itself.
    #[prost(bool, tag = "3")]
    pub alone: bool,
}
