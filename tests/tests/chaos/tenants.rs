//! Projects with limits that bind, what was seen of them at any moment, and their books at the end.

use fred::prelude::*;
use proxium::store::name;
use proxium::store::spend::{self, By};
use proxium_e2e::{Key, Stack};
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

pub const SENDER: &str = "app";

/// A ledger record.
pub type Record = HashMap<String, String>;

/// A project with one key.
pub struct Tenant {
    pub name: &'static str,
    pub key: Key,
    /// `None`: without.
    cap: Option<i64>,
    /// Calls an hour, requests and tokens a minute, calls at once; of the key or, of the tenant `sender`, of its sender.
    ceilings: [Option<i64>; 4],
}

const CEILINGS: [&str; 4] = ["calls_per_hour", "requests_per_minute", "tokens_per_minute", "max_parallel_calls"];

impl Tenant {
    async fn new(stack: &Stack, name: &'static str, cap_usd: Option<&str>, ceilings: [Option<i64>; 4], cache: Value) -> Self {
        let mut project = json!({"name": name, "cache": cache});
        if let Some(cap) = cap_usd {
            project["monthly_cap_usd"] = cap.into();
        }
        if name == "cached" {
            project["cached_answer_charge"] = 0.5.into();
        }
        let set: serde_json::Map<String, Value> =
            CEILINGS.iter().zip(ceilings).filter_map(|(name, limit)| Some(((*name).to_owned(), limit?.into()))).collect();
        let of_sender = name == "sender";
        let key = stack.key_with(project, if of_sender { json!({}) } else { json!({"ceilings": set}) }).await;
        if of_sender {
            let path = format!("/projects/{}/senders/{SENDER}", key.project);
            let _ = stack.admin().put(&path, &json!({"ceilings": set})).await.expect(200);
        }
        let cap = cap_usd.map(|usd| (usd.parse::<f64>().unwrap() * 1e9).round() as i64);
        Self { name, key, cap, ceilings }
    }

    /// One of each kind of limit, so low that it refuses part of the calls.
    pub async fn all(stack: &Stack) -> Vec<Self> {
        let no_cache = json!({"exact": false});
        vec![
            Self::new(stack, "capped", Some("0.012"), [None; 4], no_cache.clone()).await,
            Self::new(stack, "hourly", None, [Some(120), None, None, None], no_cache.clone()).await,
            Self::new(stack, "tokens", None, [None, None, Some(1_800), None], no_cache.clone()).await,
            Self::new(stack, "parallel", None, [None, None, None, Some(2)], no_cache.clone()).await,
            Self::new(stack, "sender", None, [None, Some(150), None, Some(4)], no_cache).await,
            Self::new(stack, "cached", Some("1"), [None; 4], json!({"exact": true, "ttl_s": 5})).await,
        ]
    }

    pub fn sends_as_sender(&self) -> bool {
        self.name == "sender"
    }

    /// A text of its own, or of the project that caches one of few.
    pub fn text(&self, number: usize, dice: &mut StdRng) -> String {
        let number = if self.name == "cached" { dice.random_range(0..6) } else { number };
        format!("call number {number:06} of {}", self.name)
    }

    /// Texts tell calls apart.
    pub fn tells_calls_apart(&self) -> bool {
        self.name != "cached"
    }

    fn window(&self) -> String {
        let Key { project, id, .. } = &self.key;
        if self.sends_as_sender() { name::sender_window(project, SENDER) } else { name::key_window(project, id) }
    }

    fn held_set(&self) -> String {
        let Key { project, id, .. } = &self.key;
        if self.sends_as_sender() { name::held_by_sender(project, SENDER) } else { name::held_by_key(project, id) }
    }

    /// Spend and holds, windows and calls at once as they are now, each with its limit.
    pub async fn look(&self, redis: &Client) -> Result<[(Option<i64>, i64); 5], fred::error::Error> {
        let pipeline = redis.pipeline();
        let () = pipeline.hmget(name::state(&self.key.project), vec!["spend", "held"]).await?;
        let () = pipeline.hmget(self.window(), vec!["c_sum", "r_sum", "t_sum"]).await?;
        let () = pipeline.scard(self.held_set()).await?;
        let (money, windows, parallel): (Vec<Option<i64>>, Vec<Option<i64>>, i64) = pipeline.all().await?;
        let money: i64 = money.into_iter().map(Option::unwrap_or_default).sum();
        let [calls, requests, tokens] = [0, 1, 2].map(|at| windows[at].unwrap_or(0));
        let limits = [self.cap, self.ceilings[0], self.ceilings[1], self.ceilings[2], self.ceilings[3]];
        // The empty id says that the set is made.
        let seen = [money, calls, requests, tokens, (parallel - 1).max(0)];
        Ok(std::array::from_fn(|at| (limits[at], seen[at])))
    }

    /// The books once nothing is held any more: ledger = counters = state = windows; why they are not.
    pub async fn books(&self, redis: &Client) -> Result<Vec<Record>, String> {
        let Key { project, id: key, .. } = &self.key;
        let state: HashMap<String, i64> = redis.hgetall(name::state(project)).await.map_err(|error| error.to_string())?;
        check("due", redis.zcard::<i64, _>(name::due(project)).await.map_err(|error| error.to_string())?, 0)?;
        for set in [name::held_by_key(project, key), name::held_by_sender(project, SENDER)] {
            let ids: Vec<String> = redis.smembers(&set).await.map_err(|error| error.to_string())?;
            check(&set, ids.iter().filter(|id| !id.is_empty()).count() as i64, 0)?;
        }
        check("held", state["held"], 0)?;
        let ledger: Vec<(String, Record)> = redis.xrange(name::ledger(project), "-", "+", None).await.map_err(|error| error.to_string())?;
        let ledger: Vec<Record> = ledger.into_iter().map(|(_, record)| record).collect();
        let sum = |field: &str| ledger.iter().map(|record| number(record, field)).sum::<i64>();
        let month: Option<i64> =
            redis.hget(name::spend_month(project, &state["month"].to_string()), "spend").await.map_err(|error| error.to_string())?;
        let today = spend::today();
        let yesterday = today.yesterday().map_err(|error| error.to_string())?;
        let by_day = spend::report(redis, project, yesterday, today, By::Day).await.map_err(|error| error.to_string())?;
        check("spend of the state", state["spend"], sum("cost_nano_usd"))?;
        check("spend of the month", month.unwrap_or(0), sum("cost_nano_usd"))?;
        check("cost of the days", by_day.values().map(|day| day.cost.0).sum(), sum("cost_nano_usd"))?;
        check("output of the days", by_day.values().map(|day| day.output_tokens).sum(), sum("output_tokens"))?;
        let window: HashMap<String, i64> = redis.hgetall(self.window()).await.map_err(|error| error.to_string())?;
        for (tag, width, field) in [("c", 60_000, "calls"), ("r", 1_000, "calls"), ("t", 1_000, "tokens")] {
            let Some(head) = window.get(&format!("{tag}_head")) else { continue };
            let within = ledger.iter().filter(|record| number(record, "at_ms") / width > head - 61);
            check(&format!("window {tag}"), window[&format!("{tag}_sum")], within.map(|record| number(record, field)).sum())?;
        }
        Ok(ledger)
    }
}

fn check(what: &str, is: i64, of_ledger: i64) -> Result<(), String> {
    if is == of_ledger { Ok(()) } else { Err(format!("{what} is {is}, and should be {of_ledger}")) }
}

pub fn number(record: &Record, field: &str) -> i64 {
    record.get(field).map_or(0, |text| text.parse().unwrap())
}

/// Records by the end user's name, which is the call's number.
pub fn by_call(ledger: &[Record]) -> BTreeMap<usize, Vec<&Record>> {
    let mut calls: BTreeMap<usize, Vec<&Record>> = BTreeMap::new();
    for record in ledger {
        calls.entry(record["end_user"].parse().unwrap()).or_default().push(record);
    }
    calls
}
