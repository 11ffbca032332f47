//! The binary: `proxium serve`, and the commands that talk to it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used, reason = "helpers of tests fail as tests do")]

#[path = "common/redis.rs"]
mod redis;

use redis::{Redis, free_port};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROXIUM: &str = env!("CARGO_BIN_EXE_proxium");
const CATALOG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/catalog/demo.yaml");
const BOUND: Duration = Duration::from_secs(10);

/// A running `proxium serve`, killed when dropped.
struct Serve {
    child: Child,
    admin_port: u16,
    secret_file: PathBuf,
}

impl Serve {
    fn start(redis_url: &str) -> Self {
        let (admin_port, internal_port) = (free_port(), free_port());
        let secret_file = std::env::temp_dir().join(format!("proxium-commands-{}-{admin_port}", std::process::id()));
        std::fs::write(&secret_file, "internal\n").unwrap();
        let child = Command::new(PROXIUM)
            .args(["serve", "--catalog", CATALOG, "--redis-url", redis_url])
            .args(["--admin-listen", &format!("127.0.0.1:{admin_port}"), "--internal-listen", &format!("127.0.0.1:{internal_port}")])
            .arg("--internal-secret-file")
            .arg(&secret_file)
            .env("PROXIUM_ADMIN_TOKEN", "admin")
            .env("PROXIUM_SEAL_KEY", format!("k1:{}", "ab".repeat(32)))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, admin_port, secret_file }
    }

    fn command(&self, args: &[&str], input: &str) -> Output {
        let mut child = Command::new(PROXIUM)
            .args(args)
            .env("PROXIUM_ADMIN_TOKEN", "admin")
            .env("PROXIUM_ADMIN_URL", format!("http://127.0.0.1:{}", self.admin_port))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// A command that must succeed: what it printed.
    fn done(&self, args: &[&str], input: &str) -> Value {
        let output = self.command(args, input);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    /// Waits until Redis is used.
    fn ready(&self) {
        let until = Instant::now() + BOUND;
        while !self.command(&["projects", "list"], "").status.success() {
            assert!(Instant::now() < until, "not ready");
        }
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.secret_file);
    }
}

#[test]
fn a_project_with_all_its_parts_is_made_by_commands() {
    let redis = Redis::shared();
    let serve = Serve::start(&format!("redis://{}", redis.address()));
    serve.ready();
    let project = serve.done(&["projects", "create", "--name", "Team", "--monthly-cap-usd", "12.50", "--rule", "x=mock-small,fast"], "");
    let id = project["id"].as_str().unwrap();
    assert_eq!((&project["monthly_cap_usd"], &project["rules"]["x"][1]), (&"12.5".into(), &"fast".into()));
    let key =
        serve.done(&["keys", "create", id, "--name", "k", "--calls-per-hour", "5", "--json", "-"], r#"{"allowed_models":["mock-small"]}"#);
    assert!(key["key"].as_str().unwrap().starts_with("px_"));
    assert_eq!((&key["ceilings"]["calls_per_hour"], &key["allowed_models"][0]), (&5.into(), &"mock-small".into()));
    let key_id = key["id"].as_str().unwrap();
    assert_eq!(serve.done(&["keys", "revoke", id, key_id], "")["revoked"], true);
    serve.done(&["credentials", "set", id, "mock"], "sk-secret\n");
    assert_eq!(serve.done(&["credentials", "list", id], "")["credentials"][0]["provider"], "mock");
    assert_eq!(serve.done(&["senders", "set", id, "a b/c", "--tokens-per-minute", "0"], "")["source"], "a b/c");
    serve.done(&["cache", "purge", id, "--model", "mock-small"], "");
    assert_eq!(serve.done(&["projects", "update", id, "--unset", "monthly_cap_usd"], "")["monthly_cap_usd"], Value::Null);
    let sealed = serve.done(&["credentials", "reseal"], "");
    assert_eq!((&sealed["key"], &sealed["already"], &sealed["unreadable"]), (&"k1".into(), &1.into(), &serde_json::json!([])));
    serve.done(&["projects", "delete", id], "");
    let token = serve.done(&["tokens", "create", "--name", "ci", "--role", "viewer", "--expires-at", "2126-01-01T00:00:00Z"], "");
    let token_id = token["id"].as_str().unwrap();
    assert_eq!(serve.done(&["tokens", "list"], "")["tokens"][0]["role"], "viewer");
    serve.done(&["tokens", "revoke", token_id], "");
    let audit = serve.done(&["audit", "list", "--limit", "3"], "");
    assert_eq!(
        (&audit["entries"][0]["what"], &audit["entries"][2]["what"]),
        (&format!("revoke token {token_id}").into(), &"delete project".into())
    );

    let refused = serve.command(&["projects", "create", "--rule", "x=nobody"], "");
    assert_eq!(refused.status.code(), Some(1));
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(message.contains("name: is missing") && message.contains("rules.x[0]"), "{message}");
    assert_eq!(serve.command(&["projects", "get", id], "").status.code(), Some(1));
    assert_eq!(serve.command(&["projects", "nonsense"], "").status.code(), Some(2));
    assert_eq!(serve.command(&["projects", "list", "--admin-url", "http://127.0.0.1:9"], "").status.code(), Some(3));
}

#[test]
fn spend_is_printed_as_json_table_and_csv() {
    let redis = Redis::shared();
    let serve = Serve::start(&format!("redis://{}", redis.address()));
    serve.ready();
    let project = serve.done(&["projects", "create", "--name", "Spender"], "");
    let id = project["id"].as_str().unwrap();
    for (cost, source) in [("2.5", "app"), ("-0.25", "app"), ("9.000000001", "batch, nightly")] {
        serve.done(&["spend", "correct", id, "--cost-usd", cost, "--source", source, "--note", "invoice"], "");
    }
    let show = |output: &str, by: &str| {
        let shown = serve.command(&["spend", "show", id, "--by", by, "--output", output], "");
        assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
        String::from_utf8(shown.stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&show("json", "source")).unwrap();
    let rows: Vec<_> = json["rows"].as_array().unwrap().iter().map(|row| (&row["source"], &row["cost_usd"], &row["calls"])).collect();
    assert_eq!(
        rows,
        [(&"app".into(), &"2.25".into(), &0.into()), (&"batch, nightly".into(), &"9.000000001".into(), &0.into())],
        "signed amounts are summed"
    );
    let csv = show("csv", "source");
    let mut lines = csv.split("\r\n");
    let (header, first, second) = (lines.next().unwrap(), lines.next().unwrap(), lines.next().unwrap());
    let cost_at = header.split(',').position(|column| column == "cost_usd").unwrap();
    assert!(header.starts_with("source,") && second.starts_with("\"batch, nightly\","), "{csv}");
    assert_eq!(first.split(',').nth(cost_at), Some("2.25"), "{csv}");
    let table = show("table", "day");
    assert!(table.starts_with("DAY") && table.lines().count() == 2 && table.contains("11.250000001"), "{table}");
    for by in ["model", "key"] {
        assert!(show("csv", by).contains("11.250000001"), "{by}");
    }
    let ledger = serve.done(&["spend", "ledger", id, "--limit", "2"], "");
    let after = ledger["next"].as_str().unwrap();
    let rest = serve.done(&["spend", "ledger", id, "--after", after], "");
    assert_eq!((&rest["records"][0]["source"], &rest["records"][1]), (&"batch, nightly".into(), &Value::Null));
}

#[test]
fn serve_ends_in_order_on_sigterm() {
    let redis = Redis::shared();
    let mut serve = Serve::start(&format!("redis://{}", redis.address()));
    serve.ready();
    Command::new("kill").args(["-TERM", &serve.child.id().to_string()]).status().unwrap();
    let until = Instant::now() + BOUND;
    let status = loop {
        if let Some(status) = serve.child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < until, "it does not end");
        std::thread::yield_now();
    };
    assert_eq!(status.code(), Some(0));
}

#[test]
fn serve_says_what_is_missing() {
    for (args, needle) in [
        (&["serve", "--catalog", CATALOG][..], "PROXIUM_INTERNAL_SECRET"),
        (&["serve", "--catalog", CATALOG, "--internal-secret", "s", "--redis-url", "nonsense"], "--redis-url"),
        (&["serve", "--catalog", CATALOG, "--internal-secret", "s", "--seal-key", "k:12"], "64 hex digits"),
        (&["serve", "--catalog", "/nonexistent.yaml", "--internal-secret", "s"], "nonexistent"),
    ] {
        let output = Command::new(PROXIUM)
            .args(args)
            .args(["--admin-listen", "127.0.0.1:0", "--internal-listen", "127.0.0.1:0"])
            .env_remove("PROXIUM_INTERNAL_SECRET")
            .output()
            .unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(needle), "{message}");
    }
}
