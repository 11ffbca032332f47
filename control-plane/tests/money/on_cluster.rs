//! The money of `main.rs` on a Redis Cluster of three masters: each test's project is in a slot of its own.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail where it stands")]

#[path = "../common/cluster.rs"]
mod cluster;
#[path = "../common/redis.rs"]
mod redis;
mod world;

mod answers;
mod budgets;
mod ends;
mod limits;
mod masters;
mod months;
mod near;
mod races;
mod room;
mod schedules;
mod together;

/// How many random schedules are tried: fewer, for each takes as long as on one Redis, and what differs here is where a project is.
const SCHEDULES: u32 = 30;

fn home() -> redis::Home {
    cluster::shared()
}
