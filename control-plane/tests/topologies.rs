//! The money of a project when the master that has it dies, with Sentinel and in a cluster. (All else on a cluster: `money/on_cluster.rs`.)

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::print_stdout, reason = "a test may fail where it stands")]

#[path = "common/cluster.rs"]
mod cluster;
#[path = "common/redis.rs"]
mod redis;
#[path = "money/world.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod world;

use crate::redis::{Redis, connected, free_port};
use crate::world::World;
use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand};
use proxium::store::name;
use proxium_wire::admit_reply::Outcome;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn home() -> redis::Home {
    Redis::shared().into()
}

const NO_DISK: [&str; 4] = ["--save", "", "--appendonly", "no"];
const AT_ONCE: i64 = 16;
const BOUND: Duration = Duration::from_secs(30);

/// One command on one node.
async fn tell(client: &Client, command: &'static str, args: &[&str]) -> Result<Value, fred::error::Error> {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    client.custom(CustomCommand::new_static(command, ClusterHash::Random, false), args).await
}

/// Until it is so, or half a minute.
async fn eventually<F: Future<Output = bool>>(what: &str, so: impl Fn() -> F) {
    let until = Instant::now() + BOUND;
    while !so().await {
        assert!(Instant::now() < until, "{what}: not in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn replication(redis: &Redis) -> String {
    tell(&redis.client().await, "INFO", &["replication"]).await.unwrap().into_string().unwrap_or_default()
}

/// A master, two replicas of it and three sentinels that want two voices.
async fn sentinels() -> (Arc<Redis>, [Arc<Redis>; 2], Vec<Redis>, Client) {
    let master_port = free_port();
    let master = Arc::new(Redis::start_on(master_port, &NO_DISK));
    let of = format!("127.0.0.1 {master_port}");
    let replica =
        || Arc::new(Redis::start_on(free_port(), &[&NO_DISK[..], &["--replicaof", &of, "--repl-diskless-sync-delay", "0"]].concat()));
    let replicas = [replica(), replica()];
    for replica in &replicas {
        eventually("the replica is in step", || async { replication(replica).await.contains("master_link_status:up") }).await;
    }
    let sentinels: Vec<(u16, Redis)> = (0..3)
        .map(|_| {
            let port = free_port();
            let file = std::env::temp_dir().join(format!("proxium-sentinel-{}-{port}.conf", std::process::id()));
            let conf = format!(
                "sentinel monitor money 127.0.0.1 {master_port} 2\nsentinel down-after-milliseconds money 500\n\
                 sentinel failover-timeout money 3000\n"
            );
            std::fs::write(&file, conf).unwrap();
            (port, Redis::start_sentinel(port, &file))
        })
        .collect();
    for (_, sentinel) in &sentinels {
        let client = sentinel.client().await;
        eventually("the sentinels know each other and the replica", || async {
            let known = tell(&client, "INFO", &["sentinel"]).await.unwrap().into_string().unwrap_or_default();
            known.contains("slaves=2,sentinels=3")
        })
        .await;
    }
    let hosts: Vec<String> = sentinels.iter().map(|(port, _)| format!("127.0.0.1:{port}")).collect();
    let url = format!(
        "redis-sentinel://{}?sentinelServiceName=money{}",
        hosts[0],
        hosts[1..].iter().map(|host| format!("&node={host}")).collect::<String>()
    );
    let client = connected(&url).await;
    (master, replicas, sentinels.into_iter().map(|(_, redis)| redis).collect(), client)
}

/// Calls under way while the master is killed, until some pass after it. How many were admitted, failed, and lost with the master.
async fn failover(master: &Redis, mut world: World, wait_for_replicas: u8) -> (i64, i64, i64) {
    world.money = world.money.replicated(wait_for_replicas);
    world.cap(1_000_000).await;
    let (mut admitted, mut failed, mut after, mut killed) = (0_i64, 0, 0, false);
    let until = Instant::now() + BOUND;
    let world = Arc::new(world);
    let mut calls = tokio::task::JoinSet::new();
    for n in 0.. {
        if n >= AT_ONCE {
            match calls.join_next().await.unwrap().unwrap() {
                Ok(Some(Outcome::Admitted(_))) => {
                    admitted += 1;
                    after += i64::from(killed);
                }
                Ok(other) => panic!("neither admitted nor failed: {other:?}"),
                Err(_) => failed += 1,
            }
        }
        if n == 300 {
            // With calls under way.
            master.kill();
            killed = true;
        }
        if after >= 150 {
            break;
        }
        assert!(Instant::now() < until, "no admission after the failover");
        let world = world.clone();
        calls.spawn(async move {
            let reply = world.money.admit(&world.call(&format!("call-{n}")), world::no_credentials).await;
            reply.map(|reply| reply.outcome)
        });
    }
    for ended in calls.join_all().await {
        match ended {
            Ok(_) => admitted += 1,
            Err(_) => failed += 1,
        }
    }
    let lost = admitted - world.held().await / 1_000;
    println!("WAIT {wait_for_replicas}: admitted {admitted}, answered 503 {failed}, lost with the master {lost}");
    (admitted, failed, lost)
}

async fn through_sentinels(wait_for_replicas: u8) -> (i64, i64, i64) {
    let (master, replicas, _sentinels, client) = sentinels().await;
    let world = World::over(replicas[0].clone().into(), client).await;
    let outcome = failover(&master, world, wait_for_replicas).await;
    let roles = [replication(&replicas[0]).await, replication(&replicas[1]).await];
    assert_eq!(roles.iter().filter(|role| role.contains("role:master")).count(), 1, "{roles:?}");
    outcome
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_goes_on_with_the_replica_of_a_master_that_died() {
    let home = cluster::start();
    let replica = cluster::replica_of_the_first(&home);
    let world = loop {
        let world = World::on(home.clone()).await;
        if fred::util::redis_keyslot(name::prefix(&world.project).as_bytes()) <= cluster::LAST_OF_THE_FIRST {
            break world;
        }
    };
    let (admitted, _, lost) = failover(&home.nodes[0], world, 0).await;
    assert!((-AT_ONCE..=AT_ONCE).contains(&lost), "{lost} of {admitted}");
    assert!(replication(&replica).await.contains("role:master"));
}

#[tokio::test(flavor = "multi_thread")]
async fn through_a_failover_calls_pass_or_fail_and_no_more_is_lost_than_was_not_replicated() {
    let (admitted, _, lost) = through_sentinels(0).await;
    // An admission whose answer was lost may stand (and is released or expires); one that was answered may be lost: no more than were
    // under way.
    assert!((-AT_ONCE..=AT_ONCE).contains(&lost), "{lost} of {admitted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_for_a_replica_is_not_lost_with_the_master() {
    let (admitted, _, lost) = through_sentinels(1).await;
    assert!(lost <= 0, "{lost} of {admitted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_replica_that_is_asked_for_nothing_is_admitted() {
    let mut world = World::new().await;
    world.money = world.money.replicated(1);
    let error = world.money.admit(&world.call("a"), world::no_credentials).await.unwrap_err();
    assert!(error.to_string().contains("--redis-wait-replicas"), "{error}");
}
