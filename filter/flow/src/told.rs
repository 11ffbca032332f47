//! What a call tells the operator as it happens, for metrics and the access log. Names only: no secret, no text of anybody's.

use crate::snapshot::Entry;
use proxium_wire::KeyRecord;

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Told<'a> {
    /// The call's key is good.
    Key(&'a KeyRecord),
    /// An entry of the plan was tried or passed over.
    Attempt {
        /// The entry.
        entry: &'a Entry,
        /// A word of the outcome table.
        outcome: &'a str,
        /// How long it took.
        ms: u64,
    },
}
