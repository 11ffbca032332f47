//! The money under fire: callers on two Envoys and three control planes, while any of them and Redis are killed and started again.
//!
//! `make test-chaos` runs this alone and prints its report. `PROXIUM_CHAOS_SEED` repeats a run's decisions (not its races),
//! `PROXIUM_CHAOS_SECONDS` lengthens the storm.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test
#![allow(clippy::print_stdout)] // the report

mod clients;
mod storm;
mod tenants;

use clients::{Asked, CLIENTS, DEADLINE_MS, Ended, World};
use fred::prelude::*;
use proxium::mock_provider::Behaviour;
use proxium::store::name;
use proxium_e2e::{BOUND, Stack, catalog, eventually};
use proxium_wire::{Call, Settle, SettleReply, SettleRequest, Settlement, Usage, path, settlement::End};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use storm::{CONTROL_PLANES, ENVOYS, Kills};
use tenants::{Record, Tenant, by_call, number};

/// "call number 000123 of capped" is five words in and, said back, seven out; the second provider is twice as dear.
const COST: [i64; 2] = [75_000, 150_000];
/// What a hold outlives its deadline by.
const GRACE_MS: u64 = 30_000;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// The most that was seen of a tenant's money and windows, beside their limits.
type Highest = [(Option<i64>, i64); 5];

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_killed_no_limit_is_passed_and_the_books_agree() {
    let seed = setting("PROXIUM_CHAOS_SEED").unwrap_or_else(rand::random::<u64>);
    let seconds = setting("PROXIUM_CHAOS_SECONDS").unwrap_or(40);
    println!("chaos: seed {seed}; PROXIUM_CHAOS_SEED={seed} decides the same again");
    let mut stack = Stack::builder().envoys(ENVOYS).control_planes(CONTROL_PLANES).catalog(catalog::both_dialects_patient).start().await;
    let redis = stack.redis_client().await;
    let callers = stack.envoys.iter().map(proxium_e2e::Envoy::caller).collect();
    let world = World { tenants: Tenant::all(&stack).await, callers, stop: AtomicBool::new(false), next: AtomicUsize::new(1) };
    let world = Arc::new(world);
    for (mock, models) in [(&stack.mocks.first, ["m1", "a1"]), (&stack.mocks.second, ["m2", "a2"])] {
        for model in models {
            mock.always(model, Behaviour::answer().after(Duration::from_millis(15)).every(Duration::from_millis(4)));
        }
    }
    let mut dice = StdRng::seed_from_u64(seed);
    let begun = Instant::now();
    let callers: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(clients::run(world.clone(), dice.random()))).collect();
    let watch = tokio::spawn(watch(world.clone(), redis.clone()));
    let kills = storm::rage(&mut stack, &mut dice, begun + Duration::from_secs(seconds)).await;

    // Calm.
    for control_plane in &mut stack.control_planes {
        control_plane.ready().await;
    }
    serves_again(&world).await;
    world.stop.store(true, SeqCst);
    let mut asked = Vec::new();
    for caller in callers {
        asked.extend(caller.await.unwrap());
    }
    let highest = watch.await.unwrap();
    eventually("all outboxes are empty", BOUND, || async {
        for envoy in &stack.envoys {
            match envoy.stat("wasmcustom.proxium_outbox_pending").await {
                0 => {}
                some => return Err(some),
            }
        }
        Ok(())
    })
    .await;
    let left = expire_what_is_left(&redis, &world, &asked, &kills).await;
    let mut ledgers = Vec::new();
    for tenant in &world.tenants {
        ledgers.push(eventually(&format!("the books of {} agree", tenant.name), BOUND, || tenant.books(&redis)).await);
    }
    let provided = provided(&stack);
    for (at, tenant) in world.tenants.iter().enumerate().filter(|(_, tenant)| tenant.tells_calls_apart()) {
        let of: Vec<&Asked> = asked.iter().filter(|asked| asked.tenant == at).collect();
        every_call_is_paid_once(tenant, &of, &ledgers[at], &provided, &kills);
    }
    settled_twice_is_settled_once(&stack, &redis, &world.tenants, &ledgers).await;
    report(&kills, begun.elapsed(), &world.tenants, &asked, &highest, &ledgers, left);
}

/// Looks at every tenant again and again: no limit is passed at any moment.
async fn watch(world: Arc<World>, redis: Client) -> Vec<Highest> {
    let mut highest = vec![Highest::default(); world.tenants.len()];
    while !world.stop.load(SeqCst) {
        for (tenant, highest) in world.tenants.iter().zip(&mut highest) {
            // Redis may be down.
            let Ok(now) = tenant.look(&redis).await else { continue };
            for ((limit, most), (_, seen)) in highest.iter_mut().zip(now) {
                *most = seen.max(*most);
                *limit = None;
            }
            for (at, (limit, seen)) in now.into_iter().enumerate() {
                assert!(limit.is_none_or(|limit| seen <= limit), "{}: {seen} is above {limit:?} (limit {at})", tenant.name);
                highest[at].0 = limit;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    highest
}

async fn serves_again(world: &World) {
    let cached = world.tenants.iter().find(|tenant| !tenant.tells_calls_apart()).unwrap();
    for caller in world.callers.iter().cycle().take(4 * ENVOYS) {
        eventually("both Envoys serve again", BOUND, || async {
            let call = proxium_e2e::Call::chat(&cached.key, &proxium_e2e::chat("m1-a2", "is it over?"));
            match caller.call(&call).await {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(answer.text()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }
}

/// Only what a killed Envoy held is still held, and no longer than a deadline and a grace: as if that were over. How many there were.
async fn expire_what_is_left(redis: &Client, world: &World, asked: &[Asked], kills: &Kills) -> usize {
    let orphans: BTreeSet<usize> = asked.iter().filter(|asked| asked.met_a_kill(kills)).map(|asked| asked.number).collect();
    let mut left = 0;
    for tenant in &world.tenants {
        let project = &tenant.key.project;
        let due = eventually("only what a killed Envoy held is held", BOUND, || async {
            let due: Vec<(String, f64)> =
                redis.zrange(name::due(project), 0, -1, None, false, None, true).await.map_err(|error| error.to_string())?;
            for (id, due) in &due {
                let (at, of) = Stack::hold(redis, project, id).await.map_err(|error| error.to_string())?;
                if !of.parse().is_ok_and(|number: usize| orphans.contains(&number)) {
                    return Err(format!("{id} of call {of:?} in {}", tenant.name));
                }
                assert!(due - at <= (DEADLINE_MS + GRACE_MS) as f64, "{id} is held for {} ms", due - at);
            }
            Ok(due)
        })
        .await;
        left += due.len();
        for (id, _) in due {
            let () = redis.zadd(name::due(project), Some(SetOptions::XX), None, false, false, (1.0, id)).await.unwrap();
        }
    }
    left
}

/// The numbers of the calls that a provider got, of tenants whose texts tell them apart.
fn provided(stack: &Stack) -> BTreeSet<usize> {
    let all = stack.mocks.first.requests().into_iter().chain(stack.mocks.second.requests());
    let number = |body: String| {
        let (number, tenant) = body.split_once("call number ")?.1.split_once(" of ")?;
        if tenant.starts_with("cached") { None } else { number.parse().ok() }
    };
    all.filter_map(|request| number(String::from_utf8_lossy(&request.body).into_owned())).collect()
}

/// What each caller saw, what providers got and what the ledger says are one story.
fn every_call_is_paid_once(tenant: &Tenant, asked: &[&Asked], ledger: &[Record], provided: &BTreeSet<usize>, kills: &Kills) {
    let records = by_call(ledger);
    for call in asked {
        let of = records.get(&call.number).map_or(&[][..], Vec::as_slice);
        let sum = |field: &str| of.iter().map(|record| number(record, field)).sum::<i64>();
        let count = |kind: &str| of.iter().filter(|record| record["kind"] == kind).count();
        let story = || format!("{}: {call:?}\n{of:#?}", tenant.name);
        assert!(count("call") + count("expired") <= 1 && (0..=1).contains(&sum("calls")) && sum("cost_nano_usd") >= 0, "{}", story());
        assert!(count("expired") == 0 || call.met_a_kill(kills), "{}", story());
        assert!(!provided.contains(&call.number) || !of.is_empty(), "a provider was called for nothing: {}", story());
        match &call.ended {
            Ended::Answered { model, .. } => {
                let exact = COST[usize::from(model.ends_with('2'))];
                // Answered before it was settled, which its Envoy then could not: the estimate is never less.
                let exact_or_more =
                    if count("expired") == 1 && of.len() == 1 { sum("cost_nano_usd") >= exact } else { sum("cost_nano_usd") == exact };
                assert!(exact_or_more && sum("calls") == 1, "{}", story());
            }
            Ended::HungUp => assert!(sum("calls") == 1, "{}", story()),
            Ended::Error { status: 429, .. } => assert!(of.is_empty() && !provided.contains(&call.number), "{}", story()),
            Ended::Error { status: 503, .. } => {
                assert!(count("call") == 0 && !provided.contains(&call.number), "{}", story());
            }
            Ended::Error { .. } | Ended::Broken => {}
        }
    }
}

/// What was settled long ago is told again, by everybody and with another cost.
async fn settled_twice_is_settled_once(stack: &Stack, redis: &Client, tenants: &[Tenant], ledgers: &[Vec<Record>]) {
    for (tenant, ledger) in tenants.iter().zip(ledgers) {
        let settle = Settle {
            call: Call::default(),
            usage: Usage { input: 1_000, output: 1_000, ..Usage::default() },
            cost_nano_usd: 1_000_000_000,
            ..Settle::default()
        };
        let again = |record: &Record| Settlement {
            id: record["id"].clone(),
            project: tenant.key.project.clone(),
            key_id: tenant.key.id.clone(),
            source: String::new(),
            end: Some(End::Settle(Box::new(settle.clone()))),
            side_call: false,
        };
        let settled = ledger.iter().filter(|record| record["kind"] == "call").rev().take(10);
        let request = SettleRequest { settlements: settled.map(again).collect() };
        for control_plane in &stack.control_planes {
            let _: SettleReply = control_plane.tell(path::SETTLE, &request).await.unwrap();
        }
        assert_eq!(tenant.books(redis).await.unwrap().len(), ledger.len(), "{}", tenant.name);
    }
}

fn report(kills: &Kills, took: Duration, tenants: &[Tenant], asked: &[Asked], highest: &[Highest], ledgers: &[Vec<Record>], left: usize) {
    let mut killed: BTreeMap<String, usize> = BTreeMap::new();
    kills.iter().for_each(|(part, _)| *killed.entry(part.to_string()).or_default() += 1);
    let killed: Vec<String> = killed.iter().map(|(part, times)| format!("{part} {times}x")).collect();
    println!("{:.0} s; killed and started again: {}", took.as_secs_f64(), killed.join(", "));
    println!("{left} holds of killed Envoys were charged at their estimate; no other hold was left\n");
    println!(
        "             asked  answered  hung up  refused  503  other  broken | ledger: calls  hits  expired  corrections      nano-USD"
    );
    for (at, (tenant, ledger)) in tenants.iter().zip(ledgers).enumerate() {
        let mut ends: HashMap<&str, usize> = HashMap::new();
        for call in asked.iter().filter(|asked| asked.tenant == at) {
            let end = match &call.ended {
                Ended::Answered { .. } => "answered",
                Ended::Error { status: 429, .. } => "refused",
                Ended::Error { status: 503, .. } => "503",
                Ended::Error { .. } => "other",
                Ended::Broken => "broken",
                Ended::HungUp => "hung up",
            };
            *ends.entry(end).or_default() += 1;
        }
        let end = |name: &str| ends.get(name).copied().unwrap_or(0);
        let kind = |name: &str| ledger.iter().filter(|record| record["kind"] == name).count();
        let spent: i64 = ledger.iter().map(|record| number(record, "cost_nano_usd")).sum();
        println!(
            "{:10} {:>7} {:>9} {:>8} {:>8} {:>4} {:>6} {:>7} | {:>13} {:>5} {:>8} {:>12} {spent:>13}",
            tenant.name,
            ends.values().sum::<usize>(),
            end("answered"),
            end("hung up"),
            end("refused"),
            end("503"),
            end("other"),
            end("broken"),
            kind("call"),
            kind("hit"),
            kind("expired"),
            kind("correction"),
        );
    }
    println!("\nthe most that was seen at any moment, of its limit:");
    for (tenant, highest) in tenants.iter().zip(highest) {
        for ((limit, seen), what) in
            highest.iter().zip(["nano-USD spent and held", "calls an hour", "requests a minute", "tokens a minute", "calls at once"])
        {
            if let Some(limit) = limit {
                println!("{:10} {seen:>10} of {limit:>10} {what}", tenant.name);
            }
        }
    }
    println!("\nledger = counters = state = windows; every call that a provider got is paid once; what was settled again changed nothing");
}
