//! Near matches on a real Redis: when an embedding's money is held, and how vectors come and go.

use crate::world::{World, no_credentials, settled};
use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand};
use proxium::store::{name, vectors};
use proxium_wire::{
    AdmitRequest, Alternative, Embed, Hold, Limit, Near, Settlement, Store, StoredAnswer, Vector, admit_reply::Outcome, settlement::End,
};

fn embed(world: &World, id: &str) -> AdmitRequest {
    let hold = Hold { nano_usd: 50, ..Hold::default() };
    AdmitRequest {
        embed: Some(Embed { id: format!("{id}_embedding"), hold, provider: "openai".into(), model: "embed".into() }),
        ..world.call(id)
    }
}

async fn outcome(world: &World, request: &AdmitRequest) -> Outcome {
    world.money.admit(request, no_credentials).await.unwrap().outcome.unwrap()
}

fn vector(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn looking(world: &World, id: &str, numbers: &[f32], question: &str) -> AdmitRequest {
    let call = world.call(id);
    AdmitRequest {
        normal: Alternative { partition: vec![7; 32], ..call.normal },
        near: Some(Near { vector: vector(numbers), question: question.into(), threshold_ppm: 950_000 }),
        ..call
    }
}

async fn keep(world: &World, id: &str, key: u8, numbers: &[f32], question: &str) {
    let answer = StoredAnswer { body: vec![key], model: "small".into(), request_id: id.into(), ..StoredAnswer::default() };
    let vector = Some(Vector { partition: vec![7; 32], vector: vector(numbers), question: question.into() });
    let store = Store { cache_key: vec![key; 32], answer, ttl_s: 600, vector, ..Store::default() };
    let settlement = Settlement {
        id: id.into(),
        project: world.project.clone(),
        key_id: crate::world::KEY.into(),
        source: String::new(),
        end: Some(End::Settle(Box::new(settled((1, 1), 1, Some(store))))),
        side_call: false,
    };
    world.money.settle(&proxium_wire::SettleRequest { settlements: vec![settlement] }).await.unwrap();
}

#[tokio::test]
async fn an_embedding_is_held_only_beside_a_call_that_would_be_let_in() {
    let world = World::new().await;
    assert!(matches!(outcome(&world, &embed(&world, "a")).await, Outcome::Embed(_)));
    assert_eq!(world.held().await, 50);
    // The call holds 30 tokens and 1,000 nano-USD: with both there is no room for the embedding; without it there is.
    world.cap(1_050).await;
    assert!(matches!(outcome(&world, &embed(&world, "b")).await, Outcome::Admitted(_)));
    world.cap(2_049).await;
    assert!(matches!(outcome(&world, &embed(&world, "c")).await, Outcome::Refused(_)));

    let world = World::new().await;
    world.ceiling(Limit::TokensPerMinute, 59).await;
    assert!(matches!(outcome(&world, &embed(&world, "d")).await, Outcome::Embed(_)));
    world.admitted(&world.call("e")).await;
    assert!(matches!(outcome(&world, &embed(&world, "f")).await, Outcome::Refused(_)), "29 tokens are left, and the call holds 30");
}

/// How many wordings of a question are kept.
async fn wordings(world: &World, question: &str) -> i64 {
    let set = name::vector_set(&world.project, &vectors::set_of(&[7; 32], question).unwrap());
    world.client.custom(CustomCommand::new_static("VCARD", ClusterHash::FirstKey, false), vec![set]).await.unwrap()
}

#[tokio::test]
async fn the_nearest_whose_words_agree_is_taken_and_those_that_are_gone_are_forgotten() {
    const QUESTION: &str = "Why is the sky blue?";
    let world = World::new().await;
    assert!(vectors::supported(&world.client).await.unwrap());
    keep(&world, "a", 1, &[1.0, 0.0], "Why is the sky not blue?").await;
    keep(&world, "b", 2, &[1.0, 0.1], "Tell me why the sky is blue.").await;
    keep(&world, "c", 3, &[0.0, 1.0], QUESTION).await;
    let Outcome::Hit(hit) = outcome(&world, &looking(&world, "d", &[1.0, 0.0], QUESTION)).await else { panic!("no hit") };
    assert_eq!((hit.answer.request_id.as_str(), hit.similarity_ppm), ("b", Some(995_037)));
    let _ = outcome(&world, &looking(&world, "e", &[1.0, 0.0, 0.0], QUESTION)).await;

    let () = world.client.del(vec![name::answer(&world.project, &hex::encode([2; 32]))]).await.unwrap();
    assert!(matches!(outcome(&world, &looking(&world, "f", &[1.0, 0.0], QUESTION)).await, Outcome::Admitted(_)));
    assert_eq!(world.client.zcard::<u64, _>(name::vectors(&world.project)).await.unwrap(), 2);
    assert_eq!(wordings(&world, QUESTION).await, 1);
    // Words that say nothing of their own are alike to none.
    keep(&world, "g", 4, &[1.0, 0.0], "How are you?").await;
    assert!(matches!(outcome(&world, &looking(&world, "h", &[1.0, 0.0], "How are you?")).await, Outcome::Admitted(_)));
    assert_eq!(world.client.zcard::<u64, _>(name::vectors(&world.project)).await.unwrap(), 2);
}

#[tokio::test]
async fn of_one_question_no_more_wordings_are_kept_than_are_looked_at() {
    let world = World::new().await;
    let most = u8::try_from(vectors::MAX_OF_SET).unwrap();
    for number in 0..most + 2 {
        let angle = f32::from(number) * 0.02;
        keep(&world, &format!("s{number}"), number + 1, &[angle.cos(), angle.sin()], "Why is the sky blue?").await;
    }
    assert_eq!(wordings(&world, "Why is the sky blue?").await, vectors::MAX_OF_SET);
    // The nearest is found among all of them, and also where the answers of all others are gone.
    let last = f32::from(most - 1) * 0.02;
    let near = [last.cos(), last.sin()];
    for _ in 0..2 {
        let Outcome::Hit(hit) = outcome(&world, &looking(&world, "n", &near, "Tell me why the sky is blue")).await else {
            panic!("no hit")
        };
        assert_eq!(hit.answer.request_id, format!("s{}", most - 1));
        let others = (1..most).map(|key| name::answer(&world.project, &hex::encode([key; 32]))).collect::<Vec<_>>();
        let () = world.client.del(others).await.unwrap();
    }
}

#[tokio::test]
async fn a_project_has_no_more_than_its_share_of_vectors_and_those_whose_time_is_over_go() {
    let world = World::new().await;
    let index = name::vectors(&world.project);
    let fill = "for i = 1, 100000 do redis.call('ZADD', KEYS[1], i < 4 and i or 4e12 + i, 'x|' .. i) end return 0";
    let () = world.client.eval(fill, vec![index.clone()], Vec::<String>::new()).await.unwrap();
    keep(&world, "a", 1, &[1.0, 0.0], "Why is the sky blue?").await;
    let due: u64 = world.client.zcount(&index, 0.0, 4.0).await.unwrap();
    let count: i64 = world.client.zcard(&index).await.unwrap();
    assert_eq!((due, count <= vectors::MAX_OF_ONE), (0, true));
    assert_eq!(wordings(&world, "Why is the sky blue?").await, 1);
}
