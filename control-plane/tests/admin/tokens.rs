//! Tokens of the admin API, and the audit stream that names them.

use crate::redis::Redis;
use crate::world::{ADMIN, Answer, NO_DISK, World, named};
use jiff::{SignedDuration, Timestamp};
use proxium::seal::Seal;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

async fn token(world: &World, document: Value) -> (String, String) {
    let made = world.call(Method::POST, "tokens", document).await;
    (made.id(), made.body["token"].as_str().unwrap().to_owned())
}

async fn as_token(world: &World, token: &str, method: Method, path: &str, body: &str) -> Answer {
    world.raw(method, &format!("/admin/v1/{path}"), Some(token), body.to_owned()).await
}

#[tokio::test]
async fn a_token_of_the_role_admin_changes_and_one_of_the_role_viewer_looks() {
    let world = World::start().await;
    let (_, admin) = token(&world, json!({"name": "ci", "role": "admin"})).await;
    let (_, viewer) = token(&world, json!({"name": "wall", "role": "viewer"})).await;
    assert_eq!(as_token(&world, &admin, Method::POST, "projects", r#"{"name":"x"}"#).await.status, StatusCode::CREATED);
    assert_eq!(as_token(&world, &viewer, Method::GET, "projects", "").await.status, StatusCode::OK);
    for (method, path) in [(Method::POST, "projects"), (Method::POST, "tokens"), (Method::POST, "credentials/reseal")] {
        assert_eq!(as_token(&world, &viewer, method, path, r#"{"name":"x"}"#).await.status, StatusCode::FORBIDDEN, "{path}");
    }
}

#[tokio::test]
async fn a_token_is_shown_once_and_kept_hashed() {
    let world = World::start().await;
    let (id, text) = token(&world, json!({"name": "ci", "role": "admin"})).await;
    assert!(text.starts_with("pxa_") && text.len() == 47, "{text}");
    let list = world.call(Method::GET, "tokens", json!(null)).await;
    let shown = list.body["tokens"].as_array().unwrap().iter().find(|token| token["id"] == id.as_str()).unwrap();
    assert_eq!((&shown["name"], &shown["role"], &shown["created_by"]), (&json!("ci"), &json!("admin"), &json!("admin")));
    assert!(!list.text.contains(&text));
    assert!(!world.dump("px:").await.contains(&text));
}

#[tokio::test]
async fn a_revoked_token_opens_nothing_at_once() {
    let world = World::start().await;
    let (id, text) = token(&world, json!({"name": "ci", "role": "admin"})).await;
    assert_eq!(world.call(Method::DELETE, &format!("tokens/{id}"), json!(null)).await.status, StatusCode::NO_CONTENT);
    assert_eq!(as_token(&world, &text, Method::GET, "projects", "").await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(world.call(Method::DELETE, &format!("tokens/{id}"), json!(null)).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_expired_token_opens_nothing() {
    let world = World::start().await;
    let soon = Timestamp::now() + SignedDuration::from_millis(300);
    let (_, text) = token(&world, json!({"name": "ci", "role": "viewer", "expires_at": soon.to_string()})).await;
    assert_eq!(as_token(&world, &text, Method::GET, "projects", "").await.status, StatusCode::OK);
    let refused =
        async |world: &World| (as_token(world, &text, Method::GET, "projects", "").await.status == StatusCode::UNAUTHORIZED).then_some(());
    world.eventually("the token has expired", refused).await;
}

#[tokio::test]
async fn a_token_that_could_never_be_used_is_refused() {
    let world = World::start().await;
    let refused = world.call(Method::POST, "tokens", json!({"role": "root", "expires_at": "2020-01-01T00:00:00Z", "scope": "all"})).await;
    assert_eq!((refused.status, refused.fields()), (StatusCode::BAD_REQUEST, vec!["expires_at", "name", "role", "scope"]));
}

#[tokio::test]
async fn every_change_can_be_read_with_who_and_what_it_was_before_and_after() {
    let server = Arc::new(Redis::start(NO_DISK));
    let world = World::on(server.client().await, Seal::parse(&format!("k1:{}", "ab".repeat(32))).unwrap(), Some(server)).await;
    let (id, text) = token(&world, json!({"name": "ci", "role": "admin"})).await;
    let project = world.project(json!({"name": "test", "monthly_cap_usd": 3})).await;
    let path = format!("projects/{project}");
    as_token(&world, &text, Method::PATCH, &path, r#"{"monthly_cap_usd":5}"#).await;
    as_token(&world, &text, Method::PUT, &format!("{path}/credentials/openai"), r#"{"secret":"sk-4711"}"#).await;
    let (key, key_text) = world.key(&project, named()).await;
    world.call(Method::DELETE, &format!("{path}/keys/{key}"), json!(null)).await;
    world.raw(Method::DELETE, "/admin/v1/tokens/none", Some(ADMIN), "").await;

    let newest = world.call(Method::GET, "audit", json!(null)).await;
    let entries = newest.body["entries"].as_array().unwrap();
    let what: Vec<_> = entries.iter().map(|entry| entry["what"].as_str().unwrap().to_owned()).collect();
    let expected = [
        format!("delete key {key}"),
        "create key test".to_owned(),
        "set credential openai".to_owned(),
        "change project".to_owned(),
        "create project".to_owned(),
        format!("create token {id}"),
    ];
    assert_eq!(what, expected);
    let change = &entries[3];
    assert_eq!((&change["before"], &change["after"]), (&json!({"monthly_cap_usd": "3"}), &json!({"monthly_cap_usd": "5"})));
    assert_eq!((&change["who"], &change["project"]), (&json!(format!("ci ({id})")), &json!(project)));
    assert_eq!(entries[0]["before"]["name"], "test");
    assert!(change["at"].as_str().unwrap().parse::<Timestamp>().is_ok());
    for secret in ["sk-4711", &key_text, &text] {
        assert!(!newest.text.contains(secret), "{}", newest.text);
    }

    // Page by page: backwards as people read, forwards as an export follows.
    let first = world.call(Method::GET, "audit?limit=4", json!(null)).await.body;
    let rest = world.call(Method::GET, &format!("audit?before={}", first["next"].as_str().unwrap()), json!(null)).await.body;
    assert_eq!(rest["entries"].as_array().unwrap(), &entries[4..]);
    let export = world.call(Method::GET, "audit?after=0-0&limit=5", json!(null)).await.body;
    assert_eq!(export["entries"][0], entries[5]);
    let behind = world.call(Method::GET, &format!("audit?after={}", export["next"].as_str().unwrap()), json!(null)).await.body;
    assert_eq!((&behind["entries"][0], behind["entries"].as_array().unwrap().len()), (&entries[0], 1));
    let refused = world.call(Method::GET, "audit?after=x", json!(null)).await;
    assert_eq!(refused.fields(), ["after"]);
}
