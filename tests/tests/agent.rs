//! A command-line agent, npm `@anthropic-ai/claude-code`, unchanged and offline: its base URL is proxium, its provider the mock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a surprise is a failed test

use proxium_e2e::{Dir, Sdk, binaries};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// It starts in a second or two; on a busy machine it may take its time.
const PATIENCE: Duration = Duration::from_secs(120);

/// The agent's result, after it was told to read a file.
async fn reads_a_file(sdk: &Sdk, model: &str) -> Value {
    let (home, work) = (Dir::fresh(), Dir::fresh());
    let note = work.path().join("note.txt");
    std::fs::write(&note, "The word is quokka.\n").unwrap();
    let key = sdk.stack.key().await;
    let mut command = Command::new(binaries::agent());
    // Nothing of this machine's: no settings, no credentials, no telemetry, no updates.
    command.env_clear().envs([
        ("PATH", std::env::var("PATH").unwrap().as_str()),
        ("HOME", home.path().to_str().unwrap()),
        ("ANTHROPIC_BASE_URL", &format!("http://{}", sdk.stack.envoys[0].listen().addr())),
        ("ANTHROPIC_AUTH_TOKEN", &key.text),
        ("ANTHROPIC_MODEL", model),
        ("ANTHROPIC_SMALL_FAST_MODEL", model),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("DISABLE_TELEMETRY", "1"),
        ("DISABLE_ERROR_REPORTING", "1"),
        ("DISABLE_AUTOUPDATER", "1"),
    ]);
    let order = format!("call Read {}", serde_json::json!({"file_path": note}));
    command.args(["-p", &order, "--output-format", "json", "--allowedTools", "Read"]);
    command.current_dir(work.path()).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("the agent ends").expect("the agent starts");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_completes_a_turn_that_uses_a_tool_over_both_dialects() {
    let sdk = Sdk::start().await;
    for model in ["anthropic-tools", "openai-tools"] {
        let result = reads_a_file(&sdk, model).await;
        let text = result["result"].as_str().unwrap_or_default();
        assert!(result["is_error"] == false && text.starts_with("Results: ") && text.contains("quokka"), "{model}: {result:#}");
        assert_eq!(result["num_turns"], 2, "{model}: {result:#}");
    }
}
