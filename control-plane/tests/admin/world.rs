//! A control plane: both routers on free ports, in this process.

use crate::redis::Redis;
use fred::prelude::*;
use prost::Message;
use proxium::admin::{self, Tokens};
use proxium::catalog::Watched;
use proxium::internal;
use proxium::metrics::Metrics;
use proxium::seal::Seal;
use proxium::store::changes::Changes;
use proxium::store::refusals::Refusals;
use proxium::store::{self, Money, keys};
use proxium_wire::{AuthenticateReply, AuthenticateRequest, KeyRecord, SECRET_HEADER, SnapshotReply, SnapshotRequest, path};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const ADMIN: &str = "admin-token";
pub const VIEWER: &str = "viewer-token";
pub const SECRET: &str = "internal-secret";
pub const NO_DISK: &[&str] = &["--save", "", "--appendonly", "no"];
const BOUND: Duration = Duration::from_secs(10);
const CATALOG: &str = "
providers:
  openai: {dialect: openai, endpoint: http://127.0.0.1:9/v1}
models:
  small: {provider: openai, free: true, max_output_tokens: 1000}
  big: {provider: openai, price_usd_per_mtok: {input: 0.25, output: 2}, max_output_tokens: 1000}
chains:
  fast: [small, big]
";

/// An answer of the admin port.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub body: Value,
    pub text: String,
}

impl Answer {
    /// Of a refusal: the paths of the bad fields, in the order of the alphabet.
    pub fn fields(&self) -> Vec<&str> {
        let mut fields: Vec<_> =
            self.body["error"]["fields"].as_array().unwrap().iter().map(|fault| fault["field"].as_str().unwrap()).collect();
        fields.sort_unstable();
        fields
    }

    pub fn id(&self) -> String {
        assert_eq!(self.status, StatusCode::CREATED, "{self:?}");
        self.body["id"].as_str().unwrap().to_owned()
    }
}

pub struct World {
    pub redis: Client,
    admin: String,
    internal: String,
    http: reqwest::Client,
    h2c: reqwest::Client,
    catalog: std::path::PathBuf,
    _server: Option<Arc<Redis>>,
}

impl World {
    pub async fn start() -> Self {
        let server = Redis::shared();
        let redis = server.client().await;
        let seal = Seal::parse(&format!("k1:{}", "ab".repeat(32))).unwrap();
        Self::on(redis, seal, Some(server)).await
    }

    /// On a Redis that may not be there.
    pub async fn at(url: &str) -> Self {
        Self::on(store::connect(url).unwrap(), Seal::without_key(), None).await
    }

    pub async fn on(redis: Client, seal: Seal, server: Option<Arc<Redis>>) -> Self {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("proxium-admin-{}-{number}.yaml", std::process::id()));
        std::fs::write(&path, CATALOG).unwrap();
        let catalog = Watched::start(path.clone(), |_| Ok(())).unwrap_or_else(|faults| panic!("{faults}"));
        let (seal, metrics) = (Arc::new(seal), Arc::new(Metrics::new().unwrap()));
        let money = Money::new(redis.clone(), redis.clone());
        let internal = internal::router(internal::State {
            redis: redis.clone(),
            cache: redis.clone(),
            money: money.clone(),
            seal: Arc::clone(&seal),
            catalog: catalog.clone(),
            changes: Changes::start(redis.clone()),
            secret: SECRET.into(),
            refusals: Refusals::start(redis.clone()),
            metrics: Arc::clone(&metrics),
        });
        let tokens = Arc::new(Tokens { admin: Some(ADMIN.to_owned()), viewer: Some(VIEWER.to_owned()) });
        let admin = admin::router(admin::State { redis: redis.clone(), cache: redis.clone(), money, seal, catalog, tokens, metrics });
        Self {
            redis,
            admin: open(admin).await,
            internal: open(internal).await,
            http: reqwest::Client::new(),
            h2c: reqwest::Client::builder().http2_prior_knowledge().build().unwrap(),
            catalog: path,
            _server: server,
        }
    }

    pub fn replace_catalog(&self, from: &str, to: &str) {
        std::fs::write(&self.catalog, CATALOG.replace(from, to)).unwrap();
    }

    /// A request with the admin's token; `null` sends no body.
    pub async fn call(&self, method: Method, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.raw(method, &format!("/admin/v1/{path}"), Some(ADMIN), body).await
    }

    pub async fn raw(&self, method: Method, path: &str, token: Option<&str>, body: impl Into<reqwest::Body>) -> Answer {
        let mut request = self.http.request(method, format!("{}{path}", self.admin)).body(body);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        Answer { status, body: serde_json::from_str(&text).unwrap_or(Value::Null), text }
    }

    pub async fn project(&self, document: Value) -> String {
        self.call(Method::POST, "projects", document).await.id()
    }

    /// Id and text of a new key.
    pub async fn key(&self, project: &str, document: Value) -> (String, String) {
        let made = self.call(Method::POST, &format!("projects/{project}/keys"), document).await;
        (made.id(), made.body["key"].as_str().unwrap().to_owned())
    }

    /// One message to the internal port, over HTTP/2 with prior knowledge as Envoy does.
    pub async fn ask<M: Message + Default>(&self, path: &str, secret: &str, message: &impl Message) -> Result<M, StatusCode> {
        let answer = self.post(path, secret, message.encode_to_vec()).await;
        match answer.status() {
            StatusCode::OK => Ok(M::decode(answer.bytes().await.unwrap()).unwrap()),
            status => Err(status),
        }
    }

    pub async fn post(&self, path: &str, secret: &str, body: Vec<u8>) -> reqwest::Response {
        let request = self.h2c.post(format!("{}{path}", self.internal)).header(SECRET_HEADER, secret);
        let answer = request.body(body).send().await.unwrap();
        assert_eq!(answer.version(), reqwest::Version::HTTP_2);
        answer
    }

    pub async fn authenticate(&self, key: &str) -> Result<Option<KeyRecord>, StatusCode> {
        let request = AuthenticateRequest { key_hash: hex::decode(keys::hash(key)).unwrap() };
        Ok(self.ask::<AuthenticateReply>(path::AUTHENTICATE, SECRET, &request).await?.key)
    }

    pub async fn snapshot(&self, cursor: &str) -> Result<SnapshotReply, StatusCode> {
        let request = SnapshotRequest { catalog_revision: String::new(), cursor: cursor.to_owned(), ..Default::default() };
        self.ask(path::SNAPSHOT, SECRET, &request).await
    }

    /// Waits until `look` finds something.
    pub async fn eventually<T>(&self, what: &str, look: impl AsyncFn(&Self) -> Option<T>) -> T {
        let until = Instant::now() + BOUND;
        loop {
            if let Some(found) = look(self).await {
                return found;
            }
            assert!(Instant::now() < until, "not within {BOUND:?}: {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// All that Redis holds, as text.
    pub async fn dump(&self, prefix: &str) -> String {
        let dump = "local all = {}
            for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
                local kind = redis.call('TYPE', key).ok
                local value = kind == 'hash' and redis.call('HGETALL', key) or kind == 'string' and redis.call('GET', key)
                    or kind == 'set' and redis.call('SMEMBERS', key) or kind == 'stream' and redis.call('XRANGE', key, '-', '+')
                    or kind == 'zset' and redis.call('ZRANGE', key, 0, -1)
                all[#all + 1] = key .. ' ' .. cjson.encode(value)
            end
            return table.concat(all, '\\n')";
        self.redis.eval(dump, Vec::<String>::new(), vec![prefix.to_owned()]).await.unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.catalog);
    }
}

async fn open(router: axum::Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

pub fn named() -> Value {
    json!({"name": "test"})
}
