//! The stages, one file each, and the order they run in.

pub mod attempt;
pub mod authenticate;
pub mod call;
pub mod classify;
pub mod list;
pub mod lookup;
pub mod near;
pub mod outcome;
pub mod price_guard;
pub mod rank;
pub mod recall;
pub mod record;
pub mod reserve;
pub mod resolve;
pub mod route;
pub mod side;
pub mod stream;
