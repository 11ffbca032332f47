//! The proxium binary.
fn main() {}
