//! Stored answers: kept, found, purged, and left out when there is no room.

use crate::world::{World, settled};
use fred::prelude::*;
use proxium::store::answers::{Purge, purge};
use proxium::store::name;
use proxium_wire::{AdmitRequest, Call, Hits, Limit, Store, StoredAnswer, admit_reply::Outcome, settlement::End};
use std::time::{Duration, Instant};

pub fn answer(key: u8, model: &str, request_id: &str) -> Store {
    let answer =
        StoredAnswer { body: b"{\"choices\":[]}".to_vec(), model: model.into(), cost_nano_usd: 640, request_id: request_id.into() };
    Store { cache_key: vec![key; 32], answer, ttl_s: 60, ..Store::default() }
}

pub async fn keep(world: &World, id: &str, store: Store) {
    let settle = settled((7, 5), 640, Some(store));
    world.money.settle(&world.end(id, "", End::Settle(Box::new(settle)))).await.unwrap();
}

fn asking(world: &World, id: &str, key: u8) -> AdmitRequest {
    let mut call = world.call(id);
    call.normal.cache_key = vec![key; 32];
    call
}

pub async fn is_hit(world: &World, id: &str, key: u8) -> bool {
    matches!(world.admit(&asking(world, id, key)).await, Outcome::Hit(_))
}

#[tokio::test]
async fn a_hit_is_free_and_uses_no_call_slot() {
    let world = World::new().await;
    world.ceiling(Limit::CallsPerHour, 1).await;
    world.admitted(&world.call("paid")).await;
    keep(&world, "paid", answer(1, "small", "paid")).await;
    let Outcome::Hit(hit) = world.admit(&asking(&world, "hit", 1)).await else { panic!("a capped key still gets an exact hit") };
    assert_eq!((hit.answer, hit.charged_nano_usd), (answer(1, "small", "paid").answer, 0));
    assert_eq!((world.key_window().await, world.state().await), ([1, 1, 12], [210_001, 640, 0]));
    assert!(!is_hit(&world, "other", 2).await);
    let until = Instant::now() + Duration::from_secs(5);
    while world.ledger().await.len() < 2 {
        assert!(Instant::now() < until, "the hit is not in the ledger");
    }
    let record = &world.ledger().await[1];
    for (field, value) in [("id", "hit"), ("kind", "hit"), ("model", "small"), ("cached", "1"), ("cost_nano_usd", "0"), ("calls", "0")] {
        assert_eq!(record[field], value, "{field}");
    }
}

#[tokio::test]
async fn hits_that_a_filter_counted_are_recorded_once_for_each_batch_and_take_nothing() {
    let world = World::new().await;
    world.ceiling(Limit::CallsPerHour, 0).await;
    let batch = |count| End::Hits(Hits { call: Call { requested_model: "fast".into(), ..Call::default() }, model: "small".into(), count });
    for (id, count) in [("hits_1", 7), ("hits_2", 2), ("hits_1", 7)] {
        world.money.settle(&world.end(id, "jane", batch(count))).await.unwrap();
    }
    let told = |record: &std::collections::HashMap<String, String>| {
        ["id", "kind", "hits", "source", "model", "requested_model", "calls", "cost_nano_usd", "cached"].map(|name| record[name].clone())
    };
    let ledger: Vec<_> = world.ledger().await.iter().map(told).collect();
    let expected = |id: &str, count: &str| [id, "hit", count, "jane", "small", "fast", "0", "0", "1"].map(str::to_owned);
    assert_eq!(ledger, [expected("hits_1", "7"), expected("hits_2", "2")]);
    assert_eq!((world.key_window().await, world.state().await[1..].to_vec()), ([0, 0, 0], vec![0, 0]));
    // Of a project that is gone there is nothing to be told, and the filter need not keep it.
    let gone = World::new().await;
    let () = gone.client.del(vec![name::project(&gone.project), name::state(&gone.project)]).await.unwrap();
    gone.money.settle(&gone.end("hits_3", "", batch(1))).await.unwrap();
}

#[tokio::test]
async fn another_project_never_gets_the_answer() {
    let (one, other) = (World::new().await, World::new().await);
    keep(&one, "a", answer(1, "small", "a")).await;
    assert!(is_hit(&one, "b", 1).await);
    assert!(!is_hit(&other, "c", 1).await);
}

#[tokio::test]
async fn an_answer_lives_for_its_time() {
    let world = World::new().await;
    keep(&world, "a", answer(1, "small", "a")).await;
    let key = name::answer(&world.project, &hex::encode([1; 32]));
    let ttl: i64 = world.client.ttl(key).await.unwrap();
    assert!((50..=60).contains(&ttl), "{ttl}");
    keep(&world, "b", Store { ttl_s: 0, ..answer(2, "small", "b") }).await;
    assert!(!is_hit(&world, "c", 2).await);
}

#[tokio::test]
async fn a_purge_forgets_by_project_model_or_request() {
    let world = World::new().await;
    for (key, model) in [(1, "small"), (2, "small"), (3, "odd|name"), (4, "big")] {
        let id = format!("r{key}");
        keep(&world, &id, answer(key, model, &id)).await;
    }
    assert_eq!(purge(&world.client, &world.project, &Purge::RequestId("r1".into())).await.unwrap().len(), 1);
    assert!(!is_hit(&world, "a", 1).await && is_hit(&world, "b", 2).await);
    assert_eq!(purge(&world.client, &world.project, &Purge::Model("odd|name".into())).await.unwrap().len(), 1);
    assert!(!is_hit(&world, "c", 3).await && is_hit(&world, "d", 4).await);
    assert_eq!(purge(&world.client, &world.project, &Purge::Project).await.unwrap().len(), 2);
    assert!(!is_hit(&world, "e", 2).await && !is_hit(&world, "f", 4).await);
    assert_eq!(purge(&world.client, &world.project, &Purge::Project).await.unwrap().len(), 0);
}

#[tokio::test]
async fn a_repeated_settlement_does_not_bring_back_a_purged_answer() {
    let world = World::new().await;
    keep(&world, "a", answer(1, "small", "a")).await;
    purge(&world.client, &world.project, &Purge::Project).await.unwrap();
    keep(&world, "a", answer(1, "small", "a")).await;
    assert!(!is_hit(&world, "b", 1).await);
}

#[tokio::test]
async fn expired_entries_leave_the_index() {
    let world = World::new().await;
    let () = world.client.zadd(name::answers(&world.project), None, None, false, false, (1.0, "00|small|old")).await.unwrap();
    keep(&world, "a", answer(1, "small", "a")).await;
    let entries: Vec<String> = world.client.zrange(name::answers(&world.project), 0, -1, None, false, None, false).await.unwrap();
    assert_eq!(entries, [format!("{}|small|a", hex::encode([1; 32]))]);
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_a_miss() {
    let world = World::new().await;
    let key = name::answer(&world.project, &hex::encode([1; 32]));
    let () = world.client.set(key, "not a stored answer", None, None, false).await.unwrap();
    assert!(matches!(world.admit(&asking(&world, "a", 1)).await, Outcome::Admitted(_)));
}
