//! What filters hear of changes.

use crate::world::{World, named};
use proxium::store::keys::hash;
use proxium_wire::{Change, change::What};
use reqwest::Method;
use serde_json::json;

/// Waits until a change is told behind `cursor`.
async fn heard(world: &World, cursor: &str, wanted: What) {
    let wanted = Change { what: Some(wanted) };
    world
        .eventually("the change is told", async |world| {
            let snapshot = world.snapshot(cursor).await.unwrap();
            assert!(!snapshot.forget_all);
            snapshot.changes.contains(&wanted).then_some(())
        })
        .await;
}

async fn cursor(world: &World) -> String {
    world.eventually("a snapshot", async |world| world.snapshot("").await.ok()).await.cursor
}

#[tokio::test]
async fn a_revocation_is_told_by_the_hash_of_the_key() {
    let world = World::start().await;
    let project = world.project(named()).await;
    let (id, text) = world.key(&project, named()).await;
    let cursor = cursor(&world).await;
    world.call(Method::PATCH, &format!("projects/{project}/keys/{id}"), json!({"revoked": true})).await;
    heard(&world, &cursor, What::KeyHash(hex::decode(hash(&text)).unwrap())).await;
}

#[tokio::test]
async fn a_deleted_key_is_told_by_its_hash() {
    let world = World::start().await;
    let project = world.project(named()).await;
    let (id, text) = world.key(&project, named()).await;
    let cursor = cursor(&world).await;
    world.call(Method::DELETE, &format!("projects/{project}/keys/{id}"), json!(null)).await;
    heard(&world, &cursor, What::KeyHash(hex::decode(hash(&text)).unwrap())).await;
}

#[tokio::test]
async fn whatever_all_keys_of_a_project_share_is_told_by_the_project() {
    let world = World::start().await;
    let project = world.project(named()).await;
    let path = format!("projects/{project}");
    for (method, part, body) in [
        (Method::PATCH, "", json!({"rules": {"a": ["small"]}})),
        (Method::PUT, "/senders/bot", json!({"rules": {"a": ["small"]}})),
        (Method::DELETE, "/senders/bot", json!(null)),
        (Method::PUT, "/credentials/openai", json!({"secret": "sk"})),
        (Method::DELETE, "/credentials/openai", json!(null)),
        (Method::DELETE, "", json!(null)),
        // A retry of a deletion whose change was not told.
        (Method::DELETE, "", json!(null)),
    ] {
        let cursor = cursor(&world).await;
        world.call(method, &format!("{path}{part}"), body).await;
        heard(&world, &cursor, What::Project(project.clone())).await;
    }
}

#[tokio::test]
async fn the_catalog_comes_once_and_again_when_it_changed() {
    let world = World::start().await;
    let first = world.eventually("a snapshot", async |world| world.snapshot("").await.ok()).await;
    assert!(first.forget_all);
    assert_eq!(first.catalog.as_ref().unwrap().models.len(), 2);
    let ask = async |world: &World| {
        let request = proxium_wire::SnapshotRequest {
            catalog_revision: first.catalog_revision.clone(),
            cursor: first.cursor.clone(),
            ..Default::default()
        };
        let path = proxium_wire::path::SNAPSHOT;
        world.ask::<proxium_wire::SnapshotReply>(path, crate::world::SECRET, &request).await.unwrap()
    };
    assert_eq!(ask(&world).await.catalog, None);
    world.replace_catalog("0.25", "0.5");
    let second = world.eventually("the new catalog", async |world| Some(ask(world).await).filter(|reply| reply.catalog.is_some())).await;
    assert_ne!(second.catalog_revision, first.catalog_revision);
}

#[tokio::test]
async fn a_cursor_of_one_control_plane_is_good_at_another() {
    let (one, other) = (World::start().await, World::start().await);
    let project = one.project(named()).await;
    cursor(&other).await;
    let before = cursor(&one).await;
    one.call(Method::PATCH, &format!("projects/{project}"), json!({"name": "b"})).await;
    let newest = one
        .eventually("the change is told", async |world| {
            let snapshot = world.snapshot(&before).await.unwrap();
            (snapshot.cursor != before).then_some(snapshot.cursor)
        })
        .await;
    assert!(!other.snapshot(&newest).await.unwrap().forget_all);
}
