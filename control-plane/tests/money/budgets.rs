//! Calls at once, the soft cap, charged hits, lost states, resets, corrections, and the counters of spend.

use crate::world::{KEY, NOON, World, ms, no_credentials, settled};
use fred::prelude::*;
use proxium::store::name;
use proxium::store::spend::{self, By, Correction, Reset};
use proxium_wire::{AdmitRequest, Alternative, Hit, Hold, Limit, NanoUsd, Store, StoredAnswer, admit_reply::Outcome, settlement::End};

/// Keeps an answer of this model under this key, by a call that cost so much.
async fn keep(world: &World, id: &str, model: &str, key: u8, cost: i64) {
    let answer = StoredAnswer { body: model.as_bytes().to_vec(), model: model.into(), cost_nano_usd: cost, request_id: id.into() };
    let store = Store { cache_key: vec![key], answer, ttl_s: 600, ..Store::default() };
    let end = End::Settle(Box::new(settled((7, 5), cost, Some(store))));
    world.money.settle(&world.end(id, "", end)).await.unwrap();
}

/// A call with a cheaper alternative, whose keys are 1 and 2.
fn either_way(world: &World, id: &str) -> AdmitRequest {
    let mut call = world.call(id);
    call.normal.cache_key = vec![1];
    let hold = Hold { input_tokens: 1, output_tokens: 2, nano_usd: 10 };
    call.soft_cap =
        Some(Alternative { cache_key: vec![2], hold, providers: vec![], resolved_model: "cheap".into(), ..Alternative::default() });
    call
}

async fn hit(world: &World, call: &AdmitRequest) -> Hit {
    match world.admit(call).await {
        Outcome::Hit(hit) => hit,
        other => panic!("{} should hit, was {other:?}", call.id),
    }
}

async fn project_field(world: &World, field: &str, value: &str) {
    world.set(&name::project(&world.project), field, value).await;
}

#[tokio::test]
async fn only_so_many_calls_run_at_once_and_each_end_makes_room() {
    for of_sender in [false, true] {
        let world = World::new().await;
        match of_sender {
            true => world.sender_ceiling("app", Limit::MaxParallelCalls, 2).await,
            false => world.ceiling(Limit::MaxParallelCalls, 2).await,
        }
        let call = |id: &str| AdmitRequest { source: "app".into(), ..world.call(id) };
        world.admitted(&call("a")).await;
        world.admitted(&call("b")).await;
        world.admitted(&call("a")).await;
        let refused = world.refused(&call("c")).await;
        assert_eq!((refused.limit, refused.of_sender), (Limit::MaxParallelCalls.into(), of_sender));
        assert!(refused.retry_after_ms.is_some());
        world.settle("a", (7, 5), 1).await;
        world.settle("a", (7, 5), 1).await;
        world.admitted(&call("d")).await;
        world.refused(&call("e")).await;
        world.release("b").await;
        world.release("b").await;
        world.admitted(&call("f")).await;
        world.refused(&call("g")).await;
        world.clock(ms(NOON) + 60_000).await;
        world.admitted(&call("after the others expired")).await;
        world.settle("d", (7, 5), 1).await;
        world.admitted(&call("h")).await;
        world.refused(&call("i")).await;
    }
}

#[tokio::test]
async fn none_at_once_is_none_and_a_side_call_takes_no_place_but_waits_for_one() {
    let world = World::new().await;
    world.ceiling(Limit::MaxParallelCalls, 0).await;
    assert_eq!(world.refused(&world.call("a")).await.retry_after_ms, None);
    world.ceiling(Limit::MaxParallelCalls, 1).await;
    let side = |id: &str| AdmitRequest { side_call: true, ..world.call(id) };
    world.admitted(&side("b")).await;
    world.admitted(&world.call("c")).await;
    world.refused(&side("d")).await;
}

#[tokio::test]
async fn the_cheaper_way_is_taken_once_spend_and_holds_have_reached_the_soft_cap() {
    // 1,000 are held by a first call; the soft cap, and whether the second call is past it.
    for (soft_cap, past) in [("1001", false), ("1000", true), ("999", true)] {
        let world = World::new().await;
        project_field(&world, "soft_cap", soft_cap).await;
        assert!(!world.admitted(&either_way(&world, "a")).await.soft_cap);
        assert_eq!(world.admitted(&either_way(&world, "b")).await.soft_cap, past, "{soft_cap}");
        assert_eq!(world.admitted(&either_way(&world, "b")).await.soft_cap, past, "the same again");
        assert_eq!(world.held().await, if past { 1_010 } else { 2_000 });
        world.settle("a", (7, 5), 998).await;
        let now_past = world.spend().await + world.held().await >= soft_cap.parse().unwrap();
        assert_eq!(world.admitted(&either_way(&world, "c")).await.soft_cap, now_past, "{soft_cap}");
    }
}

#[tokio::test]
async fn a_soft_cap_is_of_the_month_and_acts_at_once() {
    let world = World::new().await;
    project_field(&world, "soft_cap", "500").await;
    world.settle("spent", (7, 5), 500).await;
    assert!(world.admitted(&either_way(&world, "a")).await.soft_cap);
    project_field(&world, "soft_cap", "5000").await;
    assert!(!world.admitted(&either_way(&world, "b")).await.soft_cap);
    project_field(&world, "soft_cap", "500").await;
    assert!(!world.admitted(&world.call("no cheaper way")).await.soft_cap);
    world.clock(ms("2100-02-01T00:00:00Z")).await;
    assert!(!world.admitted(&either_way(&world, "c")).await.soft_cap, "a new month");
}

#[tokio::test]
async fn the_hard_cap_refuses_the_cheaper_way_too() {
    let world = World::new().await;
    project_field(&world, "soft_cap", "0").await;
    world.cap(19).await;
    assert!(world.admitted(&either_way(&world, "a")).await.soft_cap);
    assert_eq!(world.refused(&either_way(&world, "b")).await.limit, i32::from(Limit::MonthlyCap));
}

#[tokio::test]
async fn a_stored_answer_of_the_cheaper_way_counts_only_past_the_soft_cap() {
    let world = World::new().await;
    project_field(&world, "soft_cap", "1000").await;
    keep(&world, "kept", "cheap", 2, 600).await;
    assert!(!world.admitted(&either_way(&world, "a")).await.soft_cap, "600 are spent");
    let found = hit(&world, &either_way(&world, "b")).await;
    assert_eq!((found.answer.model.as_str(), found.soft_cap, found.charged_nano_usd), ("cheap", true, 0));
    keep(&world, "kept too", "normal", 1, 600).await;
    let found = hit(&world, &either_way(&world, "c")).await;
    assert_eq!((found.answer.model.as_str(), found.soft_cap), ("normal", false), "the normal one is looked up first");
}

#[tokio::test]
async fn a_hit_costs_its_fraction_rounded_half_up_and_a_call_slot() {
    for (ppm, cost, charged) in
        [("250000", 1_000, 250), ("1000000", 7, 7), ("500000", 1, 1), ("499999", 1, 0), ("1", 500_000, 1), ("1", 499_999, 0)]
    {
        let world = World::new().await;
        project_field(&world, "cached_answer_charge", ppm).await;
        keep(&world, "kept", "small", 1, cost).await;
        let call = either_way(&world, "a");
        let found = hit(&world, &call).await;
        assert_eq!((found.charged_nano_usd, hit(&world, &call).await.charged_nano_usd), (charged, charged), "{ppm} of {cost}");
        assert_eq!((world.key_window().await, world.state().await), ([2, 2, 12], [210_001, cost + charged, 0]));
        let record = &world.ledger().await[1];
        let told = ["kind", "cost_nano_usd", "calls", "tokens", "cached", "charged", "model"].map(|field| record[field].clone());
        assert_eq!(told, ["hit", &charged.to_string(), "1", "0", "1", "1", "small"]);
        world.release("a").await;
        world.release("a").await;
        assert_eq!((world.key_window().await, world.spend().await), ([1, 1, 12], cost), "its answer never arrived");
    }
}

#[tokio::test]
async fn a_charged_hit_is_refused_where_a_call_would_be_and_a_free_one_never() {
    for limit in [Limit::MonthlyCap, Limit::CallsPerHour, Limit::RequestsPerMinute, Limit::TokensPerMinute, Limit::MaxParallelCalls] {
        let world = World::new().await;
        keep(&world, "kept", "small", 1, 1_000).await;
        match limit {
            Limit::MonthlyCap => world.cap(1_200).await,
            _ => world.ceiling(limit, 0).await,
        }
        project_field(&world, "cached_answer_charge", "250000").await;
        assert_eq!(world.refused(&either_way(&world, "a")).await.limit, i32::from(limit));
        project_field(&world, "cached_answer_charge", "0").await;
        hit(&world, &either_way(&world, "b")).await;
    }
}

#[tokio::test]
async fn a_lost_state_is_refused_then_made_anew_and_served_again() {
    for lost_with_counter in [false, true] {
        let world = World::new().await;
        world.clock(0).await;
        world.cap(4_000).await;
        world.admitted(&world.call("open")).await;
        world.settle("one", (7, 5), 900).await;
        world.money.reset(&world.project, &Reset { window: "monthly_cap".into(), ..Reset::default() }).await.unwrap();
        world.settle("two", (7, 5), 640).await;
        let before = world.state().await;
        assert_eq!(before[1..], [640, 1_000]);
        let () = world.client.del(name::state(&world.project)).await.unwrap();
        if lost_with_counter {
            let () = world.client.del(name::spend_month(&world.project, &before[0].to_string())).await.unwrap();
        }
        assert!(world.money.admit(&world.call("a"), no_credentials).await.is_err());
        let (a, b) = tokio::join!(world.money.sweep_all(), world.money.sweep_all());
        // Another test's project may have lost its state for good.
        let _ = (a, b);
        assert_eq!(world.state().await, before);
        world.admitted(&world.call("a")).await;
        world.admitted(&world.call("b")).await;
        world.refused(&world.call("c")).await;
    }
}

#[tokio::test]
async fn a_state_lost_with_all_evidence_waits_for_a_word() {
    let world = World::new().await;
    let () = world.client.del(name::state(&world.project)).await.unwrap();
    assert!(world.money.sweep_all().await.unwrap_err().to_string().contains("restore"));
    assert!(world.money.admit(&world.call("a"), no_credentials).await.is_err());
    assert!(world.money.reset(&world.project, &Reset { window: "monthly_cap".into(), ..Reset::default() }).await.unwrap());
    world.admitted(&world.call("a")).await;
}

#[tokio::test]
async fn a_ceiling_of_calls_at_once_set_later_counts_those_that_run() {
    for of_sender in [false, true] {
        let world = World::new().await;
        let call = |id: &str| AdmitRequest { source: "app".into(), ..world.call(id) };
        for id in ["a", "b", "c"] {
            world.admitted(&call(id)).await;
        }
        world.release("a").await;
        if of_sender {
            world.sender_ceiling("app", Limit::MaxParallelCalls, 2).await;
        } else {
            world.ceiling(Limit::MaxParallelCalls, 2).await;
        }
        assert_eq!(world.refused(&call("d")).await.limit, i32::from(Limit::MaxParallelCalls));
        world.settle("b", (7, 5), 640).await;
        world.admitted(&call("d")).await;
        world.refused(&call("e")).await;
        // Lost, it is made anew from the holds.
        let set = if of_sender { name::held_by_sender(&world.project, "app") } else { name::held_by_key(&world.project, KEY) };
        let () = world.client.del(set).await.unwrap();
        world.refused(&call("e")).await;
        world.release("c").await;
        world.admitted(&call("e")).await;
    }
}

#[tokio::test]
async fn deleted_windows_are_counted_anew_and_never_taken_for_no_call() {
    for limit in [Limit::CallsPerHour, Limit::RequestsPerMinute, Limit::TokensPerMinute] {
        for of_sender in [false, true] {
            let world = World::new().await;
            let (ceiling, window) = (if limit == Limit::TokensPerMinute { 72 } else { 3 }, |world: &World| {
                if of_sender { name::sender_window(&world.project, "app") } else { name::key_window(&world.project, KEY) }
            });
            if of_sender {
                world.sender_ceiling("app", limit, ceiling).await;
            } else {
                world.ceiling(limit, ceiling).await;
            }
            let call = |id: &str| AdmitRequest { source: "app".into(), ..world.call(id) };
            for id in ["settled", "released", "held"] {
                world.admitted(&call(id)).await;
                match id {
                    "settled" => world.settle(id, (7, 5), 640).await,
                    "released" => world.release(id).await,
                    _ => {}
                }
            }
            assert_eq!(world.window(&window(&world)).await, [2, 2, 42]);
            let () = world.client.del(window(&world)).await.unwrap();
            // Comes meanwhile, and is found in the ledger.
            world.money.settle(&world.end("unknown", "app", End::Settle(Box::new(settled((7, 5), 640, None))))).await.unwrap();
            assert_eq!(world.refused(&call("over")).await.limit, i32::from(limit), "of the sender: {of_sender}");
            assert_eq!(world.window(&window(&world)).await, [3, 3, 54]);
            world.settle("held", (1, 1), 10).await;
            assert_eq!(world.window(&window(&world)).await, [3, 3, 26]);

            // What an operator began anew stays so, also when it is lost later.
            world.money.reset(&world.project, &Reset { window: "all".into(), ..Reset::default() }).await.unwrap();
            let () = world.client.del(window(&world)).await.unwrap();
            world.clock(ms(NOON) + 1).await;
            world.admitted(&call("after")).await;
            let () = world.client.del(window(&world)).await.unwrap();
            world.admitted(&AdmitRequest { normal: Alternative::default(), ..call("and after that") }).await;
            assert_eq!(world.window(&window(&world)).await, [2, 2, 30]);
        }
    }
}

#[tokio::test]
async fn a_reset_of_the_month_forgives_its_spend_and_keeps_its_record() {
    let world = World::new().await;
    world.cap(2_000).await;
    world.settle("a", (7, 5), 1_500).await;
    world
        .admitted(&AdmitRequest {
            normal: Alternative { hold: Hold { nano_usd: 300, ..Hold::default() }, ..Alternative::default() },
            ..world.call("b")
        })
        .await;
    world.refused(&world.call("c")).await;
    let reset = Reset { window: "monthly_cap".into(), note: "agreed".into(), ..Reset::default() };
    assert!(world.money.reset(&world.project, &reset).await.unwrap());
    assert_eq!(world.state().await[1..], [0, 300], "what is held stays held");
    world.admitted(&world.call("c")).await;
    let record = world.ledger().await.pop().unwrap();
    assert_eq!(
        [&record["kind"], &record["cost_nano_usd"], &record["forgiven_nano_usd"], &record["note"]],
        ["reset", "0", "1500", "agreed"]
    );
    assert_eq!(world.ledger_sum("cost_nano_usd").await, 1_500);
}

#[tokio::test]
async fn a_reset_of_a_ceiling_is_of_that_window_alone() {
    let world = World::new().await;
    world.ceiling(Limit::RequestsPerMinute, 1).await;
    world.sender_ceiling("app", Limit::CallsPerHour, 1).await;
    let call = |id: &str| AdmitRequest { source: "app".into(), ..world.call(id) };
    world.admitted(&call("a")).await;
    let reset = |window: &str, key: Option<&str>, source: Option<&str>| Reset {
        window: window.into(),
        key: key.map(Into::into),
        source: source.map(Into::into),
        ..Reset::default()
    };
    world.money.reset(&world.project, &reset("requests_per_minute", Some(KEY), None)).await.unwrap();
    assert_eq!(world.key_window().await, [1, 0, 30]);
    assert!(world.refused(&call("b")).await.of_sender);
    world.money.reset(&world.project, &reset("all", None, Some("app"))).await.unwrap();
    world.release("a").await;
    world.admitted(&call("b")).await;
    assert_eq!(world.window(&name::sender_window(&world.project, "app")).await, [1, 1, 30]);
}

#[tokio::test]
async fn a_correction_counts_once_and_may_be_negative() {
    let world = World::new().await;
    world.settle("a", (7, 5), 1_000).await;
    let correction = |id: &str, cost| Correction {
        id: id.into(),
        cost: NanoUsd(cost),
        key: Some(KEY.into()),
        note: "refund".into(),
        ..Correction::default()
    };
    for _ in 0..2 {
        assert!(world.money.correct(&world.project, &correction("x", -400)).await.unwrap());
    }
    world.money.correct(&world.project, &correction("y", 9_000_000_000_000_000)).await.unwrap();
    assert_eq!(world.spend().await, 9_000_000_000_000_600);
    assert_eq!(world.ledger_sum("cost_nano_usd").await, 9_000_000_000_000_600);
    assert_eq!(world.key_window().await, [1, 1, 12]);
}

#[tokio::test]
async fn spend_is_summed_by_model_key_source_and_day() {
    let world = World::new().await;
    let day = |text: &str| text.parse().unwrap();
    world.settle("a", (7, 5), 640).await;
    world.clock(ms("2100-01-16T00:00:00Z")).await;
    let end = End::Settle(Box::new(settled((1, 2), 9_000_000_000_000_000, None)));
    world.money.settle(&world.end("b", "app", end)).await.unwrap();
    let mut due = world.call("c");
    due.hold_ms = 0;
    world.admitted(&due).await;
    world.refused(&due).await;
    let report = async |from: &str, to: &str, by| spend::report(&world.client, &world.project, day(from), day(to), by).await.unwrap();
    let days = report("2100-01-01", "2100-01-31", By::Day).await;
    assert_eq!(days.keys().collect::<Vec<_>>(), ["2100-01-15", "2100-01-16"]);
    assert_eq!((days["2100-01-16"].cost, days["2100-01-16"].calls), (NanoUsd(9_000_000_000_001_000), 2));
    assert_eq!((days["2100-01-16"].input_tokens, days["2100-01-16"].estimated_calls), (11, 1));
    assert_eq!(report("2100-01-15", "2100-01-15", By::Model).await["small"].cost, NanoUsd(640));
    assert_eq!(report("2100-01-01", "2100-01-31", By::Source).await["app"].calls, 1);
    world.settle("c", (7, 5), 10).await;
    let all = report("2100-01-01", "2100-01-31", By::Key).await[KEY];
    assert_eq!((all.cost, all.calls, all.estimated_calls, all.output_tokens), (NanoUsd(9_000_000_000_000_650), 3, 0, 12));
}

#[tokio::test]
async fn following_the_ledger_misses_and_repeats_nothing() {
    let world = World::new().await;
    for n in 0..25 {
        world.settle(&n.to_string(), (7, 5), n).await;
    }
    let (mut after, mut seen) = (None::<String>, Vec::new());
    loop {
        let page = spend::ledger(&world.client, &world.project, after.as_deref(), 10).await.unwrap();
        let Some((cursor, _)) = page.last() else { break };
        after = Some(cursor.clone());
        seen.extend(page.into_iter().map(|(_, fields)| fields.into_iter().find(|(field, _)| field == "id").unwrap().1));
    }
    assert_eq!(seen, (0..25).map(|n| n.to_string()).collect::<Vec<_>>());
    world.settle("new", (7, 5), 1).await;
    assert_eq!(spend::ledger(&world.client, &world.project, after.as_deref(), 10).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_follows_the_ledger_while_it_is_written_misses_and_repeats_nothing() {
    const WRITERS: usize = 8;
    const EACH: usize = 40;
    let world = std::sync::Arc::new(World::new().await);
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let world = world.clone();
        writers.spawn(async move {
            for n in 0..EACH {
                world.settle(&format!("{writer}-{n}"), (7, 5), 1).await;
            }
        });
    }
    let (mut after, mut seen) = (None::<String>, Vec::new());
    // What is written before the writers are done is there by the read after that.
    loop {
        let done = writers.try_join_next().is_some_and(|ended| ended.is_err()) || writers.is_empty();
        let page = spend::ledger(&world.client, &world.project, after.as_deref(), 7).await.unwrap();
        match page.last() {
            Some((cursor, _)) => after = Some(cursor.clone()),
            None if done => break,
            None => tokio::task::yield_now().await,
        }
        seen.extend(page.into_iter().map(|(_, fields)| fields.into_iter().find(|(field, _)| field == "id").unwrap().1));
    }
    seen.sort();
    let mut all: Vec<_> = (0..WRITERS).flat_map(|writer| (0..EACH).map(move |n| format!("{writer}-{n}"))).collect();
    all.sort();
    assert_eq!(seen, all);
}

/// Records of a time long ago, which a stream keeps in whole pieces of a hundred.
async fn old_records(world: &World, count: u32) {
    let fill = "for i = 1, tonumber(ARGV[1]) do
        redis.call('XADD', KEYS[1], '1000-' .. i, 'id', 'old' .. i, 'month', '210001', 'cost_nano_usd', '5') end return 0";
    let () = world.client.eval(fill, vec![name::ledger(&world.project)], vec![count.to_string()]).await.unwrap();
}

#[tokio::test]
async fn records_older_than_the_retention_go_and_spend_stays() {
    let world = World::new().await;
    old_records(&world, 350).await;
    for id in ["a", "b"] {
        world.settle(id, (7, 5), 640).await;
    }
    world.money.trim_ledgers(std::time::Duration::from_secs(86_400)).await.unwrap();
    let left: Vec<_> = world.ledger().await.into_iter().map(|record| record["id"].clone()).collect();
    assert!(left.len() < 102 && left.ends_with(&["a".to_owned(), "b".to_owned()]), "{left:?}");
    assert_eq!((world.spend().await, world.key_window().await), (1_280, [2, 2, 24]));
    world.money.trim_ledgers(std::time::Duration::from_secs(400 * 86_400)).await.unwrap();
    assert_eq!(world.ledger().await.len(), left.len());
}

#[tokio::test]
async fn a_state_is_not_made_anew_from_a_ledger_that_lost_some_of_the_month() {
    for trimmed in [false, true] {
        let world = World::new().await;
        world.clock(0).await;
        old_records(&world, 3).await;
        world.settle("a", (7, 5), 640).await;
        let [month, ..] = world.state().await;
        if trimmed {
            let gone: u64 = world.client.xtrim(name::ledger(&world.project), ("MINID", "=", "2000-0")).await.unwrap();
            assert_eq!(gone, 3);
        }
        let () = world.client.del(vec![name::state(&world.project), name::spend_month(&world.project, &month.to_string())]).await.unwrap();
        let _ = world.money.sweep_all().await;
        let admitted = world.money.admit(&world.call("b"), no_credentials).await;
        assert_eq!(admitted.is_err(), trimmed, "{admitted:?}");
    }
}
