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
    /// The embedding model by whose vectors memories may be ranked; empty: none is at hand.
    #[prost(string, tag = "3")]
    pub ranks_by: String,
    /// The question's vector, as [`crate::Near::vector`]: only [`RecallReply::nearest`] is asked for. Empty: the memories are.
    #[prost(bytes = "vec", tag = "4")]
    pub vector: Vec<u8>,
    /// Vectors of memories that had none.
    #[prost(message, repeated, tag = "5")]
    pub fresh: Vec<MemoryVector>,
}

/// A memory's vector.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MemoryVector {
    /// The memory.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Of whom; empty: of the project.
    #[prost(string, tag = "2")]
    pub end_user: String,
    /// As [`crate::Near::vector`].
    #[prost(bytes = "vec", tag = "3")]
    pub vector: Vec<u8>,
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
    /// Ids of some of the memories that have no vector yet.
    #[prost(string, repeated, tag = "3")]
    pub unembedded: Vec<String>,
    /// Ids of memories, the nearest to the vector first.
    #[prost(string, repeated, tag = "4")]
    pub nearest: Vec<String>,
    /// Memories can be ranked here.
    #[prost(bool, tag = "5")]
    pub ranks: bool,
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
    /// Its id.
    #[prost(string, tag = "3")]
    pub id: String,
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
