#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, dead_code, missing_docs)] // test support: a surprise is a failed test
//! A world for scripts: a clock that is set, breakers in a map, a catalog of three providers.

use prost::Message;
use proxium_flow::breaker::{Lane, Outcome, Permit, State};
use proxium_flow::config::Config;
use proxium_flow::l1::L1;
use proxium_flow::message::{Answer, Callout, Failure, Headers, Reply, Response};
use proxium_flow::snapshot::Snapshot;
use proxium_flow::stage::outcome::Report;
use proxium_flow::world::{KeyHash, KnownKey, World};
use proxium_flow::{Effect, Event, RawHead, Stage, Turn};
use proxium_wire::{
    AdmitReply, AdmitRequest, Admitted, Breaker, Catalog, Endpoint, KeyRecord, Limits, Model, Names, Prices, ProjectRecord, Provider,
    Rules, Settle, Settlement, SnapshotReply, admit_reply, settlement,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

pub const START_MS: u64 = 1_800_000_000_000;
pub const REQUEST: &str = r#"{"model":"fast","messages":[{"role":"user","content":"hello"}],"max_tokens":10}"#;
pub const ANSWER: &str = r#"{"id":"x","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":100,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":40}}}"#;

/// A world whose facts a test sets.
pub struct Script {
    pub config: Config,
    pub now_ms: Cell<u64>,
    pub key: RefCell<KeyRecord>,
    pub known: RefCell<Option<KnownKey>>,
    pub catalog: RefCell<Option<Rc<Snapshot>>>,
    pub full: Cell<bool>,
    breakers: RefCell<BTreeMap<String, State>>,
    pub reports: RefCell<BTreeMap<usize, Report>>,
    rests: RefCell<BTreeMap<(String, String), u64>>,
    ids: Cell<u64>,
    /// The answers kept in the worker, and whether they may be trusted.
    pub l1: RefCell<L1>,
    pub l1_trusted: Cell<bool>,
    pub hits: RefCell<Vec<Settlement>>,
}

pub fn breaker() -> Breaker {
    Breaker {
        consecutive_failures: 5,
        failure_ratio_ppm: 500_000,
        min_requests: 20,
        window_ms: 30_000,
        cooldown_ms: 30_000,
        max_cooldown_ms: 300_000,
    }
}

pub fn model(name: &str, provider: &str, input: u64, output: u64) -> Model {
    Model {
        name: name.into(),
        provider: provider.into(),
        upstream: format!("{name}-v1"),
        prices: Prices { input, cached_input: input / 10, cache_write_5m: input, cache_write_1h: input, output, ..Prices::default() },
        max_output_tokens: 1_000,
        timeout_ms: 120_000,
        first_byte_timeout_ms: 20_000,
        endpoints: vec![Endpoint::Chat.into(), Endpoint::Messages.into()],
    }
}

pub fn names(names: &[&str]) -> Names {
    Names { names: names.iter().map(|name| (*name).to_owned()).collect() }
}

pub fn rules(rules: &[(&str, &[&str])]) -> Rules {
    Rules { chains: rules.iter().map(|(name, chain)| ((*name).to_owned(), names(chain))).collect() }
}

pub fn catalog() -> Catalog {
    let provider = |name: &str| Provider {
        name: name.into(),
        dialect: 0,
        cluster: format!("provider-{name}"),
        authority: format!("{name}.test"),
        path_prefix: "/v1".into(),
        stream_cluster: format!("provider-{name}-stream"),
        credential: Some(format!("sk-{name}")),
        chat_only: false,
    };
    Catalog {
        providers: vec![provider("one"), provider("two"), provider("three")],
        models: vec![model("small", "one", 250_000, 2_000_000), model("large", "two", 1_000_000, 8_000_000), model("spare", "three", 0, 0)],
        chains: [("fast".to_owned(), names(&["small", "large", "spare"]))].into(),
        limits: Limits { max_body_bytes: 10 << 20, default_timeout_ms: 300_000, max_timeout_ms: 600_000 },
        breaker: breaker(),
        ..Catalog::default()
    }
}

impl Default for Script {
    fn default() -> Self {
        let key = KeyRecord {
            key_id: "key_1".into(),
            project: "acme".into(),
            project_record: ProjectRecord { exact_cache: true, cache_ttl_s: 3_600, ..ProjectRecord::default() },
            ..KeyRecord::default()
        };
        Self {
            config: Config::read(br#"{"control_plane_cluster":"cp","internal_secret":"s"}"#).unwrap(),
            now_ms: Cell::new(START_MS),
            known: RefCell::new(Some(KnownKey { record: Some(Rc::new(key.clone())), fresh: true })),
            key: RefCell::new(key),
            catalog: RefCell::new(Some(Rc::new(Snapshot::new("r1".into(), catalog())))),
            full: Cell::new(false),
            breakers: RefCell::default(),
            reports: RefCell::default(),
            rests: RefCell::default(),
            ids: Cell::new(0),
            l1: RefCell::default(),
            l1_trusted: Cell::new(true),
            hits: RefCell::default(),
        }
    }
}

impl Script {
    /// A world where the key's record was changed like this.
    pub fn with_key(change: impl FnOnce(&mut KeyRecord)) -> Self {
        let script = Self::default();
        change(&mut script.key.borrow_mut());
        let record = Rc::new(script.key.borrow().clone());
        *script.known.borrow_mut() = Some(KnownKey { record: Some(record), fresh: true });
        script
    }

    /// A world whose catalog was changed like this.
    pub fn with_catalog(change: impl FnOnce(&mut Catalog)) -> Self {
        let script = Self::default();
        let mut catalog = catalog();
        change(&mut catalog);
        *script.catalog.borrow_mut() = Some(Rc::new(Snapshot::new("r2".into(), catalog)));
        script
    }

    pub fn pass(&self, ms: u64) {
        self.now_ms.set(self.now_ms.get() + ms);
    }

    /// Opens a call and gives it its body.
    pub fn call_with(&self, headers: &[(&'static str, &str)], body: &str) -> Turn {
        let turn = self.open(headers);
        assert!(matches!(turn.effects[..], [Effect::ReadBody { .. }]), "{:?}", turn.effects);
        turn.stage.step(Event::Body(body.as_bytes().to_vec()), self)
    }

    pub fn open(&self, headers: &[(&'static str, &str)]) -> Turn {
        self.open_at("/v1/chat/completions", headers)
    }

    pub fn open_at(&self, path: &str, headers: &[(&'static str, &str)]) -> Turn {
        let key: &[(&'static str, &str)] = &[("authorization", "Bearer px_1")];
        let headers: Headers = key.iter().chain(headers).map(|(name, value)| (*name, *value)).collect();
        Stage::open(RawHead { method: "POST".into(), path: path.into(), headers }, self)
    }

    /// A call up to its first attempt.
    pub fn admitted(&self, headers: &[(&'static str, &str)], body: &str) -> Turn {
        let turn = self.call_with(headers, body);
        assert!(matches!(turn.stage, Stage::Reserving(_)), "{:?}", turn.effects);
        turn.stage.step(admitted(Admitted::default()), self)
    }

    pub fn answer(&self, turn: Turn, status: u16, body: &str) -> Turn {
        self.answer_with(turn, status, &[], body)
    }

    pub fn answer_with(&self, turn: Turn, status: u16, headers: &[(&'static str, &str)], body: &str) -> Turn {
        let headers = headers.iter().map(|(name, value)| (*name, *value)).collect();
        turn.stage.step(Event::Reply(Reply::Answer(Answer { status, headers, body: body.as_bytes().to_vec() })), self)
    }

    pub fn fail(&self, turn: Turn, failure: Failure) -> Turn {
        turn.stage.step(Event::Reply(Reply::Failed(failure)), self)
    }
}

pub fn admitted(admitted: Admitted) -> Event {
    control_plane(AdmitReply { outcome: Some(admit_reply::Outcome::Admitted(admitted)) })
}

pub fn control_plane(message: impl Message) -> Event {
    Event::Reply(Reply::Answer(Answer { status: 200, headers: Headers::new(), body: message.encode_to_vec() }))
}

/// The one call of a turn.
pub fn callout(turn: &Turn) -> &Callout {
    match &turn.effects[..] {
        [Effect::Call(callout), ..] => callout,
        other => panic!("no call but {other:?}"),
    }
}

pub fn admission(turn: &Turn) -> AdmitRequest {
    AdmitRequest::decode(callout(turn).body.as_slice()).unwrap()
}

pub fn settled(turn: &Turn) -> &Settlement {
    turn.effects
        .iter()
        .find_map(|effect| match effect {
            Effect::Settle(settlement) | Effect::Post(settlement) => Some(settlement),
            _ => None,
        })
        .unwrap_or_else(|| panic!("nothing is settled: {:?}", turn.effects))
}

pub fn settle(turn: &Turn) -> &Settle {
    match &settled(turn).end {
        Some(settlement::End::Settle(settle)) => settle,
        other => panic!("not settled but {other:?}"),
    }
}

pub fn released(turn: &Turn) -> bool {
    matches!(settled(turn).end, Some(settlement::End::Release(_)))
}

pub fn response(turn: &Turn) -> &Response {
    turn.effects
        .iter()
        .find_map(|effect| match effect {
            Effect::Respond(response) => Some(response),
            _ => None,
        })
        .unwrap_or_else(|| panic!("no answer but {:?}", turn.effects))
}

pub fn code(turn: &Turn) -> (u16, String) {
    let response = response(turn);
    let body: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    (response.status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

impl World for Script {
    fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    fn new_id(&self) -> String {
        self.ids.set(self.ids.get() + 1);
        format!("{:032x}", self.ids.get())
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn snapshot(&self) -> Option<Rc<Snapshot>> {
        self.catalog.borrow().clone()
    }

    fn learn_snapshot(&self, reply: SnapshotReply) {
        *self.catalog.borrow_mut() = reply.catalog.map(|catalog| Rc::new(Snapshot::new(reply.catalog_revision, catalog)));
    }

    fn known_key(&self, _: &KeyHash) -> Option<KnownKey> {
        self.known.borrow().clone()
    }

    fn learn_key(&self, _: KeyHash, record: Option<Rc<KeyRecord>>, _: u64) {
        *self.known.borrow_mut() = Some(KnownKey { record, fresh: true });
    }

    fn l1(&self) -> Option<&RefCell<L1>> {
        self.l1_trusted.get().then_some(&self.l1)
    }

    fn count_hit(&self, hit: Settlement) {
        self.hits.borrow_mut().push(hit);
    }

    fn outbox_full(&self) -> bool {
        self.full.get()
    }

    fn permit(&self, lane: &Lane, claim_ms: u64) -> Permit {
        let now_ms = self.now_ms.get();
        match self.rests.borrow().get(&(lane.credential.clone(), lane.model.clone())) {
            Some(until_ms) if *until_ms > now_ms => Permit::Resting { wait_ms: until_ms - now_ms },
            _ => self.breakers.borrow_mut().entry(lane.credential.clone()).or_default().permit(now_ms, claim_ms),
        }
    }

    fn attempt_report(&self, attempt: usize) -> Option<Report> {
        self.reports.borrow().get(&attempt).cloned()
    }

    fn report(&self, lane: &Lane, outcome: Outcome, was_probe: bool) {
        let now_ms = self.now_ms.get();
        if let Outcome::Rest(ms) = outcome {
            self.rests.borrow_mut().insert((lane.credential.clone(), lane.model.clone()), now_ms + ms);
        }
        self.breakers.borrow_mut().entry(lane.credential.clone()).or_default().report(outcome, was_probe, now_ms, &breaker());
    }
}
