//! How tests take a Redis' room away.

use crate::redis::Redis;
use crate::world::World;
use fred::prelude::*;

/// Limits the memory of a project's node to what it uses now, times 100, by `used_percent`. What it uses is made large enough to be steady.
pub async fn limit_memory(world: &World, node: &Redis, policy: &str, used_percent: u64) {
    let ballast = format!("ballast{{{}}}", world.project);
    let _: u64 = world.client.setrange(ballast, 20_000_000, "x").await.unwrap();
    let info = node.tell("INFO memory");
    let used: u64 = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap().trim().parse().unwrap();
    node.tell(&format!("CONFIG SET maxmemory-policy {policy} maxmemory {}", used * 100 / used_percent));
}
