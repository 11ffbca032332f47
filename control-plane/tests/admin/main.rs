//! The two ports of a control plane on a real Redis: what people write, and what filters then hear.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests fail as tests do")]

#[path = "../common/cluster.rs"]
mod cluster;
#[path = "../common/redis.rs"]
mod redis;
mod world;

mod access;
mod changes;
mod keys;
mod masters;
mod outage;
mod projects;
mod secrets;
mod tokens;
