//! Money on a real Redis: limits, reservations, settlements, stored answers.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail where it stands")]

#[path = "../common/redis.rs"]
mod redis;
mod world;

mod answers;
mod budgets;
mod ends;
mod limits;
mod months;
mod near;
mod races;
mod schedules;
