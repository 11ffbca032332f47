//! What is measured, and one measurement.

use super::load::{Load, NUMBER, Order};
use super::report::Results;
use super::servers::Servers;
use super::{Options, admit, cold, counts, growth, reserve};
use proxium_e2e::binaries;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// The provider through a plain Envoy.
    Plain,
    /// The same body each time, so all but the first are in the cache.
    Hit,
    /// Metered, not cached.
    Miss,
    /// Metered, another body each time, its answer stored.
    Kept,
    /// A key whose calls are used up.
    Refusal,
}

/// One row: a target under so many clients.
pub struct Cell {
    pub name: &'static str,
    pub target: Target,
    pub clients: usize,
    pub stream: bool,
    /// Of the question.
    pub bytes: usize,
}

/// So that a request has about 1 KiB.
const SHORT: usize = 840;
/// The same of 64 KiB.
const LONG: usize = (64 << 10) - 184;

const fn unary(name: &'static str, target: Target, clients: usize) -> Cell {
    Cell { name, target, clients, stream: false, bytes: SHORT }
}

const fn long(name: &'static str, target: Target, clients: usize) -> Cell {
    Cell { name, target, clients, stream: false, bytes: LONG }
}

const fn stream(name: &'static str, target: Target, clients: usize) -> Cell {
    Cell { name, target, clients, stream: true, bytes: SHORT }
}

/// All rows, in the order in which they are measured; a row of a plain Envoy is the base of all rows of as many clients and bytes, which stand
/// about it: a shared machine's speed changes from minute to minute.
pub const CELLS: [Cell; 15] = [
    unary("hit c1", Target::Hit, 1),
    unary("plain c1", Target::Plain, 1),
    unary("miss c1", Target::Miss, 1),
    unary("refusal c1", Target::Refusal, 1),
    unary("hit c64", Target::Hit, 64),
    unary("refusal c64", Target::Refusal, 64),
    unary("plain c64", Target::Plain, 64),
    unary("miss c64", Target::Miss, 64),
    unary("kept c64", Target::Kept, 64),
    long("plain 64 KiB c1", Target::Plain, 1),
    long("miss 64 KiB c1", Target::Miss, 1),
    stream("plain stream c1", Target::Plain, 1),
    stream("stream c1", Target::Miss, 1),
    stream("plain stream c16", Target::Plain, 16),
    stream("stream c16", Target::Miss, 16),
];

/// One measurement of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub cell: String,
    pub round: usize,
    pub load: Load,
    /// CPU of each process of the gateway, microseconds a request: Envoy, control plane, Redis.
    pub cpu_us: Vec<f64>,
    /// Cores that others used meanwhile.
    pub others: f64,
}

/// Resident memory in MiB; of a stream in KiB.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    pub idle: f64,
    pub c64: f64,
    pub stream_kib: f64,
    pub plain_stream_kib: f64,
}

/// Above so many foreign cores a cell is measured again.
const QUIET: f64 = 0.15;
const OPEN_STREAMS: usize = 1_000;

/// Measures everything.
pub async fn measure(servers: &Servers, options: &Options) -> Results {
    let seconds = if options.quick { 1.0 } else { 4.0 };
    let cells: Vec<&Cell> = CELLS
        .iter()
        .filter(|cell| {
            options.cells.is_empty() || cell.target == Target::Plain || options.cells.iter().any(|name| cell.name.starts_with(name))
        })
        .collect();
    let mut memory = Memory { idle: resident_mib(&servers.proxium().1), ..Memory::default() };
    let counts = counts::count(servers).await;
    let mut samples = Vec::new();
    for round in 0..options.rounds {
        for at in 0..cells.len() {
            let cell = cells[(at + round) % cells.len()];
            run(&order(cell, servers, 0.3)).await;
            let mut sample = sample(cell, round, servers, seconds).await;
            if sample.others > QUIET && !options.quick {
                let again = self::sample(cell, round, servers, seconds).await;
                if again.others < sample.others {
                    sample = again;
                }
            }
            eprintln!("round {} {}: {:.0}/s", round + 1, cell.name, sample.load.requests as f64 / sample.load.seconds);
            samples.push(sample);
        }
    }
    let wasm_bytes = std::fs::metadata(binaries::wasm()).expect("the filter").len();
    memory.c64 = under_load_mib(servers, seconds).await;
    if options.cells.is_empty() {
        memory.plain_stream_kib = stream_kib(servers, Target::Plain).await;
        memory.stream_kib = stream_kib(servers, Target::Miss).await;
    }
    let admit = admit::measure(servers, if options.quick { 1.0 } else { 3.0 }, options.rounds).await;
    let reserve = reserve::measure(if options.quick { 0.5 } else { 2.0 }, options.rounds).await;
    let chains = growth::measure(servers, seconds, options.rounds).await;
    let cold = cold::measure(servers, options.rounds.max(3)).await;
    Results { samples, memory, counts, admit, reserve, chains, cold, wasm_bytes }
}

fn body(model: &str, number: &str, cell: &Cell) -> String {
    let text: String =
        "A customer writes that the invoice of last month shows two charges for one order. ".chars().cycle().take(cell.bytes).collect();
    let stream = if cell.stream { r#","stream":true"# } else { "" };
    format!(
        r#"{{"model":"{model}","messages":[{{"role":"system","content":"You are a concise assistant.{number}"}},{{"role":"user","content":"{text}"}}],"temperature":0.2,"max_tokens":256{stream}}}"#
    )
}

fn order(cell: &Cell, servers: &Servers, seconds: f64) -> Order {
    let ((addr, _), key, status) = match cell.target {
        Target::Plain => (servers.plain(), &servers.metered, 200),
        Target::Hit | Target::Kept => (servers.proxium(), &servers.cached, 200),
        Target::Miss => (servers.proxium(), &servers.metered, 200),
        Target::Refusal => (servers.proxium(), &servers.refused, 429),
    };
    let number = if cell.target == Target::Hit { "" } else { NUMBER };
    Order {
        addr,
        path: "/v1/chat/completions".into(),
        key: key.text.clone(),
        body: body("gpt-4o-mini", number, cell),
        status,
        stream: cell.stream,
        clients: cell.clients,
        seconds,
        hold: false,
    }
}

async fn sample(cell: &Cell, round: usize, servers: &Servers, seconds: f64) -> Sample {
    let (_, gateway) = if cell.target == Target::Plain { servers.plain() } else { servers.proxium() };
    let ours = || std::iter::once(std::process::id()).chain(servers.everything()).map(cpu_s).sum::<f64>();
    let (cpu, all, known, began): (Vec<f64>, _, _, _) =
        (gateway.iter().map(|pid| cpu_s(*pid)).collect(), machine_s(), ours(), Instant::now());
    let (load, client_s) = run(&order(cell, servers, seconds)).await;
    let wall = began.elapsed().as_secs_f64();
    let others = ((machine_s() - all) - (ours() - known) - client_s) / wall;
    let cpu_us = gateway.iter().zip(cpu).map(|(pid, before)| (cpu_s(*pid) - before) * 1e6 / load.requests.max(1) as f64).collect();
    Sample { cell: cell.name.into(), round, load, cpu_us, others: others.max(0.0) }
}

fn load_process(order: &Order) -> Child {
    let this = std::env::current_exe().expect("this program");
    let mut child = Command::new(this).arg("load").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("a load");
    let (mut stdin, text) = (child.stdin.take().expect("its input"), serde_json::to_vec(order).expect("JSON"));
    tokio::task::spawn_local(async move { stdin.write_all(&text).await.expect("an order") });
    child
}

/// Runs a load; what came of it, and the CPU seconds of its clients.
async fn run(order: &Order) -> (Load, f64) {
    let (mut child, before) = (load_process(order), children_s());
    let load = told(&mut child).await;
    child.wait().await.expect("the load ends");
    (load, children_s() - before)
}

async fn told(child: &mut Child) -> Load {
    let line = BufReader::new(child.stdout.take().expect("its output")).lines().next_line().await.expect("a line").expect("a line");
    serde_json::from_str(&line).expect("what a load tells")
}

/// Requests a second.
pub async fn rate(cell: &Cell, servers: &Servers, seconds: f64) -> f64 {
    run(&order(cell, servers, 0.3)).await;
    let (load, _) = run(&order(cell, servers, seconds)).await;
    load.requests as f64 / load.seconds
}

/// While 64 clients call.
async fn under_load_mib(servers: &Servers, seconds: f64) -> f64 {
    let load = order(&unary("", Target::Miss, 64), servers, seconds);
    let look = async {
        tokio::time::sleep(Duration::from_secs_f64(seconds * 0.8)).await;
        resident_mib(&servers.proxium().1)
    };
    tokio::join!(run(&load), look).1
}

/// What each of many open streams costs.
async fn stream_kib(servers: &Servers, target: Target) -> f64 {
    let cell = stream("", target, OPEN_STREAMS);
    let mut order = Order { hold: true, ..order(&cell, servers, 0.0) };
    order.path = if target == Target::Plain { format!("{}/v1/chat/completions", super::mock::HELD) } else { order.path };
    order.body = body(if target == Target::Plain { "gpt-4o-mini" } else { "held" }, "", &cell);
    let (_, gateway) = if target == Target::Plain { servers.plain() } else { servers.proxium() };
    let before = resident_mib(&gateway);
    let mut child = load_process(&order);
    told(&mut child).await;
    let grown = resident_mib(&gateway) - before;
    child.kill().await.expect("it is killed");
    grown * 1024.0 / OPEN_STREAMS as f64
}

fn resident_mib(pids: &[u32]) -> f64 {
    let kib = |pid: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("its memory");
        let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).expect("Rss");
        line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number")
    };
    pids.iter().map(kib).sum::<f64>() / 1024.0
}

const TICK_S: f64 = 0.01;

/// Fields of `/proc/<pid>/stat` from `utime` on, in seconds.
fn stat_s(pid: &str, fields: std::ops::Range<usize>) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let all: Vec<&str> = after_name.split(' ').collect();
    all.get(fields).unwrap_or_default().iter().filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() * TICK_S
}

fn cpu_s(pid: u32) -> f64 {
    stat_s(&pid.to_string(), 11..13)
}

/// CPU of children that ended.
fn children_s() -> f64 {
    stat_s("self", 13..15)
}

/// CPU of the whole machine but for idling.
fn machine_s() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    let fields: Vec<f64> =
        text.lines().next().unwrap_or_default().split_whitespace().skip(1).take(8).filter_map(|field| field.parse().ok()).collect();
    fields.iter().enumerate().filter(|(at, _)| !matches!(at, 3 | 4)).map(|(_, ticks)| ticks).sum::<f64>() * TICK_S
}

/// Opens a connection of plain bytes.
pub fn connect(addr: SocketAddr) -> std::net::TcpStream {
    let socket = std::net::TcpStream::connect(addr).expect("a connection");
    socket.set_nodelay(true).expect("no delay");
    socket
}
