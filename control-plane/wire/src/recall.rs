//! What a project remembers.

/// Asks for the memories of a project and of one end user.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RecallRequest {
    /// The project of the key.
    #[prost(string, tag = "1")]
    pub project: String,
    /// The end user as the client named it; empty: the project's own memories only.
    #[prost(string, tag = "2")]
    pub end_user: String,
}

/// What is remembered, newest first.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RecallReply {
    /// The memories; none that has expired.
    #[prost(message, repeated, tag = "1")]
    pub memories: Vec<Memory>,
    /// The state of the project's memories, then that of the end user's.
    #[prost(message, repeated, tag = "2")]
    pub stamps: Vec<MemoryStamp>,
}

/// One memory.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Memory {
    /// What is remembered.
    #[prost(string, tag = "1")]
    pub text: String,
    /// Of whom; empty: of the project.
    #[prost(string, tag = "2")]
    pub end_user: String,
}

/// Names a state of one owner's memories. An answer that was stored with another than the present state is forgotten.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MemoryStamp {
    /// Whose; empty: the project's.
    #[prost(string, tag = "1")]
    pub end_user: String,
    /// Rises with each deletion.
    #[prost(uint64, tag = "2")]
    pub deletions: u64,
}
