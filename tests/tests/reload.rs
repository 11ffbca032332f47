//! New configurations and new filters under load.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use proxium::mock_provider::{Behaviour, Gate, Mock, Steps};
use proxium_e2e::{Ask, BOUND, Call, Envoy, Key, Response, Stack, Stream, binaries, catalog, chat, eventually, streamed};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Makes calls on sixteen tasks until it is told to stop; every other one is a stream.
struct Load {
    stop: Arc<AtomicBool>,
    next: Arc<AtomicUsize>,
    tasks: Vec<tokio::task::JoinHandle<usize>>,
}

impl Load {
    fn on(stack: &Stack, key: &Key) -> Self {
        let (stop, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let caller = |_| {
            let (stop, next, key, caller) = (stop.clone(), next.clone(), key.clone(), stack.envoys[0].caller());
            tokio::spawn(async move {
                let mut calls = 0;
                while !stop.load(SeqCst) {
                    let number = next.fetch_add(1, SeqCst);
                    let body = chat("m1", &format!("call number {number}"));
                    let body = if number % 2 == 0 { body } else { streamed(body) };
                    let answer = caller.call(&Call::chat(&key, &body)).await.expect("an answer of Envoy").expect(200);
                    assert_eq!(answer.text().ends_with("data: [DONE]\n\n"), number % 2 == 1, "a whole stream: {}", answer.text());
                    calls += 1;
                }
                calls
            })
        };
        let tasks = (0..16).map(caller).collect();
        Self { stop, next, tasks }
    }

    /// How many calls were begun so far.
    fn begun(&self) -> usize {
        self.next.load(SeqCst)
    }

    /// How many calls there were; all were answered 200.
    async fn end(self) -> usize {
        self.stop.store(true, SeqCst);
        let mut calls = 0;
        for task in self.tasks {
            calls += task.await.expect("no call fails");
        }
        calls
    }
}

/// One whose long calls do not come to their deadline on a busy machine.
async fn patient() -> Stack {
    Stack::builder().catalog(|mocks| catalog::three_providers(mocks).replace("timeout: 30s", "timeout: 100s")).start().await
}

/// Ten calls that last until the gate opens.
async fn long_calls(stack: &Stack, key: &Key) -> (Gate, Vec<Running>) {
    let gate = stack.mocks.second.gate();
    let calls = (0..10).map(|number| stack.envoys[0].spawn(Call::chat(key, &chat("m2", &format!("long {number}"))))).collect();
    eventually("the long calls are at their provider", BOUND, || std::future::ready(gate.waiting() == 10)).await;
    (gate, calls)
}

type Running = tokio::task::JoinHandle<Result<Response, reqwest::Error>>;

async fn all_answered(calls: Vec<Running>) {
    for call in calls {
        let _ = call.await.unwrap().unwrap().expect(200);
    }
}

/// Renders with this setting and waits until every worker has it.
async fn set_other_paths(envoy: &mut Envoy, setting: &str) {
    envoy.set_flags(&["--other-paths", setting]);
    envoy.render();
    every_worker_answers(envoy, setting).await;
}

async fn every_worker_answers(envoy: &Envoy, setting: &str) {
    let theirs = if setting == "continue" { "There is nothing at this path." } else { "There is nothing at this path and method." };
    eventually("the new configuration is live", BOUND, || async {
        for _ in 0..16 {
            let message = envoy.call(&Call::new("GET", "/nowhere")).await.json()["error"]["message"].clone();
            if message != theirs {
                return Err(message);
            }
        }
        Ok(())
    })
    .await;
}

/// The stack's filter with a section that changes nothing but its bytes.
fn other_filter(stack: &Stack, number: u8) -> PathBuf {
    let mut code = std::fs::read(binaries::wasm()).expect("the filter");
    code.extend([0, 3, 1, b'n', number]);
    let path = stack.envoys[0].files().with_extension(format!("{number}.wasm"));
    std::fs::write(&path, code).expect("another filter");
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_reloads_of_the_configuration_under_load_fail_no_call() {
    let mut stack = patient().await;
    let key = stack.key().await;
    let (gate, long) = long_calls(&stack, &key).await;
    let load = Load::on(&stack, &key);
    for number in 0..10 {
        set_other_paths(&mut stack.envoys[0], ["not_found", "continue"][number % 2]).await;
    }
    let calls = load.end().await;
    gate.open();
    all_answered(long).await;
    let closed = stack.closed_books(&key, calls + 10).await;
    assert_eq!(closed.count("expired"), 0);
    eprintln!("measured: {calls} calls and 10 long ones over 10 configuration reloads, 0 failed, 0 holds expired");
}

/// Ten streams that have begun and go on when their steps open.
async fn long_streams(stack: &Stack, key: &Key) -> Vec<(Steps, Stream)> {
    let mut begun = Vec::new();
    for number in 0..10 {
        let steps = Steps::new();
        stack.mocks.third.next("m3", [Behaviour::answer().text("one two three").stepped(&steps)]);
        // The role, and the first word.
        steps.release(2);
        let mut stream = stack.stream(&Ask::Chat.stream(key, "m3", &format!("long stream {number}"))).await;
        stream.until_text("one ").await;
        begun.push((steps, stream));
    }
    begun
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_filters_routes_and_clusters_go_live_under_a_thousand_calls() {
    let mut stack = patient().await;
    let key = stack.key().await;
    let fourth = Mock::start(([127, 0, 0, 1], 0).into()).expect("a mock provider");
    let (gate, long) = long_calls(&stack, &key).await;
    let streams = long_streams(&stack, &key).await;
    let load = Load::on(&stack, &key);
    let (mut rounds, mut more) = (0, 0);
    while rounds < 2 || load.begun() < 1_000 {
        rounds += 1;
        // A cluster and its routes come, and serve both ways; a filter and a setting of it change with the next rendering.
        let name = format!("m4-{rounds}");
        let provider = format!("  p{rounds}: {{dialect: openai, endpoint: \"http://{}/v1\"}}\n", fourth.addr());
        stack.edit_catalog(|yaml| {
            yaml.replacen("providers:\n", &format!("providers:\n{provider}"), 1).replacen(
                "models:\n",
                &format!("models:\n  {name}: {{provider: p{rounds}, free: true}}\n"),
                1,
            )
        });
        let [whole, stream] = ["whole", "stream"].map(|text| Call::chat(&key, &chat(&name, text)));
        let stream = stream.json(&streamed(chat(&name, "stream")));
        for call in [whole, stream] {
            let call = call.header("x-proxium-cache", "bypass");
            more += eventually("the new provider serves", BOUND, || async {
                let answer = stack.call(&call).await;
                if answer.status == 200 { Ok(1) } else { Err(answer.text()) }
            })
            .await;
        }
        let filter = other_filter(&stack, rounds);
        stack.envoys[0].set_wasm(&filter);
        set_other_paths(&mut stack.envoys[0], if rounds % 2 == 1 { "not_found" } else { "continue" }).await;
    }
    // And back to the filter before, as a rollback is.
    stack.envoys[0].set_wasm(&binaries::wasm());
    set_other_paths(&mut stack.envoys[0], if rounds % 2 == 1 { "continue" } else { "not_found" }).await;
    let calls = load.end().await;
    gate.open();
    all_answered(long).await;
    for (steps, stream) in streams {
        steps.open();
        assert!(stream.rest().await.is_terminated(), "a stream that began before the first change ends whole");
    }
    let closed = stack.closed_books(&key, calls + 20 + more).await;
    assert_eq!((closed.count("expired"), closed.count("call")), (0, calls + 20 + more));
    eprintln!(
        "measured: {calls} calls, 10 long ones and 10 open streams over {rounds} new filters and back, settings, routes and clusters: 0 failed, 0 holds expired"
    );
}

/// Calls that are answered while no control plane hears of their end: all their settlements are in the outbox.
async fn fill_the_outbox(stack: &Stack, key: &Key, count: usize) {
    let gate = stack.mocks.first.gate();
    let calls: Vec<_> = (0..count).map(|number| stack.envoys[0].spawn(Call::chat(key, &chat("m1", &format!("kept {number}"))))).collect();
    eventually("all calls are at the provider", BOUND, || std::future::ready(gate.waiting() as usize == count)).await;
    stack.control_planes[0].process().pause();
    gate.open();
    all_answered(calls).await;
    eventually("the outbox says how many it keeps", BOUND, || async {
        let pending = stack.envoys[0].stat(PENDING).await as usize;
        if pending == count { Ok(()) } else { Err(pending) }
    })
    .await;
}

const PENDING: &str = "wasmcustom.proxium_outbox_pending";

#[tokio::test(flavor = "multi_thread")]
async fn unacknowledged_settlements_survive_a_reload_of_the_configuration() {
    let mut stack = Stack::start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 1000}})).await;
    fill_the_outbox(&stack, &key, 200).await;
    set_other_paths(&mut stack.envoys[0], "not_found").await;
    set_other_paths(&mut stack.envoys[0], "continue").await;
    assert_eq!(stack.books(&key).await.ledger.len(), 0, "nothing was acknowledged yet");
    stack.control_planes[0].process().resume();
    let closed = stack.closed_books(&key, 200).await;
    assert_eq!((closed.count("call"), closed.count("expired")), (200, 0));
    eventually("the outbox is empty", BOUND, || async { stack.envoys[0].stat(PENDING).await == 0 }).await;
    eprintln!("measured: 200 settlements in the outbox over two configuration reloads, 0 lost, 0 holds expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn unacknowledged_settlements_survive_a_new_filter() {
    let mut stack = Stack::start().await;
    let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 1000}})).await;
    let (gate, long) = long_calls(&stack, &key).await;
    fill_the_outbox(&stack, &key, 200).await;
    let filter = other_filter(&stack, 1);
    stack.envoys[0].set_wasm(&filter);
    // The setting shows when the new filter is live.
    set_other_paths(&mut stack.envoys[0], "not_found").await;
    // The old one lives until its last call has ended.
    gate.open();
    all_answered(long).await;
    stack.control_planes[0].process().resume();
    let closed = stack.closed_books(&key, 210).await;
    assert_eq!((closed.count("call"), closed.count("expired")), (210, 0));
    eventually("the outbox is empty", BOUND, || async { stack.envoys[0].stat(PENDING).await == 0 }).await;
    eprintln!("measured: 210 settlements unacknowledged when the filter was replaced, 0 lost, 0 holds expired");
}

/// The gauge of a provider's breaker; `None`: there is no such series.
async fn breaker_state(envoy: &Envoy, provider: &str) -> Option<String> {
    let text = envoy.admin("/stats/prometheus?filter=proxium_breaker_state").await;
    let series = format!("proxium_breaker_state{{breaker=\"platform\",provider=\"{provider}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&series)).map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gauge_of_a_breaker_is_true_over_workers_new_filters_and_removed_providers() {
    let mut stack = Stack::builder().and_catalog("breaker: {consecutive_failures: 2, cooldown: 300s}").concurrency(2).start().await;
    let key = stack.key().await;
    for (mock, model) in [(&stack.mocks.first, "m1"), (&stack.mocks.second, "m2")] {
        mock.next(model, [500, 500].map(Behaviour::status));
        for number in 0..2 {
            let _ = stack.chat(&key, &chat(model, &format!("failing {number}"))).await.expect(502);
        }
    }
    let is = async |stack: &Stack, states: [&str; 3]| {
        eventually("the gauges are right", BOUND, || async {
            let mut found = Vec::new();
            for provider in ["first", "second", "third"] {
                found.push(breaker_state(&stack.envoys[0], provider).await.unwrap_or_default());
            }
            if found == states { Ok(()) } else { Err(found.join(" ")) }
        })
        .await;
    };
    is(&stack, ["2", "2", "0"]).await;
    // The new filter knows of them: what is taken out of the catalog now it alone can put right.
    let filter = other_filter(&stack, 1);
    stack.envoys[0].set_wasm(&filter);
    set_other_paths(&mut stack.envoys[0], "not_found").await;
    stack.edit_catalog(|yaml| {
        let lines = yaml.lines().filter(|line| !line.trim_start().starts_with("second:") && !line.trim_start().starts_with("m2:"));
        lines.map(|line| line.replace(", m2", "") + "\n").collect()
    });
    is(&stack, ["2", "0", "0"]).await;
    // Breakers are Envoy's own, and end with it.
    stack.restart_envoy(0).await;
    is(&stack, ["0", "", "0"]).await;
}

/// Replaces a text in one of Envoy's files as a rendering would.
fn edit_file(envoy: &Envoy, name: &str, edit: impl FnOnce(String) -> String) {
    let path = envoy.files().join(name);
    let before = std::fs::read_to_string(&path).expect("a file of Envoy's");
    let text = edit(before.clone());
    assert_ne!(text, before, "{name}");
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, &path)).expect("it is replaced");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_plugin_configuration_is_refused_and_the_old_one_serves() {
    let stack = Stack::start().await;
    let (key, envoy) = (stack.key().await, &stack.envoys[0]);
    let load = Load::on(&stack, &key);
    for (good, bad, named) in [
        ("other_paths", "other_pathz", "unknown field `other_pathz`"),
        ("\\\"deny\\\"", "\\\"perhaps\\\"", "unknown variant `perhaps`"),
        (".wasm\"", ".absent\"", ".absent"),
    ] {
        edit_file(envoy, "ecds.yaml", |text| text.replace(good, bad));
        eventually(named, BOUND, || std::future::ready(envoy.process().log().contains(named))).await;
        envoy.render();
    }
    let calls = load.end().await;
    assert!(calls > 0);
    stack.closed_books(&key, calls).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_routes_and_clusters_are_refused_and_the_old_ones_serve() {
    let stack = Stack::start().await;
    let (key, envoy) = (stack.key().await, &stack.envoys[0]);
    let load = Load::on(&stack, &key);
    // Values that cannot be read: a field that Envoy does not know is but a warning to it.
    for (file, good, bad) in
        [("cds.yaml", "connect_timeout: 5s", "connect_timeout: soon"), ("rds.yaml", "attempt_count: true", "attempt_count: perhaps")]
    {
        edit_file(envoy, file, |text| text.replace(good, bad));
        let value = bad.rsplit(' ').next().unwrap_or(bad);
        eventually(bad, BOUND, || std::future::ready(envoy.process().log().contains(value))).await;
        envoy.render();
    }
    let calls = load.end().await;
    assert!(calls > 0);
    stack.closed_books(&key, calls).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_ends_of_callouts_leave_the_workers_serving() {
    let stack = Stack::start().await;
    let key = stack.key().await;
    let envoy = &stack.envoys[0];
    // An answer without headers, none at all, and one that comes when the caller is gone.
    for odd in [Behaviour::reset_mid_body(), Behaviour::reset(), Behaviour::empty()] {
        stack.mocks.first.next("m1", [odd]);
        let _ = stack.chat(&key, &chat("m1", "odd")).await.expect(502);
    }
    let gate = stack.mocks.first.gate();
    for number in 0..20 {
        let body = chat("m1", &format!("left {number}")).to_string();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: e2e\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
            key.text,
            body.len()
        );
        let mut socket = envoy.connect().await;
        tokio::io::AsyncWriteExt::write_all(&mut socket, (head + &body).as_bytes()).await.unwrap();
        eventually("the call is at the provider", BOUND, || std::future::ready(gate.waiting() > number)).await;
    }
    gate.open();
    for number in 0..32 {
        let _ = stack.chat(&key, &chat("m2", &format!("after {number}"))).await.expect(200);
    }
    // Those who left pay for their input; the three that failed are given back.
    let closed = stack.closed_books(&key, 20 + 32).await;
    assert_eq!(closed.ledger.iter().filter(|record| record.get("abandoned").is_some_and(|flag| flag == "1")).count(), 20);
    let log = envoy.process().log();
    assert!(!log.contains("panicked") && !log.contains("Function: proxy_on"), "no trap: {log}");
}

/// The smallest filter that Envoy loads and that traps at each request's headers.
fn trapping_filter() -> Vec<u8> {
    const I32: u8 = 0x7f;
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).expect("short");
    let sized = |bytes: &[u8]| [&[length(bytes)], bytes].concat();
    let section = |id: u8, items: &[Vec<u8>]| {
        let body = [vec![u8::try_from(items.len()).expect("few")], items.concat()].concat();
        [vec![id], sized(&body)].concat()
    };
    let function = |takes: u8, gives: u8| [vec![0x60, takes], vec![I32; takes.into()], vec![gives], vec![I32; gives.into()]].concat();
    let export = |name: &str, kind: u8, index: u8| [sized(name.as_bytes()), vec![kind, index]].concat();
    let code = |instructions: &[u8]| sized(&[&[0], instructions, &[0x0b]].concat());
    let (unreachable, at_1024) = ([0x00], [0x41, 0x80, 0x08]);
    [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, &[function(1, 1), function(2, 0), function(3, 1), function(0, 0)]),
        section(3, &[vec![0], vec![1], vec![2], vec![3]]),
        section(5, &[vec![0, 1]]),
        section(
            7,
            &[
                export("memory", 2, 0),
                export("proxy_on_memory_allocate", 0, 0),
                export("proxy_on_context_create", 0, 1),
                export("proxy_on_request_headers", 0, 2),
                export("proxy_abi_version_0_2_1", 0, 3),
            ],
        ),
        section(10, &[code(&at_1024), code(&[]), code(&unreachable), code(&[])]),
    ]
    .concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trap_is_a_quick_503_and_passes_nothing_unauthenticated() {
    let mut stack = Stack::start().await;
    let key = stack.key().await;
    let traps = stack.envoys[0].files().with_extension("traps.wasm");
    std::fs::write(&traps, trapping_filter()).expect("a filter that traps");
    stack.envoys[0].set_wasm(&traps);
    stack.envoys[0].render();
    let call = Call::chat(&key, &chat("m1", "hello"));
    eventually("calls meet the trap", BOUND, || async { stack.envoys[0].call(&call).await.status == 503 }).await;
    for _ in 0..10 {
        let asked = tokio::time::timeout(Duration::from_secs(10), stack.envoys[0].call(&call)).await.expect("no call hangs");
        assert!(
            [200, 503].contains(&asked.status) && asked.header("x-proxium-model").is_some() == (asked.status == 200),
            "{}",
            asked.text()
        );
    }
    let calls = stack.mocks.first.calls("m1");
    let _ = stack.envoys[0].call(&Call::new("GET", "/nowhere")).await.expect(503);
    assert_eq!(stack.mocks.first.calls("m1"), calls);

    // The filter that does not trap brings it back.
    stack.envoys[0].set_wasm(&binaries::wasm());
    stack.envoys[0].render();
    eventually("calls are served again", BOUND, || async {
        for _ in 0..16 {
            if stack.envoys[0].call(&call).await.status != 200 {
                return false;
            }
        }
        true
    })
    .await;
}
