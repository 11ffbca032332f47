//! Redis that is not there, comes late, or comes back empty.

use crate::redis::{Redis, free_port};
use crate::world::{NO_DISK, World, named};
use proxium::seal::Seal;
use proxium::store::name;
use reqwest::{Method, StatusCode};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_that_started_before_redis_recovers_by_itself() {
    let port = free_port();
    let world = World::at(&format!("redis://127.0.0.1:{port}")).await;
    assert_eq!(world.raw(Method::GET, "/healthz", None, "").await.status, StatusCode::OK);
    assert_eq!(world.raw(Method::GET, "/readyz", None, "").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(world.snapshot("").await.map(drop), Err(StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(world.authenticate("px_x").await, Err(StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(world.call(Method::POST, "projects", named()).await.status, StatusCode::SERVICE_UNAVAILABLE);
    // The first tries to connect have failed by now, all this took seconds: what is tested is that later ones are made.
    let _redis = tokio::task::spawn_blocking(move || Redis::start_on(port, NO_DISK)).await.unwrap();
    world
        .eventually("it is ready", async |world| {
            let ready = world.raw(Method::GET, "/readyz", None, "").await;
            (ready.status == StatusCode::OK).then_some(())
        })
        .await;
    let project = world.project(named()).await;
    let (_, key) = world.key(&project, named()).await;
    assert!(world.authenticate(&key).await.unwrap().is_some());
    world.eventually("changes are told", async |world| world.snapshot("").await.ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_came_back_empty_makes_filters_forget_everything() {
    let redis = Redis::start(NO_DISK);
    let world = World::on(redis.client().await, Seal::without_key(), None).await;
    let before = world.eventually("a snapshot", async |world| world.snapshot("").await.ok()).await;
    assert!(!world.snapshot(&before.cursor).await.unwrap().forget_all);
    redis.crash_and_restart(NO_DISK);
    let after = world
        .eventually("the next snapshot", async |world| {
            world.snapshot(&before.cursor).await.ok().filter(|snapshot| snapshot.cursor != before.cursor)
        })
        .await;
    assert!(after.forget_all);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_changes_are_not_told_as_if_there_were_none() {
    let redis = Redis::start(NO_DISK);
    let world = World::on(redis.client().await, Seal::without_key(), None).await;
    let before = world.eventually("a snapshot", async |world| world.snapshot("").await.ok()).await;
    drop(redis);
    world
        .eventually("snapshots are refused", async |world| {
            (world.snapshot(&before.cursor).await == Err(StatusCode::SERVICE_UNAVAILABLE)).then_some(())
        })
        .await;
}

#[tokio::test]
async fn a_pointer_to_a_key_that_is_no_more_is_nobodys() {
    use fred::prelude::*;
    let world = World::start().await;
    let project = world.project(named()).await;
    let pointer = name::key_hash(&proxium::store::keys::hash("px_left"));
    for target in [format!("{project}/key_gone"), "gone/key_gone".to_owned()] {
        let () = world.redis.set(&pointer, target, None, None, false).await.unwrap();
        assert_eq!(world.authenticate("px_left").await, Ok(None));
    }
    let (id, _) = world.key(&project, named()).await;
    let () = world.redis.set(&pointer, format!("{project}/{id}"), None, None, false).await.unwrap();
    assert_eq!(world.authenticate("px_left").await, Ok(None), "the key has another hash");
    assert_eq!(world.call(Method::GET, &format!("projects/{project}"), json!(null)).await.status, StatusCode::OK);
}
