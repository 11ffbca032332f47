//! What is done to a Redis of a test's own, and so is tested on one alone: it is filled, stopped, or told to forget its functions.

use crate::answers::{answer, is_hit, keep};
use crate::redis::Redis;
use crate::room::limit_memory;
use crate::world::{World, no_credentials};
use fred::prelude::*;
use proxium::store::name;
use proxium_wire::{Limit, admit_reply::Outcome};
use std::sync::Arc;

#[tokio::test]
async fn answers_are_not_stored_when_redis_is_short_of_room_but_money_is() {
    for (policy, stored) in [("noeviction", false), ("allkeys-lru", true)] {
        let world = World::on(Arc::new(Redis::start(&["--save", ""]))).await;
        limit_memory(&world, &world.home.nodes[0], policy, 85).await;
        keep(&world, "a", answer(1, "small", "a")).await;
        assert_eq!(is_hit(&world, "b", 1).await, stored, "{policy}");
        assert_eq!(world.spend().await, 640);
    }
}

#[tokio::test]
async fn a_full_redis_admits_no_call_but_lets_every_call_end() {
    let world = World::on(Arc::new(Redis::start(&["--save", ""]))).await;
    for id in ["settled", "released"] {
        world.admitted(&world.call(id)).await;
    }
    limit_memory(&world, &world.home.nodes[0], "noeviction", 120).await;
    assert!(world.money.admit(&world.call("new"), no_credentials).await.is_err());
    world.settle("settled", (7, 5), 640).await;
    world.release("released").await;
    assert_eq!((world.key_window().await, world.state().await), ([1, 1, 12], [210_001, 640, 0]));
}

#[tokio::test]
async fn a_control_plane_whose_functions_a_full_redis_does_not_take_is_not_ready() {
    let world = World::on(Arc::new(Redis::start(&["--save", ""]))).await;
    let node = &world.home.nodes[0];
    limit_memory(&world, node, "noeviction", 120).await;
    assert!(world.money.ready().await.unwrap_err().to_string().contains("OOM"));
    node.tell("CONFIG SET maxmemory 0");
    world.money.ready().await.unwrap();
    // Calls that were admitted can end from now on.
    limit_memory(&world, node, "noeviction", 120).await;
    world.money.ready().await.unwrap();
    world.release("unknown").await;
}

#[tokio::test]
async fn holds_of_the_first_versions_end_as_others_do() {
    let world = World::on(Arc::new(Redis::start(&["--save", ""]))).await;
    for id in ["settled", "released", "due"] {
        world.admitted(&world.call(id)).await;
        // As they were kept: hashes of texts.
        const AS_BEFORE: &str = "local r = { cmsgpack.unpack(redis.call('GET', KEYS[1])) }
            redis.call('DEL', KEYS[1])
            redis.call('HSET', KEYS[1], 'state', r[1], 'kind', r[2], 'soft_cap', r[3], 'key_id', r[4], 'source', r[5], 'at', r[6], 'month', r[7],
                'calls', r[8], 'tokens', r[9], 'hold', r[10], 'neg_hold', -r[10], 'input', r[11], 'output', r[12], 'endpoint', r[13],
                'requested_model', r[14], 'resolved_model', r[15], 'end_user', r[16], 'started_at_ms', r[17])";
        let () = world.client.eval(AS_BEFORE, name::reservation(&world.project, id), ()).await.unwrap();
    }
    world.settle("settled", (7, 5), 640).await;
    world.release("released").await;
    let () = world.client.zadd(name::due(&world.project), None, None, false, false, (1.0, "due")).await.unwrap();
    world.admitted(&world.call("next")).await;
    // What was due is charged at its estimate.
    assert_eq!((world.state().await[1..].to_vec(), world.ledger().await.len()), (vec![640 + 1_000, 1_000], 2));
    world.settle("due", (7, 5), 640).await;
    assert_eq!(world.state().await[1..], [640 + 640, 1_000]);
}

#[tokio::test]
async fn functions_that_redis_forgot_are_loaded_again() {
    let world = World::on(Arc::new(Redis::start(&["--save", ""]))).await;
    world.admitted(&world.call("a")).await;
    let () = world.client.function_flush(false).await.unwrap();
    world.settle("a", (7, 5), 640).await;
    assert!(matches!(world.admit(&world.call("b")).await, Outcome::Admitted(_)));
}

#[tokio::test]
async fn what_was_answered_survives_a_crash_of_redis() {
    const SETTINGS: &[&str] = &["--save", "", "--appendonly", "yes", "--appendfsync", "always"];
    let world = World::on(Arc::new(Redis::start(SETTINGS))).await;
    world.ceiling(Limit::CallsPerHour, 3).await;
    world.admitted(&world.call("a")).await;
    world.admitted(&world.call("b")).await;
    world.settle("a", (7, 5), 640).await;
    world.home.nodes[0].crash_and_restart(SETTINGS);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    // The client finds its way back by itself.
    while world.money.sweep_all().await.is_err() {
        assert!(std::time::Instant::now() < until, "no connection after the restart");
        tokio::task::yield_now().await;
    }
    assert_eq!((world.key_window().await, world.state().await), ([2, 2, 42], [210_001, 640, 1_000]));
    world.settle("a", (7, 5), 640).await;
    world.settle("b", (7, 5), 640).await;
    world.admitted(&world.call("c")).await;
    world.refused(&world.call("d")).await;
    assert_eq!(world.state().await, [210_001, 1_280, 1_000]);
}

#[tokio::test]
async fn calls_of_a_project_that_come_together_share_runs() {
    let world = World::on(Arc::new(Redis::start(&["--save", ""]))).await;
    world.admitted(&world.call("first")).await;
    let () = world.client.custom(fred::cmd!("CONFIG"), vec!["RESETSTAT"]).await.unwrap();
    let calls: Vec<_> = (0..200).map(|n| world.call(&format!("call-{n}"))).collect();
    futures_util::future::join_all(calls.iter().map(|call| world.admitted(call))).await;
    let stats: String = world.client.custom(fred::cmd!("INFO"), vec!["commandstats"]).await.unwrap();
    let of = |command: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls="))).unwrap();
        line.split(',').next().unwrap().parse::<u64>().unwrap()
    };
    // 64 at most in each.
    assert_eq!((of("fcall"), of("zadd"), of("hmget") < 40), (4, 4, true), "{stats}");
}
