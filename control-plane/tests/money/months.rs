//! The monthly cap, its periods and the clock.

use crate::world::{NOON, World, ms};
use fred::prelude::*;
use proxium::store::name;
use proxium_wire::Limit;

#[tokio::test]
async fn the_cap_counts_spend_and_holds() {
    let world = World::new().await;
    world.cap(2_500).await;
    world.admitted(&world.call("a")).await;
    world.settle("a", (7, 5), 600).await;
    world.admitted(&world.call("b")).await;
    assert_eq!(world.refused(&world.call("c")).await.limit, i32::from(Limit::MonthlyCap));
    world.release("b").await;
    world.admitted(&world.call("d")).await;
}

#[tokio::test]
async fn a_cap_can_be_used_to_the_last_nano() {
    let world = World::new().await;
    world.cap(2_000).await;
    world.admitted(&world.call("a")).await;
    world.admitted(&world.call("b")).await;
    let mut call = world.call("c");
    call.normal.hold.nano_usd = 1;
    world.refused(&call).await;
}

#[tokio::test]
async fn a_refusal_by_the_cap_tells_the_next_period() {
    let world = World::new().await;
    world.cap(1_000).await;
    world.admitted(&world.call("a")).await;
    let wait = i64::try_from(world.refused(&world.call("b")).await.retry_after_ms.unwrap()).unwrap();
    assert_eq!(ms(NOON) + wait, ms("2100-02-01T00:00:00Z"));
    world.clock(ms(NOON) + wait).await;
    world.admitted(&world.call("b")).await;
}

#[tokio::test]
async fn a_hold_above_the_cap_can_never_pass() {
    let world = World::new().await;
    world.cap(999).await;
    assert_eq!(world.refused(&world.call("a")).await.retry_after_ms, None);
}

#[tokio::test]
async fn an_actual_above_its_hold_is_recorded_in_full_and_stops_the_month() {
    let world = World::new().await;
    world.cap(5_000).await;
    world.admitted(&world.call("a")).await;
    world.settle("a", (7, 5), 6_000).await;
    assert_eq!(world.spend().await, 6_000);
    let mut free = world.call("b");
    free.normal.hold.nano_usd = 0;
    world.refused(&free).await;
}

#[tokio::test]
async fn money_is_exact_at_the_highest_cap() {
    let world = World::new().await;
    world.cap(9_000_000_000_000_000).await;
    let mut call = world.call("a");
    call.normal.hold.nano_usd = 8_999_999_999_999_999;
    world.admitted(&call).await;
    let mut more = world.call("b");
    more.normal.hold.nano_usd = 2;
    world.refused(&more).await;
    more.normal.hold.nano_usd = 1;
    world.admitted(&more).await;
    world.settle("a", (1, 1), 8_999_999_999_999_998).await;
    world.settle("b", (1, 1), 1).await;
    assert_eq!(world.state().await, [210_001, 8_999_999_999_999_999, 0]);
}

#[tokio::test]
async fn a_period_begins_on_its_reset_day_or_the_months_last() {
    // Instant, reset day, period.
    let cases = [
        ("2100-02-27T23:59:59.999Z", 31, 210_001),
        ("2100-02-28T00:00:00Z", 31, 210_002), // 2100 is no leap year.
        ("2096-02-28T23:59:59.999Z", 31, 209_601),
        ("2096-02-29T00:00:00Z", 31, 209_602),
        ("2100-03-30T23:59:59Z", 31, 210_002),
        ("2100-03-31T00:00:00Z", 31, 210_003),
        ("2100-04-30T00:00:00Z", 31, 210_004),
        ("2100-01-14T23:59:59.999Z", 15, 209_912),
        ("2100-01-15T00:00:00Z", 15, 210_001),
        ("2100-12-31T23:59:59.999Z", 1, 210_012),
        ("2101-01-01T00:00:00Z", 1, 210_101),
    ];
    for (instant, reset_day, period) in cases {
        let world = World::new().await;
        world.set(&name::project(&world.project), "reset_day", &reset_day.to_string()).await;
        world.clock(ms(instant)).await;
        world.admitted(&world.call("a")).await;
        assert_eq!(world.state().await[0], period, "{instant}, reset day {reset_day}");
    }
}

#[tokio::test]
async fn retry_after_of_a_reset_day_31_ends_with_february() {
    let world = World::new().await;
    world.set(&name::project(&world.project), "reset_day", "31").await;
    world.cap(1_000).await;
    world.clock(ms("2100-02-10T00:00:00Z")).await;
    world.admitted(&world.call("a")).await;
    let wait = i64::try_from(world.refused(&world.call("b")).await.retry_after_ms.unwrap()).unwrap();
    assert_eq!(ms("2100-02-10T00:00:00Z") + wait, ms("2100-02-28T00:00:00Z"));
}

#[tokio::test]
async fn a_new_month_begins_with_nothing_spent_and_nothing_held() {
    let world = World::new().await;
    world.cap(2_000).await;
    world.clock(ms("2100-01-31T23:59:50Z")).await;
    world.admitted(&world.call("old")).await;
    world.admitted(&world.call("settled")).await;
    world.settle("settled", (7, 5), 900).await;
    world.clock(ms("2100-02-01T00:00:00Z")).await;
    world.admitted(&world.call("new")).await;
    assert_eq!(world.state().await, [210_002, 0, 1_000]);
    world.settle("old", (7, 5), 640).await;
    assert_eq!(world.state().await, [210_002, 0, 1_000], "a call of the old month is charged to the old month");
    assert_eq!(world.ledger().await[1]["month"], "210001");
    world.settle("new", (7, 5), 500).await;
    assert_eq!(world.state().await, [210_002, 500, 0]);
}

#[tokio::test]
async fn a_settlement_of_an_unknown_call_begins_a_new_month_too() {
    let world = World::new().await;
    world.admitted(&world.call("a")).await;
    world.settle("a", (7, 5), 640).await;
    world.clock(ms("2100-02-01T00:00:00Z")).await;
    world.settle("unknown", (7, 5), 300).await;
    assert_eq!(world.state().await, [210_002, 300, 0]);
}

#[tokio::test]
async fn a_later_reset_day_does_not_bring_a_month_back() {
    let world = World::new().await;
    world.admitted(&world.call("a")).await;
    world.settle("a", (7, 5), 640).await;
    world.set(&name::project(&world.project), "reset_day", "20").await;
    world.admitted(&world.call("b")).await;
    assert_eq!(world.state().await, [210_001, 640, 1_000]);
}

#[tokio::test]
async fn a_clock_that_steps_back_frees_and_loses_nothing() {
    // Redis' own clock is behind the last instant that the project saw: time stands still until it has caught up.
    let world = World::new().await;
    world.ceiling(Limit::RequestsPerMinute, 2).await;
    world.admitted(&world.call("a")).await;
    world.admitted(&world.call("b")).await;
    world.refused(&world.call("c")).await;
    world.settle("a", (7, 5), 640).await;
    assert_eq!((world.key_window().await, world.state().await), ([2, 2, 42], [210_001, 640, 1_000]));
    let clock: i64 = world.client.hget(name::state(&world.project), "clock_ms").await.unwrap();
    assert_eq!(clock, ms(NOON));
}

#[tokio::test]
async fn the_clock_of_a_project_is_redis_own_while_that_moves_on() {
    let world = World::new().await;
    world.clock(0).await;
    world.admitted(&world.call("a")).await;
    let clock: i64 = world.client.hget(name::state(&world.project), "clock_ms").await.unwrap();
    let now = jiff::Timestamp::now().as_millisecond();
    assert!((now - clock).abs() < 10_000, "{clock} at {now}");
}
