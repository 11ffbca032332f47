//! The pages for operators name what there is: a setting or an error code that is new must be written down.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

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

/// Every page for people, with its name.
fn pages() -> Vec<(String, String)> {
    let root = format!("{}/..", env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec!["README.md".to_owned(), "envoy/README.md".to_owned(), "deploy/istio/README.md".to_owned()];
    let deploy = std::fs::read_dir(format!("{root}/deploy")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    pages.extend(deploy.filter(|name| name.ends_with(".md")).map(|name| format!("deploy/{name}")));
    pages.into_iter().map(|name| (name.clone(), std::fs::read_to_string(format!("{root}/{name}")).unwrap())).collect()
}

/// What stands in code, inline or in a block, a line each; continued lines are one.
fn code(page: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for (at, part) in page.replace("\\\n", " ").split("```").enumerate() {
        if at % 2 == 1 {
            lines.extend(part.lines().map(|line| line.split(" #").next().unwrap().to_owned()));
        } else {
            lines.extend(part.split('`').skip(1).step_by(2).map(|code| code.replace('\n', " ")));
        }
    }
    lines
}

#[test]
fn every_command_on_the_pages_is_one_with_these_flags() {
    let mut seen = 0;
    for (name, page) in pages() {
        for line in code(&page) {
            let Some((_, command)) = line.split_once("proxium ").filter(|(before, _)| before.is_empty() || before.ends_with([' ', '(']))
            else {
                continue;
            };
            let words: Vec<&str> = command.split([' ', ')']).filter(|word| !word.is_empty()).collect();
            let is_name = |word: &&&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-');
            let path: Vec<&str> = words.iter().take_while(is_name).take(2).copied().collect();
            // `proxium check FILE`, `proxium spend show PROJECT`: the second word may be a subcommand or not.
            let help = |path: &[&str]| Command::new(env!("CARGO_BIN_EXE_proxium")).args(path).arg("--help").output().unwrap();
            let Some(output) = (1..=path.len()).rev().map(|length| help(&path[..length])).find(|output| output.status.success()) else {
                // `docker compose … proxium 5`, `helm install proxium deploy/…`: no command of ours.
                assert!(path.is_empty() || line.starts_with("helm") || line.starts_with("kubectl"), "{name}: {line}");
                continue;
            };
            let text = String::from_utf8(output.stdout).unwrap();
            for flag in words.iter().filter_map(|word| word.strip_prefix("--")) {
                let flag = format!("--{}", flag.split(['=', '|']).next().unwrap());
                assert!(text.contains(&format!("{flag} ")) || text.contains(&format!("{flag}\n")), "{name}: {line}: there is no {flag}");
            }
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn every_make_target_on_the_pages_is_one() {
    let makefile = std::fs::read_to_string(format!("{}/../Makefile", env!("CARGO_MANIFEST_DIR"))).unwrap();
    for (name, page) in pages() {
        for line in code(&page) {
            let Some((_, target)) = line.split_once("make ").filter(|(before, _)| before.is_empty() || before.ends_with([' ', '('])) else {
                continue;
            };
            let target: String = target.chars().take_while(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-').collect();
            assert!(makefile.contains(&format!("\n{target}:")), "{name}: {line}: there is no target {target:?}");
        }
    }
}
