//! Who may do what.

use crate::world::{ADMIN, SECRET, VIEWER, World, named};
use prost::Message;
use proxium_wire::{AuthenticateRequest, GroupReply, GroupRequest, GroupedCall, SnapshotReply, SnapshotRequest, path};
use reqwest::{Method, StatusCode};
use serde_json::json;

#[tokio::test]
async fn without_the_right_token_nothing_is_told() {
    let world = World::start().await;
    for token in [None, Some("wrong"), Some(""), Some("admin-tokem")] {
        for path in ["projects", "catalog", "projects/x/keys"] {
            let answer = world.raw(Method::GET, &format!("/admin/v1/{path}"), token, "").await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{token:?}");
            assert!(answer.body["error"]["message"].is_string());
        }
    }
}

#[tokio::test]
async fn a_viewer_reads_and_cannot_write() {
    let world = World::start().await;
    let id = world.project(named()).await;
    let project = format!("/admin/v1/projects/{id}");
    assert_eq!(world.raw(Method::GET, &project, Some(VIEWER), "").await.status, StatusCode::OK);
    for (method, path) in [
        (Method::POST, "/admin/v1/projects".to_owned()),
        (Method::PATCH, project.clone()),
        (Method::DELETE, project.clone()),
        (Method::POST, format!("{project}/keys")),
        (Method::PUT, format!("{project}/senders/a")),
        (Method::PUT, format!("{project}/credentials/openai")),
        (Method::DELETE, format!("{project}/cache")),
    ] {
        let answer = world.raw(method, &path, Some(VIEWER), r#"{"name":"x"}"#).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(world.raw(Method::GET, &project, Some(ADMIN), "").await.body["name"], "test");
}

#[tokio::test]
async fn filters_need_the_secret() {
    let world = World::start().await;
    for secret in ["", "wrong", &SECRET[1..], &format!("{SECRET}x")] {
        let answer = world.ask::<SnapshotReply>(path::SNAPSHOT, secret, &SnapshotRequest::default()).await;
        assert_eq!(answer, Err(StatusCode::UNAUTHORIZED));
        // Before anything of it is read.
        for path in [path::AUTHENTICATE, path::ADMIT, path::SETTLE, path::SNAPSHOT] {
            assert_eq!(world.post(path, secret, vec![0xff; 9]).await.status(), StatusCode::UNAUTHORIZED, "{path}");
        }
    }
    for path in [path::AUTHENTICATE, path::ADMIT, path::SETTLE, path::SNAPSHOT] {
        assert_eq!(world.post(path, SECRET, vec![0xff; 9]).await.status(), StatusCode::BAD_REQUEST, "{path}");
    }
}

#[tokio::test]
async fn a_group_is_answered_call_by_call_and_a_path_that_is_none_is_not_found() {
    let world = World::start().await;
    let calls = |bodies: &[Vec<u8>]| bodies.iter().map(|body| GroupedCall { body: body.clone(), traceparent: String::new() }).collect();
    let good = AuthenticateRequest { key_hash: vec![0; 32] }.encode_to_vec();
    for (path, statuses) in [(path::AUTHENTICATE, [200, 400]), ("/v1/of-a-later-version", [404, 404]), (path::GROUP, [404, 404])] {
        let group = GroupRequest { path: path.into(), calls: calls(&[good.clone(), vec![0xff]]) };
        let GroupReply { answers } = world.ask(path::GROUP, SECRET, &group).await.unwrap();
        assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), statuses, "{path}");
    }
    assert_eq!(world.post(path::GROUP, SECRET, vec![0xff]).await.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn unknown_paths_and_methods_are_answered_as_json() {
    let world = World::start().await;
    for (method, path, status) in [
        (Method::GET, "nothing", StatusCode::NOT_FOUND),
        (Method::GET, "projects/no-such", StatusCode::NOT_FOUND),
        (Method::GET, "projects/No%7Bsuch%7D", StatusCode::NOT_FOUND),
        (Method::DELETE, "projects/no-such", StatusCode::NOT_FOUND),
        (Method::GET, "projects/no-such/keys", StatusCode::NOT_FOUND),
        (Method::GET, "projects/no-such/keys/key_1", StatusCode::NOT_FOUND),
        (Method::PUT, "projects", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let answer = world.call(method, path, json!(null)).await;
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.body["error"]["message"].is_string(), "{path}: {}", answer.text);
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_as_json() {
    let world = World::start().await;
    let answer = world.raw(Method::POST, "/admin/v1/projects", Some(ADMIN), vec![b' '; 2 << 20]).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(answer.body["error"]["message"].is_string(), "{}", answer.text);
}

#[tokio::test]
async fn health_and_metrics_are_open_and_tell_no_ids() {
    let world = World::start().await;
    let id = world.project(named()).await;
    world.call(Method::GET, &format!("projects/{id}"), json!(null)).await;
    assert_eq!(world.raw(Method::GET, "/healthz", None, "").await.status, StatusCode::OK);
    let ready = world.raw(Method::GET, "/readyz", None, "").await;
    assert_eq!((ready.status, &ready.body["ready"]), (StatusCode::OK, &json!(true)));
    assert!(ready.text.contains("appendfsync always"), "the tests' Redis does not keep every call: {}", ready.text);
    let metrics = world.raw(Method::GET, "/metrics", None, "").await.text;
    assert!(metrics.contains(r#"proxium_requests_total{port="admin",route="/admin/v1/projects/{project}",status="200"} 1"#), "{metrics}");
    assert!(!metrics.contains(&id));
}
