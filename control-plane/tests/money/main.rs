//! Money on a real Redis: limits, reservations, settlements, stored answers. `on_cluster.rs` is the same on a Redis Cluster.

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
mod one_redis;
mod races;
mod room;
mod schedules;
mod together;

/// How many random schedules are tried.
const SCHEDULES: u32 = 200;

fn home() -> redis::Home {
    redis::Redis::shared().into()
}
