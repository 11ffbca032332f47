//! What a newcomer does: `make up`, the printed line, `make down`; and the README's commands, up to the console.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::print_stdout, reason = "a test")]

use proxium::mock_provider::{Behaviour, Mock};
use proxium_e2e::{BOUND, Call, Dir, Port, Response, binaries, eventually};
use serde_json::json;
use std::collections::HashMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A stack of `make up` on ports of its own; gone, with its state, when dropped.
struct Made {
    /// A stack takes its port and the five after it, and the admin port.
    ports: Vec<Port>,
}

impl Made {
    fn new() -> Self {
        Self { ports: Port::take_row(7) }
    }

    fn port(&self) -> u16 {
        self.ports[0].number()
    }

    fn admin_port(&self) -> u16 {
        self.ports[6].number()
    }

    fn state(&self) -> PathBuf {
        binaries::in_repo(&format!(".run/{}", self.port()))
    }

    /// A program on this stack's ports, with what is built already.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(binaries::in_repo(""))
            .env("PORT", self.port().to_string())
            .env("ADMIN_PORT", self.admin_port().to_string())
            .env("PROXIUM_BIN", binaries::proxium())
            .env("PROXIUM_WASM", binaries::wasm())
            .env("PROXIUM_ENVOY", binaries::envoy())
            .env("PROXIUM_REDIS_SERVER", binaries::redis_server())
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL")
            .stdin(Stdio::null());
        command
    }

    fn make(&self, goal: &str) -> Command {
        let mut make = self.command("make");
        make.args(["--old-file", "build", goal]);
        make
    }

    fn up(&self) -> String {
        let output = self.make("up").output().expect("make");
        assert!(output.status.success(), "{}", both(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    /// The pids of its processes by name.
    fn processes(&self) -> HashMap<String, u32> {
        let files = std::fs::read_dir(self.state()).expect("the stack's state").filter_map(Result::ok).map(|entry| entry.path());
        let pids = files.filter(|path| path.extension().is_some_and(|of| of == "pid"));
        pids.map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), pid_in(&path))).collect()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.state().exists() {
            self.make("down").output().expect("make");
            let read = |name: &str| std::fs::read_to_string(self.state().join(name)).unwrap_or_default();
            let logs = ["redis", "mock-provider", "control-plane", "envoy"].map(|name| (name, read(&format!("{name}.log"))));
            let secrets = ["demo-key", "admin-token", "internal-secret", "seal-key"].map(|name| (name, read(name)));
            std::fs::remove_dir_all(self.state()).ok();
            for (name, log) in logs {
                if std::thread::panicking() {
                    eprintln!("---- {name}\n{log}");
                    continue;
                }
                for (what, secret) in secrets.iter().filter(|(_, secret)| !secret.is_empty()) {
                    assert!(!log.contains(secret.trim()), "the {what} is in the log of {name}");
                }
            }
        }
    }
}

fn pid_in(path: &Path) -> u32 {
    std::fs::read_to_string(path).ok().and_then(|text| text.split(' ').next()?.parse().ok()).expect("a pid")
}

fn both(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn is_alive(pid: u32) -> bool {
    // A zombie waits for its parent only.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Runs the printed line as a person would, and tells status, headers and body.
fn run_line(printed: &str) -> (u16, HashMap<String, String>, String) {
    let line = printed.lines().find(|line| line.trim_start().starts_with("curl ")).expect("a curl line is printed");
    let output = Command::new("sh").args(["-c", line]).output().expect("sh");
    let answer = String::from_utf8(output.stdout).expect("text").replace("\r\n", "\n");
    let (head, body) = answer.split_once("\n\n").expect("a head and a body");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
    let headers = lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
    (status, headers, body.to_owned())
}

#[test]
fn the_line_that_make_up_prints_is_answered_and_then_a_free_hit() {
    let made = Made::new();
    let printed = made.up();
    assert!(printed.contains(&format!("http://127.0.0.1:{}", made.admin_port())), "{printed}");

    let (status, first, body) = run_line(&printed);
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("You said: hello"), "{body}");
    for header in [
        "x-proxium-request-id",
        "x-proxium-model",
        "x-proxium-cache",
        "x-proxium-attempts",
        "x-proxium-cost-usd",
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
    ] {
        assert!(first.contains_key(header), "{header} is missing: {first:?}");
    }
    assert_eq!((first["x-proxium-cache"].as_str(), first["x-proxium-attempts"].as_str()), ("miss", "1"));
    assert_ne!(first["x-proxium-cost-usd"], "0");

    let (status, second, again) = run_line(&printed);
    assert_eq!((status, &again), (200, &body));
    assert_eq!((second["x-proxium-cache"].as_str(), second["x-proxium-cost-usd"].as_str()), ("hit", "0"));

    let processes = made.processes();
    assert_eq!(processes.len(), 4, "{processes:?}");
    assert!(processes.values().all(|pid| is_alive(*pid)));
    let output = made.make("down").output().expect("make");
    assert!(output.status.success(), "{}", both(&output));
    assert!(!processes.values().any(|pid| is_alive(*pid)), "{processes:?}");
    for port in &made.ports {
        TcpListener::bind(port.addr()).expect("the port is free again");
    }

    // Its state is kept: the same key works after the next start.
    let printed_again = made.up();
    assert_eq!(run_line(&printed_again).0, 200);
    assert_eq!(printed_again.lines().find(|line| line.contains("curl")), printed.lines().find(|line| line.contains("curl")));
}

#[test]
fn two_stacks_of_one_checkout_are_told_apart_by_their_port() {
    let (one, other) = (Made::new(), Made::new());
    let (of_one, of_other) = (one.up(), other.up());
    assert_eq!((run_line(&of_one).0, run_line(&of_other).0), (200, 200));
    assert!(one.make("down").status().expect("make").success());
    assert!(other.processes().values().all(|pid| is_alive(*pid)), "the other one goes on");
    assert_eq!(run_line(&of_other).1["x-proxium-cache"], "hit");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let made = Made::new();
    for taken in [made.ports[0].addr(), made.ports[4].addr()] {
        let _listener = TcpListener::bind(taken).expect("the port");
        let output = made.make("up").output().expect("make");
        assert!(!output.status.success());
        let message = both(&output);
        assert!(message.contains(&format!("port {} is in use by another program", taken.port())), "{message}");
        assert!(message.contains("make up PORT="), "it says what to do: {message}");
    }
    assert!(made.processes().is_empty(), "nothing was started");
    made.up();
    let output = made.make("up").output().expect("make");
    assert!(both(&output).contains("runs on port"), "{}", both(&output));
    assert_eq!(made.processes().len(), 4, "the one that runs is left alone");
}

/// The shell blocks under a heading of the README, as they stand there.
fn readme_commands(heading: &str) -> String {
    let readme = std::fs::read_to_string(binaries::in_repo("README.md")).unwrap();
    let section = readme.split(&format!("{heading}\n")).nth(1).expect("the heading").split("\n## ").next().unwrap();
    section.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn by_the_readme_alone_a_newcomer_sees_a_call_of_their_own_provider_and_its_cost_in_the_console_within_five_minutes() {
    let (made, provider) = (Made::new(), Mock::start(([127, 0, 0, 1], 0).into()).expect("a provider"));
    let usage = json!({"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050});
    provider.always("llama3.2", Behaviour::answer().usage(usage));
    let began = Instant::now();
    // A `make` that does not build again. Where a person would stop and wonder, bash ends.
    let (dir, path) = (Dir::fresh(), std::env::var("PATH").expect("a path"));
    std::fs::write(dir.path().join("make"), format!("#!/bin/sh\nPATH='{path}' exec make --old-file build \"$@\"\n")).unwrap();
    std::fs::set_permissions(dir.path().join("make"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut shell = made.command("bash");
    shell.args(["-euo", "pipefail", "-c", &readme_commands("## The console, and your own provider in five minutes")]);
    shell.env("PATH", format!("{}:{path}", dir.path().display())).env("PROVIDER", format!("http://{}/v1", provider.addr()));
    let output = tokio::task::spawn_blocking(move || shell.output().expect("bash")).await.unwrap();
    assert!(output.status.success(), "{}", both(&output));
    let told = String::from_utf8(output.stdout).expect("text").replace("\r\n", "\n");
    let header = |name: &str| told.lines().rev().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    // 1,000 x 0.10 and 50 x 0.40, of a million.
    assert_eq!((header("x-proxium-model"), header("x-proxium-cost-usd")), (Some("llama3.2"), Some("0.00012")), "{told}");
    assert_eq!(provider.calls("llama3.2"), 1);

    // As a browser goes on.
    let words: Vec<&str> = told.lines().last().expect("where to look").split(' ').collect();
    let (base, path) = words[1].split_at(words[1].find("/console").expect("the console"));
    let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let login = Call::new("POST", "/console/login").header("content-type", "application/x-www-form-urlencoded");
    let login = login.body(format!("token={}", words[words.len() - 1]));
    let opened: Response = login.send(&client, base).await.unwrap().expect(303);
    let look = Call::new("GET", path).header("cookie", opened.header("set-cookie").unwrap().split(';').next().unwrap());
    eventually("the console shows the call and its cost", BOUND, || async {
        let page = look.send(&client, base).await.unwrap().expect(200).text();
        let recent = page.split("<h2>Recent calls</h2>").nth(1).expect("recent calls");
        if ["llama3.2", "0.00012", "mine"].iter().all(|word| recent.contains(word)) { Ok(()) } else { Err(page.clone()) }
    })
    .await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(300), "{took:?}");
    println!("from `make up` to the call in the console: {:.1} s", took.as_secs_f64());
}

#[tokio::test]
async fn ctrl_c_ends_all_that_make_run_started() {
    let made = Made::new();
    let mut make = made.make("run").process_group(0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("make");
    let printed = tokio::task::spawn_blocking({
        let output = make.stdout.take().expect("piped");
        move || {
            let mut lines = std::io::BufRead::lines(std::io::BufReader::new(output)).map_while(Result::ok);
            lines.find(|line| line.contains("curl ")).unwrap_or_default()
        }
    });
    assert_eq!(run_line(&printed.await.unwrap()).0, 200);
    let processes = made.processes();
    assert_eq!(processes.len(), 4);
    // As a terminal does: to all of the foreground.
    Command::new("sh").args(["-c", &format!("kill -s INT -- -{}", make.id())]).status().expect("sh");
    eventually("make has ended", BOUND, || std::future::ready(make.try_wait().ok().flatten().is_some())).await;
    eventually("all has ended", BOUND, || std::future::ready(!processes.values().any(|pid| is_alive(*pid)))).await;
}
