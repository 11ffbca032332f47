//! Settling, releasing, expiring: each in any order, each twice.

use crate::world::{KEY, NOON, World, ms, settled};
use fred::prelude::*;
use proxium::store::{name, spend};
use proxium_wire::{Limit, NanoUsd, settlement::End};

#[tokio::test]
async fn a_settlement_replaces_the_hold_by_what_was_used() {
    let world = World::new().await;
    world.admitted(&world.call("a")).await;
    world.settle("a", (7, 5), 640).await;
    assert_eq!((world.key_window().await, world.state().await), ([1, 1, 12], [210_001, 640, 0]));
    let ledger = world.ledger().await;
    let expected = [
        ("id", "a"),
        ("kind", "call"),
        ("key_id", KEY),
        ("source", ""),
        ("end_user", "ada"),
        ("endpoint", "chat"),
        ("requested_model", "fast"),
        ("resolved_model", "small"),
        ("model", "small"),
        ("provider", "openai"),
        ("month", "210001"),
        ("cost_nano_usd", "640"),
        ("calls", "1"),
        ("tokens", "12"),
        ("input_tokens", "7"),
        ("output_tokens", "5"),
        ("cached_input_tokens", "0"),
        ("estimated", "0"),
        ("abandoned", "0"),
        ("cached", "0"),
        ("attempts", "big status_500 12, small ok 340"),
        ("latency_ms", "352"),
        ("started_at_ms", "1700000000000"),
    ];
    for (field, value) in expected {
        assert_eq!(ledger[0][field], value, "{field}");
    }
}

#[tokio::test]
async fn a_token_ceiling_counts_what_answers_use() {
    let world = World::new().await;
    world.ceiling(Limit::TokensPerMinute, 30).await;
    world.admitted(&world.call("a")).await;
    world.settle("a", (100, 50), 1).await;
    world.refused(&world.call("b")).await;
    world.clock(ms(NOON) + 61_000).await;
    world.admitted(&world.call("c")).await;
}

#[tokio::test]
async fn a_settlement_delivered_twice_counts_once() {
    let world = World::new().await;
    world.admitted(&world.call("a")).await;
    for _ in 0..3 {
        world.settle("a", (7, 5), 640).await;
    }
    world.release("a").await;
    assert_eq!((world.key_window().await, world.state().await), ([1, 1, 12], [210_001, 640, 0]));
    assert_eq!(world.ledger().await.len(), 1);
}

#[tokio::test]
async fn an_admission_delivered_twice_takes_once() {
    let world = World::new().await;
    world.ceiling(Limit::CallsPerHour, 1).await;
    world.admitted(&world.call("a")).await;
    assert_eq!(world.admitted(&world.call("a")).await.rate_limit.requests.unwrap().remaining, 0);
    assert_eq!((world.key_window().await, world.held().await), ([1, 1, 30], 1_000));
}

#[tokio::test]
async fn a_release_gives_everything_back() {
    let world = World::new().await;
    world.ceiling(Limit::CallsPerHour, 1).await;
    for id in ["a", "b", "c"] {
        world.admitted(&world.call(id)).await;
        world.release(id).await;
        world.release(id).await;
    }
    assert_eq!((world.key_window().await, world.state().await), ([0, 0, 0], [210_001, 0, 0]));
    assert_eq!(world.ledger().await.len(), 0);
}

#[tokio::test]
async fn an_admission_overtaken_by_its_release_is_refused() {
    let world = World::new().await;
    world.release("a").await;
    world.refused(&world.call("a")).await;
    assert_eq!((world.key_window().await, world.held().await), ([0, 0, 0], 0));
}

#[tokio::test]
async fn an_admission_of_a_settled_or_expired_call_is_refused() {
    let world = World::new().await;
    world.settle("a", (7, 5), 640).await;
    world.refused(&world.call("a")).await;
    let mut call = world.call("b");
    call.hold_ms = 0;
    world.admitted(&call).await;
    world.refused(&call).await;
    assert_eq!(world.ledger().await[1]["kind"], "expired");
}

#[tokio::test]
async fn a_settlement_of_an_unknown_call_charges_it_in_full_now() {
    let world = World::new().await;
    world.sender_ceiling("app", Limit::CallsPerHour, 10).await;
    let settle = world.end("a", "app", End::Settle(Box::new(settled((7, 5), 640, None))));
    world.money.settle(&settle).await.unwrap();
    world.money.settle(&settle).await.unwrap();
    assert_eq!((world.key_window().await, world.state().await), ([1, 1, 12], [210_001, 640, 0]));
    assert_eq!(world.window(&name::sender_window(&world.project, "app")).await, [1, 1, 12]);
    let ledger = world.ledger().await;
    assert_eq!((ledger.len(), ledger[0]["kind"].as_str(), ledger[0]["source"].as_str()), (1, "call", "app"));
}

#[tokio::test]
async fn a_settlement_of_an_unknown_side_call_is_money_and_no_call() {
    let world = World::new().await;
    world.ceiling(Limit::CallsPerHour, 1).await;
    world.sender_ceiling("app", Limit::TokensPerMinute, 30).await;
    let mut settle = world.end("call_embedding", "app", End::Settle(Box::new(settled((70, 0), 640, None))));
    settle.settlements[0].side_call = true;
    world.money.settle(&settle).await.unwrap();
    world.money.settle(&settle).await.unwrap();
    assert_eq!((world.key_window().await, world.state().await), ([0, 0, 0], [210_001, 640, 0]));
    assert_eq!(world.window(&name::sender_window(&world.project, "app")).await, [0, 0, 0]);
    for (field, sum) in [("cost_nano_usd", 640), ("calls", 0), ("tokens", 0), ("input_tokens", 70)] {
        assert_eq!(world.ledger_sum(field).await, sum, "{field}");
    }
    let day = "2100-01-15".parse().unwrap();
    let report = spend::report(&world.client, &world.project, day, day, spend::By::Source).await.unwrap();
    assert_eq!((report["app"].calls, report["app"].cost, report["app"].estimated_calls), (0, NanoUsd(640), 0));
    // What took a slot or tokens would be refused now.
    let call = world.call("a");
    world.admitted(&proxium_wire::AdmitRequest { source: "app".into(), ..call }).await;
}

#[tokio::test]
async fn a_due_hold_is_charged_at_its_estimate() {
    let world = World::new().await;
    world.admitted(&world.call("a")).await;
    world.clock(ms(NOON) + 59_999).await;
    world.admitted(&world.call("b")).await;
    assert_eq!(world.state().await, [210_001, 0, 2_000]);
    world.clock(ms(NOON) + 60_000).await;
    world.admitted(&world.call("c")).await;
    assert_eq!(world.state().await, [210_001, 1_000, 2_000]);
    assert_eq!(world.key_window().await, [3, 3, 90], "its call and its tokens stay counted");
    let ledger = world.ledger().await;
    assert_eq!((ledger[0]["kind"].as_str(), ledger[0]["cost_nano_usd"].as_str()), ("expired", "1000"));
    assert_eq!((ledger[0]["calls"].as_str(), ledger[0]["tokens"].as_str()), ("1", "30"));
}

#[tokio::test]
async fn a_lost_release_does_not_lock_the_key_for_ever() {
    let world = World::new().await;
    world.cap(10_000).await;
    for n in 0..10 {
        world.admitted(&world.call(&n.to_string())).await;
    }
    for n in 0..9 {
        world.release(&n.to_string()).await;
    }
    world.clock(ms(NOON) + 60_000).await;
    for n in 10..19 {
        world.admitted(&world.call(&n.to_string())).await;
    }
    assert_eq!(world.refused(&world.call("over")).await.limit, i32::from(Limit::MonthlyCap));
    assert_eq!(world.state().await, [210_001, 1_000, 9_000]);
}

#[tokio::test]
async fn a_late_settlement_corrects_an_expired_hold_by_the_difference() {
    for (cost, difference) in [(640, "-360"), (1_000, "0"), (9_007_199_254_740_993 - 8_000_000_000_000, "8999199254739993")] {
        let world = World::new().await;
        let mut call = world.call("a");
        call.hold_ms = 0;
        world.admitted(&call).await;
        world.admit(&world.call("b")).await;
        world.release("b").await;
        world.settle("a", (7, 5), cost).await;
        world.settle("a", (7, 5), cost).await;
        assert_eq!((world.key_window().await, world.state().await), ([1, 1, 12], [210_001, cost, 0]));
        let ledger = world.ledger().await;
        assert_eq!(ledger.len(), 2);
        assert_eq!((ledger[1]["kind"].as_str(), ledger[1]["cost_nano_usd"].as_str()), ("correction", difference));
        assert_eq!((ledger[1]["calls"].as_str(), ledger[1]["tokens"].as_str()), ("0", "-18"));
        assert_eq!((world.ledger_sum("input_tokens").await, world.ledger_sum("output_tokens").await), (7, 5));
    }
}

#[tokio::test]
async fn a_late_release_takes_back_what_an_expiry_charged() {
    let world = World::new().await;
    let mut call = world.call("a");
    call.hold_ms = 0;
    world.admitted(&call).await;
    world.refused(&call).await;
    world.release("a").await;
    world.release("a").await;
    world.settle("a", (7, 5), 640).await;
    assert_eq!((world.key_window().await, world.state().await), ([0, 0, 0], [210_001, 0, 0]));
    for field in ["cost_nano_usd", "calls", "tokens", "input_tokens", "output_tokens"] {
        assert_eq!(world.ledger_sum(field).await, 0, "{field}");
    }
}

#[tokio::test]
async fn a_settlement_changes_the_bucket_of_its_admission() {
    let world = World::new().await;
    world.ceiling(Limit::TokensPerMinute, 1_000).await;
    world.admitted(&world.call("a")).await;
    world.clock(ms(NOON) + 30_000).await;
    world.admitted(&world.call("b")).await;
    world.settle("a", (400, 100), 1).await;
    assert_eq!(world.key_window().await, [2, 2, 530]);
    world.clock(ms(NOON) + 61_000).await;
    world.admitted(&world.call("c")).await;
    assert_eq!(world.key_window().await, [3, 2, 60], "they left with the bucket of the call they belong to");
}

#[tokio::test]
async fn a_settlement_changes_nothing_in_a_bucket_that_is_gone() {
    let world = World::new().await;
    let mut call = world.call("a");
    call.hold_ms = 300_000;
    world.admitted(&call).await;
    world.clock(ms(NOON) + 120_000).await;
    world.admitted(&world.call("b")).await;
    world.settle("a", (400, 100), 640).await;
    assert_eq!(world.key_window().await, [2, 1, 30]);
    assert_eq!(world.spend().await, 640, "the money of its month is counted all the same");
}

#[tokio::test]
async fn a_release_after_its_window_was_deleted_makes_no_room() {
    let world = World::new().await;
    world.admitted(&world.call("a")).await;
    let () = world.client.del(name::key_window(&world.project, KEY)).await.unwrap();
    world.release("a").await;
    world.clock(ms(NOON) + 1_000).await;
    world.admitted(&world.call("b")).await;
    assert_eq!(world.key_window().await, [1, 1, 30]);
}

#[tokio::test]
async fn a_sweep_charges_every_due_hold_of_every_project_once() {
    let worlds = [World::new().await, World::new().await];
    for world in &worlds {
        world.clock(0).await;
        for n in 0..100 {
            let mut call = world.call(&n.to_string());
            call.hold_ms = 1;
            world.admitted(&call).await;
        }
    }
    let one = &worlds[0];
    let (a, b) = tokio::join!(one.money.sweep_all(), worlds[1].money.sweep_all());
    let c = one.money.sweep_all().await;
    // Another test's project may have lost its state for good.
    let _ = (a, b, c);
    for world in &worlds {
        let [_, spend, held] = world.state().await;
        assert_eq!((spend, held, world.ledger().await.len()), (100_000, 0, 100));
    }
}

#[tokio::test]
async fn one_settlement_that_fails_does_not_hold_up_the_others() {
    let (broken, whole) = (World::new().await, World::new().await);
    broken.admitted(&broken.call("a")).await;
    whole.admitted(&whole.call("a")).await;
    let () = broken.client.del(name::state(&broken.project)).await.unwrap();
    let mut request = broken.end("a", "", End::Settle(Box::new(settled((7, 5), 640, None))));
    request.settlements.extend(whole.end("a", "", End::Settle(Box::new(settled((7, 5), 640, None)))).settlements);
    assert!(broken.money.settle(&request).await.is_err());
    assert_eq!(whole.spend().await, 640);
    for (field, value) in [("month", "210001"), ("spend", "0"), ("held", "1000")] {
        broken.set(&name::state(&broken.project), field, value).await;
    }
    broken.money.settle(&request).await.unwrap();
    assert_eq!((broken.spend().await, whole.spend().await), (640, 640));
}

#[tokio::test]
async fn a_settlement_of_a_deleted_project_is_dropped() {
    let world = World::new().await;
    world.admitted(&world.call("a")).await;
    let () = world.client.del(vec![name::project(&world.project), name::state(&world.project)]).await.unwrap();
    world.settle("a", (7, 5), 640).await;
    assert_eq!(world.ledger().await.len(), 0);
}
