//! The pages for operators name what there is: a setting or an error code that is new must be written down.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::process::Command;

fn page(name: &str) -> String {
    let path = format!("{}/../deploy/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Flags and variables of a command's help.
fn settings(command: &[&str]) -> Vec<String> {
    let help = Command::new(env!("CARGO_BIN_EXE_proxium")).args(command).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let flags = help.lines().filter_map(|line| line.trim_start().strip_prefix("--")).map(|rest| rest.split(' ').next().unwrap());
    let flags = flags.map(|flag| format!("`--{}`", flag.trim_end_matches(',')));
    let variables = help.lines().filter_map(|line| line.trim().strip_prefix("[env: "));
    let variables = variables.map(|rest| format!("`{}`", rest.trim_end_matches(']').split('=').next().unwrap()));
    flags.chain(variables).collect()
}

#[test]
fn every_setting_of_serve_and_render_is_on_the_page() {
    let page = page("settings.md");
    for command in [&["serve"][..], &["render", "envoy"]] {
        let settings = settings(command);
        assert!(settings.len() > 10, "{settings:?}");
        // `--out` is no setting but the output.
        for setting in settings.into_iter().filter(|setting| setting != "`--out`") {
            assert!(page.contains(&setting), "deploy/settings.md does not name {setting}");
        }
    }
}

#[test]
fn every_error_code_is_on_the_page() {
    let page = page("troubleshooting.md");
    let source = include_str!("../../filter/flow/src/refusal.rs");
    let codes = source.split("pub fn code(&self)").nth(1).unwrap().split("\n    }\n").next().unwrap();
    let codes: Vec<&str> = codes.split('"').skip(1).step_by(2).collect();
    assert!(codes.len() > 10, "{codes:?}");
    for code in codes {
        assert!(page.contains(&format!("`{code}`")), "deploy/troubleshooting.md does not name {code}");
    }
}
