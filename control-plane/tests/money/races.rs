//! Many calls at once over several control planes, and any order of events.

use crate::redis::connected;
use crate::world::{NOON, World, ms, no_credentials};
use proxium::store::Money;
use proxium_wire::{Limit, admit_reply::Outcome};
use std::collections::HashMap;

/// 200 calls over two control planes; how many pass.
async fn passed_of_200(world: &World, tokens: u64) -> usize {
    let other = connected(&world.home.url).await;
    let monies = [world.money.clone(), Money::new(other.clone(), other)];
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..200 {
        let money = monies[n % 2].clone();
        let mut request = world.call(&format!("call-{n}"));
        request.source = "app".into();
        request.normal.hold.output_tokens = tokens - request.normal.hold.input_tokens;
        calls.spawn(async move { money.admit(&request, no_credentials).await.unwrap().outcome.unwrap() });
    }
    calls.join_all().await.iter().filter(|outcome| matches!(outcome, Outcome::Admitted(_))).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_as_many_parallel_calls_pass_as_the_limit_lets() {
    for limit in [Limit::CallsPerHour, Limit::RequestsPerMinute, Limit::TokensPerMinute, Limit::MonthlyCap] {
        for of_sender in [false, true] {
            let world = World::new().await;
            let value = match limit {
                Limit::TokensPerMinute => 1_000,
                Limit::MonthlyCap => 10_000,
                _ => 10,
            };
            match (limit, of_sender) {
                (Limit::MonthlyCap, true) => continue,
                (Limit::MonthlyCap, false) => world.cap(10_000).await,
                (_, true) => world.sender_ceiling("app", limit, value).await,
                (_, false) => world.ceiling(limit, value).await,
            }
            assert_eq!(passed_of_200(&world, 100).await, 10, "{limit:?}, of the sender: {of_sender}");
            assert_eq!((world.key_window().await, world.held().await), ([10, 10, 1_000], 10_000));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cap_that_fits_one_call_lets_one_of_many_pass() {
    let world = World::new().await;
    world.cap(1_999).await;
    assert_eq!(passed_of_200(&world, 100).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_settlements_of_one_call_count_once() {
    let world = World::new().await;
    world.admitted(&world.call("a")).await;
    let mut settlements = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (money, request) = (
            world.money.clone(),
            world.end("a", "", proxium_wire::settlement::End::Settle(Box::new(crate::world::settled((7, 5), 640, None)))),
        );
        settlements.spawn(async move { money.settle(&request).await.unwrap() });
    }
    settlements.join_all().await;
    assert_eq!((world.state().await, world.ledger().await.len()), ([210_001, 640, 0], 1));
}

/// Numbers that look random and are the same each time.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[tokio::test]
async fn whatever_happens_in_whatever_order_ledger_windows_and_spend_agree() {
    for seed in 1..=12 {
        let (world, mut dice) = (World::new().await, Dice(seed));
        world.cap(12_000).await;
        world.ceiling(Limit::TokensPerMinute, 700).await;
        world.sender_ceiling("app", Limit::TokensPerMinute, 400).await;
        let mut now = ms(NOON);
        let mut held = HashMap::new();
        for _ in 0..250 {
            let id = format!("r{}", dice.roll(60));
            match dice.roll(6) {
                0..=2 => {
                    let mut call = world.call(&id);
                    call.normal.hold.output_tokens = dice.roll(90);
                    call.normal.hold.nano_usd = i64::try_from(dice.roll(900)).unwrap();
                    call.hold_ms = dice.roll(5) * 100;
                    call.side_call = dice.roll(5) == 0;
                    call.source = if dice.roll(2) == 0 { "app".into() } else { String::new() };
                    let [_, spend, before] = world.state().await;
                    if matches!(world.admit(&call).await, Outcome::Admitted(_)) && held.insert(id, ()).is_none() {
                        assert!(spend + before + call.normal.hold.nano_usd <= 12_000, "admitted over the cap");
                        assert!(world.key_window().await[2] <= 700 || call.side_call, "admitted over the ceiling");
                    }
                }
                3 => world.settle(&id, (dice.roll(40), dice.roll(40)), i64::try_from(dice.roll(700)).unwrap()).await,
                4 => world.release(&id).await,
                _ => {
                    now += i64::try_from(dice.roll(50)).unwrap();
                    world.clock(now).await;
                }
            }
        }
        // All within one window, so nothing has left it. What is still held is counted, but in no ledger yet.
        let (mut calls, mut tokens, mut money) = (0, 0, 0);
        for id in (0..60).map(|n| format!("r{n}")) {
            let [held_calls, held_tokens, held_money] = world.held_by(&id).await;
            calls += held_calls;
            tokens += held_tokens;
            money += held_money;
        }
        let [_, spend, on_hold] = world.state().await;
        assert_eq!(spend, world.ledger_sum("cost_nano_usd").await, "seed {seed}");
        assert_eq!(on_hold, money, "seed {seed}");
        let (calls, tokens) = (calls + world.ledger_sum("calls").await, tokens + world.ledger_sum("tokens").await);
        assert_eq!(world.key_window().await, [calls, calls, tokens], "seed {seed}");
        assert!(now - ms(NOON) < 60_000);
    }
}
