//! Calls that come together share a run of their script: what comes of them is what would if each had come alone.

use crate::races::Dice;
use crate::world::{KEY, NOON, World, ms, no_credentials, settled};
use fred::prelude::*;
use futures_util::future::join_all;
use proxium::store::name;
use proxium_wire::{AdmitRequest, Limit, Release, SettleRequest, admit_reply::Outcome, settlement::End};
use std::collections::{BTreeMap, HashMap};

const IDS: u64 = 40;
const NEXT_MONTH: &str = "2100-02-01T00:00:00Z";

/// What happens at one time.
enum Events {
    Admissions(Vec<AdmitRequest>),
    Ends(Vec<SettleRequest>),
    Clock(i64),
}

fn events(world: &World, dice: &mut Dice, now: &mut i64) -> Events {
    let id = |dice: &mut Dice| format!("r{}", dice.roll(IDS));
    let source = |dice: &mut Dice| ["", "app", "app", "other"][usize::try_from(dice.roll(4)).unwrap()].to_owned();
    let count = dice.roll(9) + 1;
    let admission = |dice: &mut Dice| {
        let mut call = world.call(&id(dice));
        call.normal.hold.output_tokens = dice.roll(90);
        call.normal.hold.nano_usd = i64::try_from(dice.roll(900)).unwrap();
        call.hold_ms = (dice.roll(5) + 1) * 200;
        call.side_call = dice.roll(5) == 0;
        call.source = source(dice);
        call
    };
    let settlement = |dice: &mut Dice| {
        let cost = i64::try_from(dice.roll(700)).unwrap();
        let settle = settled((dice.roll(40), dice.roll(40)), cost, None);
        world.end(&id(dice), &source(dice), End::Settle(Box::new(settle)))
    };
    match dice.roll(20) {
        0..=9 => Events::Admissions((0..count).map(|_| admission(dice)).collect()),
        10..=15 => Events::Ends((0..count).map(|_| settlement(dice)).collect()),
        16..=17 => Events::Ends((0..count).map(|_| world.end(&id(dice), "", End::Release(Release {}))).collect()),
        _ => {
            *now += if dice.roll(12) == 0 { 40_000 } else { i64::try_from(dice.roll(400)).unwrap() };
            Events::Clock(*now)
        }
    }
}

/// All that a project's calls leave in Redis.
async fn everything(world: &World) -> BTreeMap<String, String> {
    let (client, project) = (&world.client, world.project.as_str());
    let mut all = BTreeMap::new();
    let reservations = (0..IDS).map(|n| name::reservation(project, &format!("r{n}")));
    let windows = ["app", "other"].map(|source| name::sender_window(project, source));
    let days = ["21000115", "21000131", "21000201"].map(|day| name::spend_day(project, day));
    let months = ["210001", "210002"].map(|month| name::spend_month(project, month));
    let others = [name::state(project), name::key_window(project, KEY), name::key(project, KEY), name::sender(project, "app")];
    for key in reservations.chain(windows).chain(days).chain(months).chain(others) {
        // All but reservations are hashes.
        let text = match client.hgetall::<BTreeMap<String, String>, _>(&key).await {
            Ok(hash) => format!("{hash:?}"),
            Err(_) => format!("{:?}", client.get::<Value, _>(&key).await.unwrap()),
        };
        all.insert(key, text);
    }
    for key in [name::held_by_key(project, KEY), name::held_by_sender(project, "app")] {
        let mut members: Vec<String> = client.smembers(&key).await.unwrap();
        members.sort();
        all.insert(key, format!("{members:?}"));
    }
    let due: Vec<(String, f64)> = client.zrange(name::due(project), 0, -1, None, false, None, true).await.unwrap();
    all.insert("due".into(), format!("{due:?}"));
    let mut ledger: Vec<_> = world.ledger().await.into_iter().map(BTreeMap::from_iter).collect::<Vec<BTreeMap<_, _>>>();
    ledger.sort();
    all.insert("ledger".into(), format!("{ledger:#?}"));
    all.into_iter().map(|(key, text)| (key.replace(project, "p"), text)).collect()
}

async fn limited() -> World {
    let world = World::new().await;
    world.cap(9_000).await;
    world.ceiling(Limit::TokensPerMinute, 900).await;
    world.ceiling(Limit::MaxParallelCalls, 6).await;
    world.sender_ceiling("app", Limit::CallsPerHour, 60).await;
    world.sender_ceiling("app", Limit::MaxParallelCalls, 4).await;
    world
}

#[tokio::test]
async fn what_comes_together_comes_to_the_same_as_one_by_one() {
    for (seed, begin) in [(1, NOON), (2, NOON), (3, NOON), (4, "2100-01-31T23:59:59.9Z"), (5, "2100-01-31T23:59:59.8Z")] {
        let (together, alone) = (limited().await, limited().await);
        let (mut dice, mut same_dice) = (Dice(seed), Dice(seed));
        let (mut now, mut same_now) = (ms(begin), ms(begin));
        for world in [&together, &alone] {
            world.clock(now).await;
        }
        for round in 0..120 {
            match (events(&together, &mut dice, &mut now), events(&alone, &mut same_dice, &mut same_now)) {
                (Events::Admissions(many), Events::Admissions(same)) => {
                    let many = join_all(many.iter().map(|call| together.admit(call))).await;
                    let mut each = Vec::new();
                    for call in &same {
                        each.push(alone.admit(call).await);
                    }
                    assert_eq!(many, each, "seed {seed}, round {round}");
                }
                (Events::Ends(many), Events::Ends(same)) => {
                    let ended = join_all(many.iter().map(|end| together.money.settle(end))).await;
                    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
                    for end in &same {
                        alone.money.settle(end).await.unwrap();
                    }
                }
                (Events::Clock(instant), Events::Clock(_)) => {
                    together.clock(instant).await;
                    alone.clock(instant).await;
                }
                _ => unreachable!("the dice are the same"),
            }
            if round % 10 < 9 {
                continue;
            }
            let (many, each) = (everything(&together).await, everything(&alone).await);
            let differ: Vec<_> =
                many.iter().filter(|(key, text)| each.get(*key) != Some(text)).map(|(key, text)| (key, text, &each[key])).collect();
            assert!(differ.is_empty(), "seed {seed}, round {round}: {differ:#?}");
        }
        assert_eq!(now >= ms(NEXT_MONTH), begin != NOON, "seed {seed}: the month's end");
    }
}

#[tokio::test]
async fn sums_of_what_comes_together_are_exact() {
    const MOST: i64 = 9_000_000_000_000_000;
    let world = World::new().await;
    let mut calls: Vec<_> = (0..5).map(|n| world.call(&format!("call-{n}"))).collect();
    calls.iter_mut().for_each(|call| call.normal.hold.nano_usd = MOST);
    calls.push(world.call("small"));
    join_all(calls.iter().map(|call| world.admitted(call))).await;
    assert_eq!(world.held().await, 5 * MOST + 1_000);
    let ends: Vec<_> = calls.iter().map(|call| world.end(&call.id, "", End::Settle(Box::new(settled((7, 5), MOST - 1, None))))).collect();
    let ended = join_all(ends.iter().map(|end| world.money.settle(end))).await;
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    assert_eq!(world.state().await, [210_001, 6 * (MOST - 1), 0]);
    let day: HashMap<String, i64> = world.client.hgetall(name::spend_day(&world.project, "21000115")).await.unwrap();
    assert_eq!((day["cost|k1|small|"], day["answers|k1|small|"], day["input|k1|small|"]), (6 * (MOST - 1), 6, 42));
}

#[tokio::test]
async fn what_one_fails_at_is_not_the_others() {
    let world = World::new().await;
    for id in ["a", "b", "c"] {
        world.admitted(&world.call(id)).await;
    }
    let key = name::reservation(&world.project, "b");
    let () = world.client.del(&key).await.unwrap();
    let () = world.client.sadd(&key, "what nobody wrote").await.unwrap();
    let ends = ["a", "b", "c"].map(|id| world.end(id, "", End::Settle(Box::new(settled((7, 5), 640, None)))));
    let ended = join_all(ends.iter().map(|end| world.money.settle(end))).await;
    assert_eq!(ended.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert!(ended[1].as_ref().unwrap_err().to_string().contains("WRONGTYPE"), "{ended:?}");
    assert_eq!((world.spend().await, world.ledger().await.len()), (1_280, 2));
}

#[tokio::test]
async fn a_caller_that_gives_up_before_its_run_is_not_admitted_and_takes_no_other_along() {
    let world = World::new().await;
    let (given_up, stays) = (world.call("given-up"), world.call("stays"));
    {
        let call = world.money.admit(&given_up, no_credentials);
        tokio::pin!(call);
        assert!(futures_util::poll!(&mut call).is_pending());
    }
    assert!(matches!(world.admit(&stays).await, Outcome::Admitted(_)));
    assert_eq!(world.held().await, 1_000);
}
