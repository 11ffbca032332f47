//! What proxium reads of a request and of an answer, in each dialect. Only what it acts on; all else is kept as it came.

pub mod openai;
