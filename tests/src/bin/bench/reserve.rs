//! `reserve` alone: what it costs with few and with a million keys in Redis, and beside an empty script that makes the same calls of Redis
//! with nothing in between.

use super::admit::{self, Order};
use super::counts::{Monitor, quoted};
use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand};
use proxium::store::{Money, name};
use proxium_e2e::{Dir, Redis};
use proxium_wire::admit_reply::Outcome;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

const KEY: &str = "bench";
const MANY: usize = 1_000_000;

/// Rates a second, one of each round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Reserve {
    /// With nothing else in Redis.
    pub few: Vec<f64>,
    /// With a million other keys.
    pub many: Vec<f64>,
    /// The same calls of Redis, written down one after the other.
    pub empty: Vec<f64>,
    /// How many calls these are.
    pub calls: usize,
}

struct Place {
    client: Client,
    redis: Redis,
    rounds: usize,
}

impl Place {
    async fn new(dir: &std::path::Path) -> Self {
        std::fs::create_dir_all(dir).expect("a directory");
        let redis = Redis::start(dir).await;
        let client = redis.client();
        client.wait_for_connect().await.expect("Redis is there");
        Self { client, redis, rounds: 0 }
    }

    fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.redis.port()).into()
    }

    async fn custom(&self, command: &'static str, args: Vec<String>) -> Value {
        self.client.custom(CustomCommand::new_static(command, ClusterHash::Random, false), args).await.expect("Redis answers")
    }

    async fn fill(&self) {
        for chunk in 0..MANY / 10_000 {
            let script = format!("for i = {}, {} do redis.call('SET', 'other:' .. i, i) end", chunk * 10_000 + 1, (chunk + 1) * 10_000);
            self.custom("EVAL", vec![script, "0".into()]).await;
        }
    }

    /// How the control plane calls the script for a new project whose limits are far away, with a place for the reservation's id; and
    /// the calls of Redis that the script makes.
    async fn call(&mut self) -> (Vec<Vec<u8>>, Vec<Vec<Vec<u8>>>) {
        self.rounds += 1;
        let project = format!("bench-{}", self.rounds);
        let far = 1_000_000_000_000_000_u64.to_string();
        let fields = |names: &[&str]| -> Vec<(String, String)> { names.iter().map(|name| ((*name).into(), far.clone())).collect() };
        let set =
            async |key: String, fields: Vec<(String, String)>| self.client.hset::<(), _, _>(key, fields).await.expect("Redis answers");
        let text = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        set(name::project(&project), [text(&[("record", "{}"), ("reset_day", "1")]), fields(&["monthly_cap"])].concat()).await;
        set(
            name::key(&project, KEY),
            [text(&[("hash", "00")]), fields(&["calls_per_hour", "requests_per_minute", "tokens_per_minute"])].concat(),
        )
        .await;
        set(name::state(&project), text(&[("month", "0"), ("spend", "0"), ("held", "0"), ("clock_ms", "0"), ("no_credentials", "1")]))
            .await;
        let money = Money::new(self.client.clone(), self.client.clone());
        let admit = async |id: &str| {
            let reply = money.admit(&admit::request(&project, KEY, id.into()), |_, _| Ok(String::new())).await.expect("an admission");
            assert!(matches!(reply.outcome, Some(Outcome::Admitted(_))), "{reply:?}");
        };
        // So that what is measured finds its windows there.
        admit("req_first").await;
        let monitor = Monitor::start(self.addr());
        admit(admit::PLACE_OF_ID).await;
        let lines = monitor.all_lines();
        let inner = lines.iter().filter(|line| line.contains(" lua] ")).map(|line| quoted(line)).collect();
        (admit::script_call(&lines), inner)
    }
}

/// A script of these calls alone. The id is its second argument, after what the function is called with.
fn empty(calls: &[Vec<Vec<u8>>]) -> String {
    let literal = |part: &Vec<u8>| {
        let text: String = part.iter().map(|byte| format!("\\{byte:03}")).collect();
        let place: String = admit::PLACE_OF_ID.bytes().map(|byte| format!("\\{byte:03}")).collect();
        format!("'{}'", text.replace(&place, "' .. ARGV[2] .. '"))
    };
    let call = |parts: &Vec<Vec<u8>>| format!("redis.call({})\n", parts.iter().map(literal).collect::<Vec<_>>().join(", "));
    let calls: String = calls.iter().map(call).collect();
    format!("{calls}return {{'admitted', {{1, 1, 1}}, {{1, 1, 1}}, 0, {{}}}}")
}

/// Measures all three in each round.
pub async fn measure(seconds: f64, rounds: usize) -> Reserve {
    let dir = Dir::fresh();
    let (mut few, mut many) = (Place::new(&dir.path().join("few")).await, Place::new(&dir.path().join("many")).await);
    many.fill().await;
    let mut measured = Reserve::default();
    for _ in 0..rounds {
        few.custom("FLUSHALL", Vec::new()).await;
        let (call, inner) = few.call().await;
        measured.calls = inner.len();
        measured.few.push(admit::rate(&Order::bare(few.addr(), call.clone(), seconds)).await);
        let (of_many, _) = many.call().await;
        measured.many.push(admit::rate(&Order::bare(many.addr(), of_many, seconds)).await);
        few.custom("FLUSHALL", Vec::new()).await;
        let hash = few.custom("SCRIPT", vec!["LOAD".into(), empty(&inner)]).await.into_string().expect("a hash");
        let place = admit::PLACE_OF_ID.into();
        let call = [b"EVALSHA".to_vec(), hash.into_bytes()].into_iter().chain(call.into_iter().skip(2)).chain([place]).collect();
        measured.empty.push(admit::rate(&Order::bare(few.addr(), call, seconds)).await);
    }
    measured
}

impl Reserve {
    /// Ratios of rates of the same round.
    pub fn many_to_few(&self) -> Vec<f64> {
        self.many.iter().zip(&self.few).map(|(many, few)| many / few).collect()
    }

    /// The same.
    pub fn to_empty(&self) -> Vec<f64> {
        self.few.iter().zip(&self.empty).map(|(few, empty)| few / empty).collect()
    }
}

impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |values: &[f64]| super::report::median(values.to_vec()).unwrap_or_default();
        write!(
            f,
            "reserve/s                    {:.0}, with a million keys {:.0} (x {:.2}, goal 0.85 to 1.15), an empty script of the same {} calls {:.0} (x {:.2}, goal 0.60)",
            of(&self.few),
            of(&self.many),
            of(&self.many_to_few()),
            self.calls,
            of(&self.empty),
            of(&self.to_empty()),
        )
    }
}
