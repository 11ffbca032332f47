//! What only a cluster can do: a project moves to another master, one master lacks what another has. On clusters of the tests' own.

use crate::answers::{answer, is_hit, keep};
use crate::cluster;
use crate::redis::Redis;
use crate::room::limit_memory;
use crate::world::{World, no_credentials, settled};
use fred::prelude::*;
use fred::types::CustomCommand;
use proxium::store::{Money, name};
use proxium_wire::{Limit, settlement::End};

/// A project whose slot is the first master's.
async fn on_the_first() -> World {
    let home = cluster::start();
    loop {
        let world = World::on(home.clone()).await;
        if slot(&world) <= cluster::LAST_OF_THE_FIRST {
            return world;
        }
    }
}

fn slot(world: &World) -> u16 {
    fred::util::redis_keyslot(name::prefix(&world.project).as_bytes())
}

fn id(node: &Redis) -> String {
    node.tell("CLUSTER MYID").trim().to_owned()
}

/// Nothing of a slot that is half here and half there may be taken for the whole.
#[tokio::test]
async fn while_a_project_moves_to_another_master_nothing_is_decided_and_afterwards_the_books_go_on() {
    let world = on_the_first().await;
    let nodes = &world.home.nodes;
    let ([from, to], slot) = ([&nodes[0], &nodes[1]], slot(&world));
    world.ceiling(Limit::CallsPerHour, 3).await;
    world.cap(3_000).await;
    for id in ["a", "b"] {
        world.admitted(&world.call(id)).await;
    }
    to.tell(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", id(from)));
    from.tell(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", id(to)));
    let asking = to.client().await;
    let there = Money::new(asking.clone(), asking.clone());
    let names: Vec<String> = from.client().await.custom(CustomCommand::new_static("KEYS", None::<u16>, false), vec!["*"]).await.unwrap();
    let names: Vec<&String> = names.iter().filter(|key| key.contains(&format!("{{{}}}", world.project))).collect();
    let settle = world.end("a", "", End::Settle(Box::new(settled((7, 5), 640, None))));
    for moved in 0..=names.len() {
        assert!(world.money.admit(&world.call("c"), no_credentials).await.is_err(), "{moved} of {} are moved", names.len());
        assert!(world.money.settle(&settle).await.is_err(), "{moved} of {} are moved", names.len());
        assert!(world.client.is_connected(), "projects that do not move are served as ever");
        // A client that follows to where the slot will be.
        let () = asking.custom(CustomCommand::new_static("ASKING", None::<u16>, false), Vec::<String>::new()).await.unwrap();
        assert!(there.admit(&world.call("c"), no_credentials).await.is_err(), "{moved} of {} are moved", names.len());
        if let Some(next) = names.get(moved) {
            let (host, port) = to.address().split_once(':').map(|(host, port)| (host.to_owned(), port.to_owned())).unwrap();
            assert_eq!(from.tell(&format!("MIGRATE {host} {port} {next} 0 5000")), "OK");
        }
    }
    for node in [to, from, &nodes[2]] {
        node.tell(&format!("CLUSTER SETSLOT {slot} NODE {}", id(to)));
    }
    assert_eq!((world.key_window().await, world.state().await[1..].to_vec()), ([2, 2, 60], vec![0, 2_000]));
    world.money.settle(&settle).await.unwrap();
    world.admitted(&world.call("c")).await;
    world.refused(&world.call("d")).await;
    assert_eq!((world.key_window().await, world.state().await[1..].to_vec()), ([3, 3, 72], vec![640, 2_000]));
    assert_eq!(from.tell(&format!("CLUSTER COUNTKEYSINSLOT {slot}")), "0", "all of it is with the other master");
}

#[tokio::test]
async fn functions_that_one_master_forgot_are_loaded_again() {
    let world = on_the_first().await;
    let nodes = &world.home.nodes;
    world.admitted(&world.call("a")).await;
    nodes[0].tell("FUNCTION FLUSH");
    world.settle("a", (7, 5), 640).await;
    world.admitted(&world.call("b")).await;
    assert_eq!(world.state().await[1..], [640, 1_000]);
}

#[tokio::test]
async fn answers_are_stored_where_there_is_room_and_not_on_a_master_that_is_short_of_it() {
    let full = on_the_first().await;
    limit_memory(&full, &full.home.nodes[0], "noeviction", 85).await;
    let elsewhere = loop {
        let world = World::on(full.home.clone()).await;
        if slot(&world) > cluster::LAST_OF_THE_FIRST {
            break world;
        }
    };
    // The same control plane: what it knows of one master is not what it knows of another.
    let elsewhere = World { money: full.money.clone(), ..elsewhere };
    for (world, stored) in [(&full, false), (&elsewhere, true), (&full, false)] {
        keep(world, "a", answer(1, "small", "a")).await;
        assert_eq!((is_hit(world, "b", 1).await, world.spend().await), (stored, 640));
    }
}
