//! Both ports on a Redis Cluster of three masters.

use crate::cluster;
use crate::world::{World, named};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn on_a_cluster_all_can_be_made_read_changed_and_deleted() {
    let home = cluster::shared();
    let world = World::at(&home.url).await;
    world.eventually("a snapshot", async |world| world.snapshot("").await.ok()).await;
    // Each in a slot of its own.
    for _ in 0..6 {
        let project = world.project(named()).await;
        let (id, key) = world.key(&project, named()).await;
        let none = Value::Null;
        for (method, path, body) in [
            (Method::GET, "", none.clone()),
            (Method::PATCH, "", json!({"monthly_cap_usd": 5, "memory": true})),
            (Method::GET, "/keys", none.clone()),
            (Method::PUT, "/senders/app", json!({"ceilings": {"calls_per_hour": 5}})),
            (Method::GET, "/senders", none.clone()),
            (Method::POST, "/memories", json!({"text": "likes tea", "end_user": "ada"})),
            (Method::GET, "/memories", none.clone()),
            (Method::DELETE, "/memories?end_user=ada", none.clone()),
            (Method::POST, "/spend/correct", json!({"cost_usd": "0.5", "note": "test"})),
            (Method::GET, "/spend?by=day", none.clone()),
            (Method::GET, "/ledger", none.clone()),
            (Method::POST, "/spend/reset", json!({"window": "all"})),
            (Method::DELETE, "/cache", none.clone()),
        ] {
            let answer = world.call(method.clone(), &format!("projects/{project}{path}"), body).await;
            assert!(answer.status.is_success(), "{method} {path}: {answer:?}");
        }
        assert_eq!(world.authenticate(&key).await.unwrap().unwrap().key_id, id);
        assert_eq!(world.call(Method::DELETE, &format!("projects/{project}"), none).await.status, StatusCode::NO_CONTENT);
        assert_eq!(world.authenticate(&key).await, Ok(None));
    }
    for list in ["projects", "audit"] {
        assert_eq!(world.call(Method::GET, list, Value::Null).await.status, StatusCode::OK, "{list}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_master_of_a_cluster_is_asked_whether_it_forgets() {
    let home = cluster::start();
    let world = World::at(&home.url).await;
    let warned = async |world: &World| {
        let ready = world.raw(Method::GET, "/readyz", None, "").await;
        (ready.status == StatusCode::OK).then(|| ready.text.contains("may evict"))
    };
    assert!(!world.eventually("it is ready", warned).await);
    home.nodes[2].tell("CONFIG SET maxmemory-policy allkeys-lru");
    for _ in 0..6 {
        assert_eq!(warned(&world).await, Some(true), "whichever is asked first");
    }
}
