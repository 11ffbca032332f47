//! What a function of the library is called with: values one after the other in MessagePack, which Lua reads without a table and without
//! making numbers of texts. All of a call is one argument of a Redis command.

use fred::prelude::Value;
use rmp::encode::{self, ByteBuf};

/// The arguments of one call, in the order of the function's own.
#[derive(Clone, Default)]
pub(super) struct Args(ByteBuf);

// Writing to memory cannot fail, so nothing is done with what it answers.
impl Args {
    pub fn text(mut self, text: &str) -> Self {
        let _ = encode::write_str(&mut self.0, text);
        self
    }

    /// Exact in Lua below 2^53.
    pub fn number(mut self, number: i64) -> Self {
        let _ = encode::write_sint(&mut self.0, number);
        self
    }

    pub fn flag(mut self, on: bool) -> Self {
        let _ = encode::write_bool(&mut self.0, on);
        self
    }

    /// So many values that are not there.
    pub fn none(mut self, count: usize) -> Self {
        for _ in 0..count {
            let _ = encode::write_nil(&mut self.0);
        }
        self
    }

    /// Fields of a ledger record.
    pub fn fields(self, fields: Vec<(&'static str, String)>) -> Self {
        fields.into_iter().fold(self, |args, (field, value)| args.text(field).text(&value))
    }
}

impl From<Args> for Value {
    fn from(args: Args) -> Self {
        Self::Bytes(args.0.into_vec().into())
    }
}
