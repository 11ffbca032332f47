//! The official SDKs as clients: a stack whose models are scripts of the mock provider, and the run of a client script against it.

#![allow(clippy::print_stdout)] // `--nocapture` shows what a script checked

use crate::{Key, Mocks, Port, Stack, binaries};
use proxium::mock_provider::{Behaviour, End};
use serde_json::json;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// A script makes some thirty calls, and a few wait for a timeout or a `retry-after`.
const PATIENCE: Duration = Duration::from_secs(120);
const DIALECTS: [&str; 2] = ["openai", "anthropic"];
/// Each a model `<dialect>-<name>` of a provider of its own: what fails on purpose must not open the breaker of another.
const SCRIPTS: [&str; 14] = [
    "echo",
    "mirror",
    "tools",
    "thinking",
    "length",
    "hang",
    "flaky",
    "closed",
    "cut",
    "failing",
    "error-400",
    "error-429",
    "error-500",
    "error-529",
];

fn catalog(mocks: &Mocks, refusing: SocketAddr) -> String {
    let (mut providers, mut models) = (String::new(), String::new());
    for dialect in DIALECTS {
        for script in SCRIPTS.into_iter().chain(["dead"]) {
            let name = format!("{dialect}-{script}");
            let addr = if script == "dead" { refusing } else { mocks.first.addr() };
            providers +=
                &format!("  {name}: {{dialect: {dialect}, endpoint: \"http://{addr}/v1\", credential: {{env: FIRST_CREDENTIAL}}}}\n");
            // No Gpt and no Claude: what such a model cannot do is not known, so that nothing is left out for its sake.
            models += &format!(
                "  {name}: {{provider: {name}, upstream: {dialect}-mock-{script}, max_output_tokens: 4000, \
                 price_usd_per_mtok: {{input: 1, output: 10}}}}\n"
            );
        }
    }
    format!("providers:\n{providers}models:\n{models}")
}

/// A stream of the dialect's first events, and then `end`; chunked, so that its end can be cut off.
fn begun(dialect: &str, end: &str) -> Behaviour {
    let begin = match dialect {
        "openai" => {
            let chunk = |delta| json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]});
            format!("data: {}\n\ndata: {}\n\n", chunk(json!({"role": "assistant", "content": ""})), chunk(json!({"content": "Half"})))
        }
        _ => {
            let message = json!({"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 2, "output_tokens": 1}});
            let events = [
                json!({"type": "message_start", "message": message}),
                json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Half"}}),
            ];
            events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default())).collect()
        }
    };
    Behaviour::sse([begin + end])
}

/// The stack for the scripts in `tests/tests/sdk`.
pub struct Sdk {
    /// The stack.
    pub stack: Stack,
    _refusing: Port,
}

impl Sdk {
    /// Starts it.
    ///
    /// # Panics
    /// Something does not start.
    pub async fn start() -> Self {
        let refusing = Port::take();
        let addr = refusing.addr();
        let stack = Stack::builder().catalog(move |mocks| catalog(mocks, addr)).render("--streams", "router").start().await;
        for dialect in DIALECTS {
            let error = match dialect {
                "openai" => "data: {\"error\":{\"message\":\"Overloaded\",\"type\":\"overloaded_error\",\"param\":null,\"code\":null}}\n\n",
                _ => "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n",
            };
            stack.mocks.first.always(&format!("{dialect}-mock-closed"), begun(dialect, "").ends(End::Closed));
            stack.mocks.first.always(&format!("{dialect}-mock-cut"), begun(dialect, "").ends(End::Cut));
            stack.mocks.first.always(&format!("{dialect}-mock-failing"), begun(dialect, error));
        }
        Self { stack, _refusing: refusing }
    }

    /// Runs a Python script over both provider dialects.
    ///
    /// # Panics
    /// It fails.
    pub async fn python(&self, script: &str) {
        self.run(python(), script).await;
    }

    /// Runs a Node script over both provider dialects.
    ///
    /// # Panics
    /// It fails.
    pub async fn node(&self, script: &str) {
        self.run(node(), script).await;
    }

    async fn run(&self, mut command: Command, script: &str) {
        let key = self.stack.key().await;
        let narrow = self.stack.key_with(json!({}), json!({"allowed_models": ["openai-length"]})).await;
        prepare(&mut command, &self.stack, &key, script);
        command.env("NARROW_KEY", &narrow.text);
        for dialect in DIALECTS {
            // Used up by one call: the key's window is told by the second.
            let capped = self.stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 1}})).await;
            self.stack.mocks.first.next(&format!("{dialect}-mock-flaky"), [Behaviour::status(429).header("retry-after", "1")]);
            command.env("PROVIDER", dialect).env("CAPPED_KEY", &capped.text);
            finish(&mut command, &format!("{script} over {dialect}")).await;
        }
    }
}

fn python() -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", binaries::python_clients()).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn node() -> Command {
    let mut command = Command::new(binaries::node());
    command.env("NODE_CLIENTS", binaries::node_clients());
    command
}

fn prepare(command: &mut Command, stack: &Stack, key: &Key, script: &str) {
    command.arg(binaries::in_repo("tests/tests/sdk").join(script));
    command
        .env("BASE_URL", format!("http://{}", stack.envoys[0].listen().addr()))
        .env("KEY", &key.text)
        .env("NO_PROXY", "*")
        .stdin(Stdio::null())
        .kill_on_drop(true);
}

async fn finish(command: &mut Command, what: &str) {
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("the script ends").expect("the script starts");
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}:\n{told}");
    println!("{what}:\n{told}");
}

/// Runs a client script, Python's or Node's by its name, against any stack.
///
/// # Panics
/// It fails.
pub async fn run_client(stack: &Stack, key: &Key, script: &str, env: &[(&str, &str)]) {
    let mut command = if script.ends_with(".py") { python() } else { node() };
    prepare(&mut command, stack, key, script);
    command.envs(env.iter().copied());
    finish(&mut command, script).await;
}
