//! A project in Redis with one key, and a clock that stands where a test puts it.

use crate::redis::{Home, connected};
use fred::prelude::*;
use proxium::store::{Money, StoreError, name};
use proxium_wire::{
    AdmitRequest, Admitted, Alternative, Call, Endpoint, Hold, Limit, Refused, Release, Settle, SettleRequest, Settlement, Store, Usage,
    admit_reply::Outcome, settlement::End,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where the clock of a new project stands: ahead of Redis' own, so that it stands still.
pub const NOON: &str = "2100-01-15T12:00:00Z";
pub const KEY: &str = "k1";

pub struct World {
    pub client: Client,
    pub money: Money,
    pub project: String,
    pub home: Home,
}

pub fn ms(instant: &str) -> i64 {
    instant.parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

pub fn no_credentials(_: &str, _: &str) -> Result<String, StoreError> {
    unreachable!("the project has no credentials")
}

impl World {
    /// In the home that the tests of this binary share.
    pub async fn new() -> Self {
        Self::on(crate::home()).await
    }

    pub async fn on(home: impl Into<Home>) -> Self {
        let home = home.into();
        let client = connected(&home.url).await;
        Self::over(home, client).await
    }

    pub async fn over(home: Home, client: Client) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let project = format!("p{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let world = Self { money: Money::new(client.clone(), client.clone()), client, project, home };
        world.set(&name::project(&world.project), "record", "{}").await;
        world.set(&name::key(&world.project, KEY), "hash", "00").await;
        for (field, value) in [("month", "0"), ("spend", "0"), ("held", "0"), ("clock_ms", "0")] {
            world.set(&name::state(&world.project), field, value).await;
        }
        let () = world.client.sadd(name::PROJECTS, &world.project).await.unwrap();
        world.clock(ms(NOON)).await;
        world
    }

    pub async fn set(&self, key: &str, field: &str, value: &str) {
        let () = self.client.hset(key, (field, value)).await.unwrap();
    }

    pub async fn cap(&self, nano: i64) {
        self.set(&name::project(&self.project), "monthly_cap", &nano.to_string()).await;
    }

    pub async fn ceiling(&self, limit: Limit, value: u64) {
        self.set(&name::key(&self.project, KEY), limit.name(), &value.to_string()).await;
    }

    pub async fn sender_ceiling(&self, source: &str, limit: Limit, value: u64) {
        self.set(&name::sender(&self.project, source), limit.name(), &value.to_string()).await;
    }

    /// Puts the project's clock there; it stands still while that is in the future.
    pub async fn clock(&self, ms: i64) {
        self.set(&name::state(&self.project), "clock_ms", &ms.to_string()).await;
    }

    /// A call that holds 30 tokens and 1,000 nano-USD for a minute.
    pub fn call(&self, id: &str) -> AdmitRequest {
        AdmitRequest {
            id: id.into(),
            project: self.project.clone(),
            key_id: KEY.into(),
            source: String::new(),
            call: a_call(),
            normal: Alternative {
                cache_key: vec![],
                hold: Hold { input_tokens: 10, output_tokens: 20, nano_usd: 1_000 },
                providers: vec!["openai".into()],
                resolved_model: String::new(),
                ..Alternative::default()
            },
            soft_cap: None,
            hold_ms: 60_000,
            side_call: false,
            ..AdmitRequest::default()
        }
    }

    pub async fn admit(&self, request: &AdmitRequest) -> Outcome {
        self.money.admit(request, no_credentials).await.unwrap().outcome.unwrap()
    }

    pub async fn admitted(&self, request: &AdmitRequest) -> Admitted {
        match self.admit(request).await {
            Outcome::Admitted(admitted) => admitted,
            other => panic!("{} should be admitted, was {other:?}", request.id),
        }
    }

    pub async fn refused(&self, request: &AdmitRequest) -> Refused {
        match self.admit(request).await {
            Outcome::Refused(refused) => refused,
            other => panic!("{} should be refused, was {other:?}", request.id),
        }
    }

    pub fn end(&self, id: &str, source: &str, end: End) -> SettleRequest {
        let settlement = Settlement {
            id: id.into(),
            project: self.project.clone(),
            key_id: KEY.into(),
            source: source.into(),
            end: Some(end),
            side_call: false,
        };
        SettleRequest { settlements: vec![settlement] }
    }

    pub async fn settle(&self, id: &str, tokens: (u64, u64), cost: i64) {
        self.money.settle(&self.end(id, "", End::Settle(Box::new(settled(tokens, cost, None))))).await.unwrap();
    }

    pub async fn release(&self, id: &str) {
        self.money.settle(&self.end(id, "", End::Release(Release {}))).await.unwrap();
    }

    /// Sums of the key's windows: calls per hour, requests per minute, tokens per minute.
    pub async fn key_window(&self) -> [i64; 3] {
        self.window(&name::key_window(&self.project, KEY)).await
    }

    pub async fn window(&self, key: &str) -> [i64; 3] {
        let hash: HashMap<String, i64> = self.client.hgetall(key).await.unwrap();
        ["c", "r", "t"].map(|tag| {
            let sum = hash.get(&format!("{tag}_sum")).copied().unwrap_or(0);
            let buckets: i64 = (0..61).filter_map(|slot| hash.get(&format!("{tag}{slot}"))).sum();
            assert_eq!(sum, buckets, "a window's sum is the sum of its buckets");
            sum
        })
    }

    /// Month, spend, held.
    pub async fn state(&self) -> [i64; 3] {
        let values: Vec<i64> = self.client.hmget(name::state(&self.project), vec!["month", "spend", "held"]).await.unwrap();
        values.try_into().unwrap()
    }

    pub async fn spend(&self) -> i64 {
        self.state().await[1]
    }

    pub async fn held(&self) -> i64 {
        self.state().await[2]
    }

    /// Calls, tokens and money that a reservation holds; nothing once it has ended. As `books.lua` packs it.
    pub async fn held_by(&self, id: &str) -> [i64; 3] {
        const HELD: &str = "local r = { cmsgpack.unpack(redis.call('GET', KEYS[1]) or '\\0') }
            return r[1] == 'held' and { r[8], r[9], r[10] } or { 0, 0, 0 }";
        let held: Vec<i64> = self.client.eval(HELD, name::reservation(&self.project, id), ()).await.unwrap();
        held.try_into().unwrap()
    }

    pub async fn ledger(&self) -> Vec<HashMap<String, String>> {
        let entries: Vec<(String, HashMap<String, String>)> =
            self.client.xrange(name::ledger(&self.project), "-", "+", None).await.unwrap();
        entries.into_iter().map(|(_, fields)| fields).collect()
    }

    pub async fn ledger_sum(&self, field: &str) -> i64 {
        self.ledger().await.iter().map(|record| record[field].parse::<i64>().unwrap()).sum()
    }

    /// All that a refusal must not touch.
    pub async fn everything(&self) -> Vec<HashMap<String, String>> {
        let [state, key, sender] =
            [name::state(&self.project), name::key_window(&self.project, KEY), name::sender_window(&self.project, "app")];
        let (due, ledger) = (name::due(&self.project), name::ledger(&self.project));
        let (state, key, sender, due, ledger) = tokio::join!(
            self.client.hgetall(state),
            self.client.hgetall(key),
            self.client.hgetall(sender),
            self.client.zcard::<i64, _>(due),
            self.client.xlen::<i64, _>(ledger),
        );
        let counts = HashMap::from([("due".into(), due.unwrap().to_string()), ("ledger".into(), ledger.unwrap().to_string())]);
        let all = vec![state.unwrap(), key.unwrap(), sender.unwrap(), counts];
        all
    }
}

pub fn a_call() -> Call {
    Call {
        endpoint: Endpoint::Chat.into(),
        requested_model: "fast".into(),
        resolved_model: "small".into(),
        end_user: "ada".into(),
        started_at_ms: 1_700_000_000_000,
    }
}

pub fn settled((input, output): (u64, u64), cost: i64, store: Option<Store>) -> Settle {
    Settle {
        call: a_call(),
        model: "small".into(),
        provider: "openai".into(),
        usage: Usage { input, cached_input: 0, cache_write_5m: 0, cache_write_1h: 0, output, reasoning: 0, searches: 0 },
        cost_nano_usd: cost,
        estimated: false,
        abandoned: false,
        attempts: vec![
            proxium_wire::Attempt { model: "big".into(), outcome: "status_500".into(), ms: 12 },
            proxium_wire::Attempt { model: "small".into(), outcome: "ok".into(), ms: 340 },
        ],
        latency_ms: 352,
        store,
        ..Settle::default()
    }
}
