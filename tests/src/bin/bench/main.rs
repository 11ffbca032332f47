//! `make bench`: what proxium costs beside a plain Envoy that routes to the same provider.
//!
//! | file | what |
//! |---|---|
//! | `servers.rs` | plain Envoy, a whole proxium, the mock provider |
//! | `mock.rs` | the provider: canned answers, each piece of a stream with its own write |
//! | `load.rs` | a closed loop of clients with exact percentiles |
//! | `admit.rs` | `Admit` alone, and its bare script at the same pipelining |
//! | `reserve.rs` | its script alone, with few and a million keys, beside an empty one |
//! | `counts.rs` | Redis commands and calls of the control plane a request: the same on any machine |
//! | `cells.rs` | what is measured, and one measurement |
//! | `growth.rs` | misses among one chain and among a thousand |
//! | `cold.rs` | cold starts of the filter: of code that Envoy does not know, and of a VM |
//! | `near.rs` | by itself, `ARGS=near`: near matches among few and many |
//! | `report.rs` | ratios, the table, the comparison with the baseline |
//!
//! The method: all processes of a gateway share one core (Envoy with one worker, control plane, Redis), load and provider have the other.
//! Every round measures every cell, each round begins with another one, and a ratio is the median of the ratios of the same round. A cell
//! measured while others used the machine is measured again; the quieter measurement counts. Redis writes to memory (`TMPDIR`), synced
//! at each write as `deploy/redis.conf` has it: the speed of a disk is not what is measured.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::print_stdout)] // a surprise ends it

mod admit;
mod cells;
mod cold;
mod counts;
mod growth;
mod load;
mod mock;
mod near;
mod report;
mod reserve;
mod servers;

use proxium_e2e::binaries::in_repo;
use std::path::PathBuf;
use std::process::ExitCode;

/// The core of what is measured.
const GATEWAY_CORE: usize = 0;
/// The core of provider and clients.
const LOAD_CORE: usize = 1;

const USAGE: &str = "bench [--quick] [--rounds N] [--cells NAME,NAME] [--json FILE] [--baseline FILE] [--keep-as-baseline]";

/// How to measure.
struct Options {
    quick: bool,
    rounds: usize,
    cells: Vec<String>,
    json: PathBuf,
    baseline: PathBuf,
    keep: bool,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            quick: false,
            rounds: 0,
            cells: Vec::new(),
            json: in_repo("target/bench.json"),
            baseline: in_repo("tests/bench/baseline.json"),
            keep: false,
        };
        while let Some(flag) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{flag} wants a value"));
            match flag.as_str() {
                "--quick" => options.quick = true,
                "--keep-as-baseline" => options.keep = true,
                "--rounds" => options.rounds = value()?.parse().map_err(|error| format!("--rounds: {error}"))?,
                "--cells" => options.cells = value()?.split(',').map(Into::into).collect(),
                "--json" => options.json = value()?.into(),
                "--baseline" => options.baseline = value()?.into(),
                _ => return Err(format!("unknown: {flag}")),
            }
        }
        if options.rounds == 0 {
            options.rounds = if options.quick { 1 } else { 5 };
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    // The parts that are processes of their own, on the other core.
    match args.peek().map(String::as_str) {
        Some("mock") => return on_core(LOAD_CORE, mock::run(args.nth(1).and_then(|port| port.parse().ok()).expect("a port"))),
        Some("load") => return on_core(LOAD_CORE, load::run()),
        Some("near") => {
            return on_core(LOAD_CORE, near::run(args.nth(1).map(|count| count.parse().expect("how many numbers a vector has"))));
        }
        Some("admit") => return on_core(LOAD_CORE, admit::run()),
        // This row alone.
        Some("reserve") => {
            return on_core(GATEWAY_CORE, async {
                println!("{}", reserve::measure(2.0, 5).await);
                ExitCode::SUCCESS
            });
        }
        _ => {}
    }
    match Options::read(args) {
        Ok(options) => on_core(GATEWAY_CORE, run(options)),
        Err(why) => {
            eprintln!("bench: {why}\nusage: {USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs on one core, with one thread; what it starts inherits the core.
fn on_core(core: usize, work: impl Future<Output = ExitCode>) -> ExitCode {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &cores) {
        eprintln!("bench: two cores are needed, and core {core} cannot be had: {error}");
        return ExitCode::FAILURE;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, work)
}

async fn run(options: Options) -> ExitCode {
    let servers = servers::Servers::start().await;
    let results = cells::measure(&servers, &options).await;
    drop(servers);
    results.write(&options.json);
    print!("{results}");
    if options.keep {
        results.write(&options.baseline);
        return ExitCode::SUCCESS;
    }
    match results.worse_than(&options.baseline) {
        Ok(worse) if worse.is_empty() => ExitCode::SUCCESS,
        Ok(worse) => {
            worse.iter().for_each(|line| println!("WORSE {line}"));
            ExitCode::FAILURE
        }
        Err(why) => {
            println!("not compared: {why}");
            ExitCode::SUCCESS
        }
    }
}
