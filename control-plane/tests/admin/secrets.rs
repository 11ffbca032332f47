//! A project's own credentials.

use crate::redis::Redis;
use crate::world::{NO_DISK, SECRET, World, named};
use fred::prelude::*;
use proxium::seal::Seal;
use proxium_wire::{AdmitReply, AdmitRequest, Alternative, OwnCredential, admit_reply::Outcome, path};
use reqwest::{Method, StatusCode};
use serde_json::json;
use std::sync::Arc;

fn admission(project: &str, key_id: &str, id: &str) -> AdmitRequest {
    AdmitRequest {
        id: id.to_owned(),
        project: project.to_owned(),
        key_id: key_id.to_owned(),
        normal: Alternative { providers: vec!["openai".to_owned()], ..Alternative::default() },
        hold_ms: 60_000,
        ..AdmitRequest::default()
    }
}

#[tokio::test]
async fn a_secret_is_sealed_at_rest_and_reaches_only_an_admission() {
    let world = World::start().await;
    let project = world.project(named()).await;
    let (key, _) = world.key(&project, named()).await;
    let path = format!("projects/{project}/credentials/openai");
    let secret = "sk-very-secret-4711";
    assert_eq!(world.call(Method::PUT, &path, json!({"secret": secret})).await.status, StatusCode::NO_CONTENT);
    assert!(!world.dump("px:").await.contains("very-secret"));
    let list = world.call(Method::GET, &format!("projects/{project}/credentials"), json!(null)).await.body;
    assert_eq!(list, json!({"credentials": [{"provider": "openai"}]}));

    let reply: AdmitReply = world.ask(path::ADMIT, SECRET, &admission(&project, &key, "r1")).await.unwrap();
    let Some(Outcome::Admitted(admitted)) = reply.outcome else { panic!("{reply:?}") };
    assert_eq!(admitted.credentials, [OwnCredential { provider: "openai".to_owned(), secret: secret.to_owned() }]);

    assert_eq!(world.call(Method::DELETE, &path, json!(null)).await.status, StatusCode::NO_CONTENT);
    assert_eq!(world.call(Method::DELETE, &path, json!(null)).await.status, StatusCode::NOT_FOUND);
    let reply: AdmitReply = world.ask(path::ADMIT, SECRET, &admission(&project, &key, "r2")).await.unwrap();
    let Some(Outcome::Admitted(admitted)) = reply.outcome else { panic!("{reply:?}") };
    assert_eq!(admitted.credentials, []);
    let metrics = world.raw(Method::GET, "/metrics", None, "").await.text;
    assert!(metrics.contains(r#"proxium_admissions_total{limit="",outcome="admitted"} 2"#), "{metrics}");
}

#[tokio::test]
async fn a_secret_that_no_header_can_carry_is_refused_without_showing_it() {
    let world = World::start().await;
    let project = world.project(named()).await;
    let path = format!("projects/{project}/credentials/openai");
    for secret in [json!("sk secret"), json!("sk-secret\r\nx: y"), json!(""), json!(1), json!(null)] {
        let answer = world.call(Method::PUT, &path, json!({"secret": secret})).await;
        assert_eq!(answer.fields(), ["secret"], "{secret}");
        assert!(!answer.text.contains("sk"), "{}", answer.text);
    }
    let unknown = world.call(Method::PUT, &format!("projects/{project}/credentials/nobody"), json!({"secret": "sk"})).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let no_project = world.call(Method::PUT, "projects/none/credentials/openai", json!({"secret": "sk"})).await;
    assert_eq!(no_project.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn without_a_seal_key_the_answer_says_what_to_set() {
    let server = Redis::shared();
    let world = World::on(server.client().await, Seal::without_key(), Some(server)).await;
    let project = world.project(named()).await;
    let answer = world.call(Method::PUT, &format!("projects/{project}/credentials/openai"), json!({"secret": "sk"})).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.body["error"]["message"].as_str().unwrap().contains("PROXIUM_SEAL_KEY"), "{answer:?}");
}

/// What an admission hands to a filter.
async fn opened(world: &World, project: &str, key: &str, id: &str) -> Vec<OwnCredential> {
    let reply: AdmitReply = world.ask(path::ADMIT, SECRET, &admission(project, key, id)).await.unwrap();
    let Some(Outcome::Admitted(admitted)) = reply.outcome else { panic!("{reply:?}") };
    admitted.credentials
}

#[tokio::test]
async fn after_a_rotation_the_new_key_opens_everything_alone() {
    let server = Arc::new(Redis::start(NO_DISK));
    let (old, new) = (format!("old:{}", "ab".repeat(32)), format!("new:{}", "cd".repeat(32)));
    let on = async |keys: &str| World::on(server.client().await, Seal::parse(keys).unwrap(), Some(Arc::clone(&server))).await;
    let before = on(&old).await;
    let mut projects = Vec::new();
    // More than one page of projects.
    for number in 0..60 {
        let project = before.project(named()).await;
        let secret = format!("sk-{number}");
        before.call(Method::PUT, &format!("projects/{project}/credentials/openai"), json!({"secret": secret})).await;
        projects.push((project, secret));
    }
    let (last, _) = projects.iter().max().unwrap().clone();
    let () = server.client().await.hset(format!("px:{{{last}}}:credentials"), ("anthropic", "v1:lost:00")).await.unwrap();

    let both = on(&format!("{new},{old}")).await;
    let first = both.call(Method::POST, "credentials/reseal", json!({})).await.body;
    assert_eq!((&first["key"], &first["resealed"], &first["already"]), (&json!("new"), &json!(50), &json!(0)));
    // Whoever did the first page is gone: another begins from the start.
    let again = both.call(Method::POST, "credentials/reseal", json!({})).await.body;
    assert_eq!((&again["resealed"], &again["already"]), (&json!(0), &json!(50)));
    let rest = both.call(Method::POST, &format!("credentials/reseal?after={}", again["next"].as_str().unwrap()), json!({})).await.body;
    assert_eq!((&rest["resealed"], &rest["next"]), (&json!(10), &json!(null)));
    assert_eq!((&rest["unreadable"][0]["project"], &rest["unreadable"][0]["provider"]), (&json!(last), &json!("anthropic")));

    let after = on(&new).await;
    for (number, (project, secret)) in projects.iter().filter(|(project, _)| *project != last).enumerate() {
        let (key, _) = after.key(project, named()).await;
        let credentials = opened(&after, project, &key, &format!("r{number}")).await;
        assert_eq!(credentials, [OwnCredential { provider: "openai".to_owned(), secret: secret.clone() }]);
    }
}
