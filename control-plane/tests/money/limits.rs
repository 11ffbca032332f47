//! Which calls pass, and what a refusal says.

use crate::world::{KEY, NOON, World, ms};
use fred::prelude::*;
use proxium::store::name;
use proxium_wire::{Limit, Window, admit_reply::Outcome};

#[tokio::test]
async fn an_admission_holds_its_call_tokens_and_money() {
    let world = World::new().await;
    world.admitted(&world.call("a")).await;
    assert_eq!(world.key_window().await, [1, 1, 30]);
    assert_eq!(world.state().await, [210_001, 0, 1_000]);
}

#[tokio::test]
async fn refusals_consume_nothing() {
    let world = World::new().await;
    world.ceiling(Limit::TokensPerMinute, 40).await;
    world.sender_ceiling("app", Limit::CallsPerHour, 5).await;
    let mut call = world.call("first");
    call.source = "app".into();
    world.admitted(&call).await;
    let before = world.everything().await;
    for n in 0..100 {
        call.id = format!("refused-{n}");
        assert_eq!(world.refused(&call).await.limit, i32::from(Limit::TokensPerMinute));
    }
    assert_eq!(world.everything().await, before);
    call.id = "fits".into();
    call.normal.hold.output_tokens = 0;
    world.admitted(&call).await;
}

#[tokio::test]
async fn limits_are_checked_month_first_then_key_then_sender() {
    let world = World::new().await;
    let mut call = world.call("a");
    call.source = "app".into();
    let limits = [Limit::CallsPerHour, Limit::RequestsPerMinute, Limit::TokensPerMinute];
    for limit in limits {
        world.ceiling(limit, 0).await;
        world.sender_ceiling("app", limit, 0).await;
    }
    world.cap(999).await;
    let refused = world.refused(&call).await;
    assert_eq!((refused.limit, refused.of_sender), (Limit::MonthlyCap.into(), false));
    world.cap(1_000).await;
    for limit in limits {
        let refused = world.refused(&call).await;
        assert_eq!((refused.limit, refused.of_sender), (limit.into(), false));
        world.ceiling(limit, 1_000).await;
    }
    for limit in limits {
        let refused = world.refused(&call).await;
        assert_eq!((refused.limit, refused.of_sender), (limit.into(), true));
        world.sender_ceiling("app", limit, 1_000).await;
    }
    world.admitted(&call).await;
}

#[tokio::test]
async fn a_ceiling_of_zero_refuses_everything_and_waiting_does_not_help() {
    for limit in [Limit::CallsPerHour, Limit::RequestsPerMinute, Limit::TokensPerMinute] {
        let world = World::new().await;
        world.ceiling(limit, 0).await;
        let mut call = world.call("a");
        call.normal.hold.input_tokens = 0;
        call.normal.hold.output_tokens = 0;
        let refused = world.refused(&call).await;
        assert_eq!((refused.limit, refused.retry_after_ms), (limit.into(), None));
    }
}

#[tokio::test]
async fn a_token_hold_above_its_ceiling_passes_into_an_empty_window_only() {
    let world = World::new().await;
    world.ceiling(Limit::TokensPerMinute, 12).await;
    world.admitted(&world.call("a")).await;
    assert_eq!(world.key_window().await, [1, 1, 12], "the hold is clamped to the ceiling");
    assert_eq!(world.refused(&world.call("b")).await.limit, i32::from(Limit::TokensPerMinute));
    world.settle("a", (20, 30), 7).await;
    assert_eq!(world.key_window().await, [1, 1, 50], "what was used is counted in full");
}

#[tokio::test]
async fn a_hold_is_clamped_for_key_and_sender_apart() {
    let world = World::new().await;
    world.ceiling(Limit::TokensPerMinute, 100).await;
    world.sender_ceiling("app", Limit::TokensPerMinute, 12).await;
    let mut call = world.call("a");
    call.source = "app".into();
    world.admitted(&call).await;
    let sender = name::sender_window(&world.project, "app");
    assert_eq!((world.key_window().await, world.window(&sender).await), ([1, 1, 30], [1, 1, 12]));
    world.release("a").await;
    assert_eq!((world.key_window().await, world.window(&sender).await), ([0, 0, 0], [0, 0, 0]));
}

#[tokio::test]
async fn a_ceiling_set_later_counts_the_calls_before_it() {
    let world = World::new().await;
    for id in ["a", "b", "c"] {
        world.admitted(&world.call(id)).await;
    }
    world.ceiling(Limit::CallsPerHour, 4).await;
    world.admitted(&world.call("d")).await;
    world.refused(&world.call("e")).await;
    world.ceiling(Limit::CallsPerHour, 2).await;
    world.refused(&world.call("f")).await;
    world.ceiling(Limit::CallsPerHour, 5).await;
    world.admitted(&world.call("g")).await;
}

#[tokio::test]
async fn a_sender_without_a_ceiling_is_not_counted() {
    let world = World::new().await;
    let mut call = world.call("a");
    call.source = "app".into();
    world.admitted(&call).await;
    let kept: bool = world.client.exists(name::sender_window(&world.project, "app")).await.unwrap();
    assert!(!kept);
}

#[tokio::test]
async fn a_call_leaves_its_window_when_its_bucket_does() {
    let world = World::new().await;
    world.ceiling(Limit::RequestsPerMinute, 1).await;
    world.admitted(&world.call("a")).await;
    world.clock(ms(NOON) + 60_999).await;
    world.refused(&world.call("b")).await;
    world.clock(ms(NOON) + 61_000).await;
    world.admitted(&world.call("c")).await;
    assert_eq!(world.key_window().await, [2, 1, 30]);
}

#[tokio::test]
async fn an_hour_of_calls_slides_by_minutes() {
    let world = World::new().await;
    world.ceiling(Limit::CallsPerHour, 2).await;
    world.admitted(&world.call("a")).await;
    world.clock(ms(NOON) + 30 * 60_000).await;
    world.admitted(&world.call("b")).await;
    world.clock(ms(NOON) + 61 * 60_000 - 1).await;
    world.refused(&world.call("c")).await;
    world.clock(ms(NOON) + 61 * 60_000).await;
    world.admitted(&world.call("d")).await;
    world.refused(&world.call("e")).await;
    world.clock(ms(NOON) + 10 * 3_600_000).await;
    world.admitted(&world.call("f")).await;
    assert_eq!(world.key_window().await, [1, 1, 30], "after a long pause only the newest call counts");
}

#[tokio::test]
async fn retry_after_is_the_first_instant_at_which_the_same_call_passes() {
    for limit in [Limit::CallsPerHour, Limit::RequestsPerMinute, Limit::TokensPerMinute] {
        let world = World::new().await;
        world.ceiling(limit, if limit == Limit::TokensPerMinute { 65 } else { 2 }).await;
        world.admitted(&world.call("a")).await;
        world.clock(ms(NOON) + 2_345).await;
        world.admitted(&world.call("b")).await;
        world.clock(ms(NOON) + 7_777).await;
        let wait = i64::try_from(world.refused(&world.call("c")).await.retry_after_ms.unwrap()).unwrap();
        world.clock(ms(NOON) + 7_777 + wait - 1).await;
        world.refused(&world.call("c")).await;
        world.clock(ms(NOON) + 7_777 + wait).await;
        world.admitted(&world.call("c")).await;
    }
}

#[tokio::test]
async fn retry_after_waits_for_every_limit_that_refuses() {
    let world = World::new().await;
    world.ceiling(Limit::RequestsPerMinute, 1).await;
    world.ceiling(Limit::CallsPerHour, 1).await;
    world.admitted(&world.call("a")).await;
    assert_eq!(world.refused(&world.call("b")).await.retry_after_ms, Some(61 * 60_000));
    world.ceiling(Limit::TokensPerMinute, 0).await;
    assert_eq!(world.refused(&world.call("b")).await.retry_after_ms, None);
}

#[tokio::test]
async fn the_rate_limit_told_is_the_one_with_least_left() {
    let world = World::new().await;
    world.ceiling(Limit::CallsPerHour, 10).await;
    world.ceiling(Limit::RequestsPerMinute, 3).await;
    world.sender_ceiling("app", Limit::TokensPerMinute, 100).await;
    world.clock(ms(NOON) + 250).await;
    let mut call = world.call("a");
    call.source = "app".into();
    let rate_limit = world.admitted(&call).await.rate_limit;
    assert_eq!(rate_limit.requests, Some(Window { limit: 3, remaining: 2, reset_ms: 60_750 }));
    assert_eq!(rate_limit.tokens, Some(Window { limit: 100, remaining: 70, reset_ms: 60_750 }));
    call.source = String::new();
    call.id = "b".into();
    assert_eq!(world.admitted(&call).await.rate_limit.tokens, None);
}

#[tokio::test]
async fn a_refusal_tells_the_same_rate_limit() {
    let world = World::new().await;
    world.ceiling(Limit::RequestsPerMinute, 1).await;
    world.admitted(&world.call("a")).await;
    world.clock(ms(NOON) + 1_000).await;
    let rate_limit = world.refused(&world.call("b")).await.rate_limit;
    assert_eq!(rate_limit.requests, Some(Window { limit: 1, remaining: 0, reset_ms: 60_000 }));
}

#[tokio::test]
async fn a_new_source_is_limited_from_its_first_call() {
    let world = World::new().await;
    world.sender_ceiling("new", Limit::RequestsPerMinute, 1).await;
    let mut passed = 0;
    for n in 0..8 {
        let mut call = world.call(&n.to_string());
        call.source = "new".into();
        passed += i32::from(matches!(world.admit(&call).await, Outcome::Admitted(_)));
    }
    assert_eq!(passed, 1);
}

#[tokio::test]
async fn a_side_call_holds_money_and_takes_no_slot() {
    let world = World::new().await;
    let mut call = world.call("side");
    call.side_call = true;
    world.admitted(&call).await;
    assert_eq!((world.key_window().await, world.held().await), ([0, 0, 0], 1_000));
    world.settle("side", (50, 0), 400).await;
    assert_eq!((world.key_window().await, world.state().await), ([0, 0, 0], [210_001, 400, 0]));
    assert_eq!((world.ledger_sum("calls").await, world.ledger_sum("tokens").await), (0, 0));
}

#[tokio::test]
async fn a_side_call_is_refused_when_any_limit_would_refuse_a_call() {
    for limit in [Limit::CallsPerHour, Limit::RequestsPerMinute, Limit::TokensPerMinute] {
        let world = World::new().await;
        world.ceiling(limit, if limit == Limit::TokensPerMinute { 30 } else { 1 }).await;
        world.admitted(&world.call("a")).await;
        let mut side = world.call("side");
        side.side_call = true;
        assert_eq!(world.refused(&side).await.limit, i32::from(limit));
    }
}

#[tokio::test]
async fn a_revoked_expired_or_unknown_key_is_invalid() {
    let world = World::new().await;
    let key = name::key(&world.project, KEY);
    world.set(&key, "expires_at_ms", &(ms(NOON) + 1).to_string()).await;
    world.admitted(&world.call("a")).await;
    world.clock(ms(NOON) + 1).await;
    assert_eq!(world.admit(&world.call("b")).await, Outcome::InvalidKey(()));
    let () = world.client.hdel(&key, "expires_at_ms").await.unwrap();
    world.set(&key, "revoked", "1").await;
    assert_eq!(world.admit(&world.call("c")).await, Outcome::InvalidKey(()));
    let mut call = world.call("d");
    call.key_id = "nobody".into();
    assert_eq!(world.admit(&call).await, Outcome::InvalidKey(()));
    let () = world.client.hdel(&key, "revoked").await.unwrap();
    let () = world.client.del(name::project(&world.project)).await.unwrap();
    assert_eq!(world.admit(&world.call("e")).await, Outcome::InvalidKey(()));
}

#[tokio::test]
async fn a_missing_state_is_never_taken_for_no_spend() {
    let world = World::new().await;
    let () = world.client.del(name::state(&world.project)).await.unwrap();
    let error = world.money.admit(&world.call("a"), crate::world::no_credentials).await.unwrap_err();
    assert!(error.to_string().contains("rebuilt"), "{error}");
    let settle = world.end("a", "", proxium_wire::settlement::End::Release(proxium_wire::Release {}));
    assert!(world.money.settle(&settle).await.is_err());
}

#[tokio::test]
async fn own_credentials_come_opened_with_the_admission() {
    let world = World::new().await;
    for provider in ["openai", "anthropic"] {
        world.set(&name::credentials(&world.project), provider, &format!("sealed-{provider}")).await;
    }
    let open = |provider: &str, sealed: &str| Ok(format!("{provider}:{sealed}"));
    let mut call = world.call("a");
    call.normal.providers = vec!["openai".into(), "local".into()];
    for (providers, expected) in [(vec!["openai", "local"], 1), (vec![], 2)] {
        call.normal.providers = providers.into_iter().map(String::from).collect();
        call.id.push('x');
        let Some(Outcome::Admitted(admitted)) = world.money.admit(&call, open).await.unwrap().outcome else { panic!("not admitted") };
        assert_eq!(admitted.credentials.len(), expected);
        assert!(admitted.credentials.iter().any(|own| own.secret == "openai:sealed-openai"));
    }
}
