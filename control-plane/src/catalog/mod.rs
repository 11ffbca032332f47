//! (see the crate's table)
