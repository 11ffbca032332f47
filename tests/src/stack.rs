//! Everything together.

use crate::envoy::Render;
use crate::{Admin, BOUND, Call, ControlPlane, Dir, Envoy, Key, Redis, Response, binaries, catalog, eventually};
use fred::prelude::*;
use proxium::mock_provider::Mock;
use proxium::store::name;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// The providers, in this process.
pub struct Mocks {
    /// Of `m1` in [`catalog::three_providers`].
    pub first: Mock,
    /// Of `m2`.
    pub second: Mock,
    /// Of `m3`.
    pub third: Mock,
}

/// What a [`Stack`] is made of.
pub struct Builder {
    catalog: Box<dyn FnOnce(&Mocks) -> String + Send>,
    control_planes: usize,
    envoys: usize,
    concurrency: u32,
    render: Vec<String>,
    env: Vec<(String, String)>,
    redis: &'static [&'static str],
}

impl Builder {
    /// The catalog's YAML; default [`catalog::three_providers`].
    #[must_use]
    pub fn catalog(mut self, yaml: impl FnOnce(&Mocks) -> String + Send + 'static) -> Self {
        self.catalog = Box::new(yaml);
        self
    }

    /// Adds lines at the end of the catalog (`breaker: {…}`, `limits: {…}`).
    #[must_use]
    pub fn and_catalog(self, yaml: &str) -> Self {
        let (before, more) = (self.catalog, yaml.to_owned());
        Self { catalog: Box::new(move |mocks| before(mocks) + &more + "\n"), ..self }
    }

    /// How many; default 1. Each Envoy knows all of them.
    #[must_use]
    pub const fn control_planes(mut self, count: usize) -> Self {
        self.control_planes = count;
        self
    }

    /// How many; default 1.
    #[must_use]
    pub const fn envoys(mut self, count: usize) -> Self {
        self.envoys = count;
        self
    }

    /// Workers of each Envoy; default 2.
    #[must_use]
    pub const fn concurrency(mut self, workers: u32) -> Self {
        self.concurrency = workers;
        self
    }

    /// A flag of `proxium render envoy` and its value (plugin settings, for one).
    #[must_use]
    pub fn render(mut self, flag: &str, value: &str) -> Self {
        self.render.extend([flag.into(), value.into()]);
        self
    }

    /// A variable of the control planes' environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Words more on Redis' command line.
    #[must_use]
    pub const fn redis(mut self, settings: &'static [&'static str]) -> Self {
        self.redis = settings;
        self
    }

    /// Starts all and waits until a call can be answered.
    ///
    /// # Panics
    /// Something does not start; the message holds the end of its log.
    pub async fn start(self) -> Stack {
        let dir = Dir::fresh();
        let mock = || Mock::start((Ipv4Addr::LOCALHOST, 0).into()).expect("a mock provider");
        let mocks = Mocks { first: mock(), second: mock(), third: mock() };
        let catalog = dir.path().join("catalog.yaml");
        std::fs::write(&catalog, (self.catalog)(&mocks)).expect("the catalog is written");

        let redis = Redis::start_with(dir.path(), self.redis).await;
        let env: Vec<(&str, &str)> = self.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let mut control_planes: Vec<ControlPlane> = (0..self.control_planes)
            .map(|number| ControlPlane::start(&format!("control-plane-{number}"), &catalog, &redis.url(), &env, dir.path()))
            .collect();
        let render = Render {
            catalog: catalog.clone(),
            wasm: binaries::wasm(),
            control_planes: control_planes.iter().map(|plane| plane.internal().addr().to_string()).collect(),
            more: self.render,
        };
        let mut envoys: Vec<Envoy> =
            (0..self.envoys).map(|number| Envoy::start(&format!("envoy-{number}"), &render, self.concurrency, dir.path())).collect();
        for control_plane in &mut control_planes {
            control_plane.ready().await;
        }
        // Of a project of its own: what the tests count must not see it.
        let admin = control_planes[0].admin();
        let probe = admin.key_of(&admin.project(json!({"name": "readiness"})).await, json!({})).await;
        for envoy in &mut envoys {
            envoy.ready(&probe.text).await;
        }
        Stack { envoys, control_planes, redis, mocks, probe, catalog, _dir: dir }
    }
}

/// A whole proxium. Dropping it ends all its processes.
pub struct Stack {
    // Dropped in this order: callers before what they call.
    /// The Envoys.
    pub envoys: Vec<Envoy>,
    /// The control planes.
    pub control_planes: Vec<ControlPlane>,
    /// The Redis that all of them share.
    pub redis: Redis,
    /// The providers.
    pub mocks: Mocks,
    probe: Key,
    catalog: PathBuf,
    _dir: Dir,
}

impl Stack {
    /// One Envoy of two workers, one control plane, [`catalog::three_providers`].
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// To choose.
    #[must_use]
    pub fn builder() -> Builder {
        Builder {
            catalog: Box::new(catalog::three_providers),
            control_planes: 1,
            envoys: 1,
            concurrency: 2,
            render: Vec::new(),
            env: Vec::new(),
            redis: &[],
        }
    }

    /// The admin API of the first control plane.
    #[must_use]
    pub fn admin(&self) -> Admin {
        self.control_planes[0].admin()
    }

    /// A key without ceilings, of a new project without a cap.
    pub async fn key(&self) -> Key {
        self.key_with(json!({}), json!({})).await
    }

    /// A key of a new project, with these settings of the project and of the key (`{"ceilings": {…}}`).
    pub async fn key_with(&self, project: Value, key: Value) -> Key {
        let admin = self.admin();
        admin.key_of(&admin.project(project).await, key).await
    }

    /// A chat call through the first Envoy.
    pub async fn chat(&self, key: impl AsRef<str>, body: &Value) -> Response {
        self.call(&Call::chat(key, body)).await
    }

    /// A call through the first Envoy.
    pub async fn call(&self, call: &Call) -> Response {
        self.envoys[0].call(call).await
    }

    /// Makes all calls at once, spread over all Envoys; the answers in the order of the calls.
    ///
    /// # Panics
    /// One is not answered.
    pub async fn all_at_once(&self, calls: impl IntoIterator<Item = Call>) -> Vec<Response> {
        let envoys = self.envoys.iter().cycle();
        let under_way: Vec<_> = envoys.zip(calls).map(|(envoy, call)| envoy.spawn(call)).collect();
        let mut answers = Vec::new();
        for call in under_way {
            answers.push(call.await.expect("no panic").expect("an answer of Envoy"));
        }
        answers
    }

    /// Starts an Envoy again after a kill, and waits until it is ready.
    pub async fn restart_envoy(&mut self, number: usize) {
        self.envoys[number].restart();
        self.envoys[number].ready(&self.probe.text).await;
    }

    /// Replaces the catalog file in one step by what `edit` makes of it, and renders Envoy's files anew. Does not wait until it acts.
    ///
    /// # Panics
    /// The new catalog is refused.
    pub fn edit_catalog(&self, edit: impl FnOnce(String) -> String) {
        self.edit_catalog_only(edit);
        self.envoys.iter().for_each(Envoy::render);
    }

    /// Replaces the catalog file only, also by one that is wrong.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn edit_catalog_only(&self, edit: impl FnOnce(String) -> String) {
        let fresh = self.catalog.with_extension("new");
        let text = std::fs::read_to_string(&self.catalog).expect("the catalog");
        std::fs::write(&fresh, edit(text)).and_then(|()| std::fs::rename(&fresh, &self.catalog)).expect("the catalog is replaced");
    }

    /// A client of the stack's Redis.
    pub async fn redis_client(&self) -> Client {
        let client = self.redis.client();
        client.wait_for_connect().await.expect("Redis is there");
        client
    }

    /// The ledger of a project, oldest record first.
    ///
    /// # Panics
    /// Redis does not answer.
    pub async fn ledger(&self, project: &str) -> Vec<HashMap<String, String>> {
        let entries: Vec<(String, HashMap<String, String>)> =
            self.redis_client().await.xrange_values(name::ledger(project), "-", "+", None).await.expect("the ledger");
        entries.into_iter().map(|(_, record)| record).collect()
    }

    /// Waits until a call that was answered is in the ledger: its settlement may be acknowledged after the client has its answer.
    ///
    /// # Panics
    /// Not within the bound.
    pub async fn settled(&self, project: &str, answer: &Response) {
        let id = answer.header("x-proxium-request-id").expect("a request id");
        eventually("the call is in the ledger", BOUND, || async { self.ledger(project).await.iter().any(|record| record["id"] == id) })
            .await;
    }

    /// Waits until the answer is stored, which comes right after its settlement.
    ///
    /// # Panics
    /// Not within the bound.
    pub async fn kept(&self, project: &str, answer: &Response) {
        let id = answer.header("x-proxium-request-id").expect("a request id");
        let client = self.redis_client().await;
        eventually("the answer is stored", BOUND, || async {
            let all: Result<Vec<String>, _> = client.zrange(name::answers(project), 0, -1, None, false, None, false).await;
            all.is_ok_and(|members| members.iter().any(|member| member.ends_with(id)))
        })
        .await;
    }

    /// All fields of a key's windows.
    ///
    /// # Panics
    /// Redis does not answer.
    pub async fn windows(&self, key: &Key) -> HashMap<String, String> {
        self.hash(&name::key_window(&key.project, &key.id)).await
    }

    /// `month`, `spend`, `held` and the like of a project.
    ///
    /// # Panics
    /// Redis does not answer.
    pub async fn state(&self, project: &str) -> HashMap<String, String> {
        self.hash(&name::state(project)).await
    }

    /// The held reservations of a project and the instants (ms) at which they are due.
    ///
    /// # Panics
    /// Redis does not answer.
    pub async fn due(&self, project: &str) -> Vec<(String, f64)> {
        self.redis_client().await.zrange(name::due(project), 0, -1, None, false, None, true).await.expect("the due reservations")
    }

    /// The instant (ms) at which a held reservation was admitted, and the end user of its call.
    ///
    /// # Errors
    /// Redis does not answer, or there is no such reservation.
    pub async fn hold(redis: &Client, project: &str, id: &str) -> Result<(f64, String), fred::error::Error> {
        // In the order of `control-plane/src/store/lua/books.lua`.
        const HOLD: &str = "local r = { cmsgpack.unpack(redis.call('GET', KEYS[1])) } return { r[6], r[16] }";
        redis.eval(HOLD, name::reservation(project, id), ()).await
    }

    async fn hash(&self, name: &str) -> HashMap<String, String> {
        self.redis_client().await.hgetall(name).await.expect("a hash")
    }
}
