//! The console in a real browser, by keyboard, with real calls behind it. What it checks is in `console/browser.mjs`; it prints one line
//! for each behaviour. `SCREENSHOTS=dir` keeps pictures of the pages.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test")]

use proxium::mock_provider::Behaviour;
use proxium_e2e::{Call, Stack, binaries};
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn people_run_the_gateway_from_a_browser() {
    let stack = Stack::start().await;
    stack.mocks.first.next("m1", [Behaviour::status(500)]);
    stack.mocks.third.always("m3", Behaviour::status(500));
    let admin = stack.admin();
    let token = |document: Value| {
        let admin = admin.clone();
        async move { admin.post("/tokens", &document).await.expect(201).json() }
    };
    let (boss, viewer) = (token(json!({"name": "Grace", "role": "admin"})).await, token(json!({"name": "wall", "role": "viewer"})).await);
    let text = |token: &Value| token["token"].as_str().expect("a text").to_owned();

    let run = Command::new(binaries::node())
        .arg(binaries::in_repo("tests/tests/console/browser.mjs"))
        .env("CONSOLE", format!("http://{}", stack.control_planes[0].admin_addr()))
        .env("GATEWAY", format!("http://{}", stack.envoys[0].listen().addr()))
        .env("CHROMIUM", binaries::chromium())
        .env("BROWSER", binaries::browser())
        .env("TOKEN", text(&boss))
        .env("VIEWER", text(&viewer))
        .env("NO_PROXY", "*")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, run).await.expect("the script ends").expect("the script starts");
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}");
    println!("{told}");

    // What was done there was done as by the API, and is told the same way.
    let audit = admin.get("/audit").await.json();
    let entries = audit["entries"].as_array().expect("entries");
    let who = format!("Grace ({})", boss["id"].as_str().expect("an id"));
    for what in ["create project", "change project", "purge cache"] {
        assert!(entries.iter().any(|entry| entry["what"] == what && entry["who"] == who.as_str()), "{what}: {entries:?}");
    }
    assert!(!entries.iter().any(|entry| entry["who"].as_str().is_some_and(|who| who.starts_with("wall"))), "{entries:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_needs_its_cookie_its_form_its_site_and_its_token() {
    let stack = Stack::start().await;
    let admin = stack.admin();
    let token = admin.post("/tokens", &json!({"name": "t", "role": "admin"})).await.expect(201).json();
    let form = |path: &str, body: String| Call::new("POST", path).header("content-type", "application/x-www-form-urlencoded").body(body);
    let login = form("/console/login", format!("token={}", token["token"].as_str().unwrap()));

    let wrong = admin.send(&form("/console/login", "token=wrong".to_owned())).await.expect(401);
    assert!(wrong.header("set-cookie").is_none() && wrong.text().contains("There is no such token"));
    let _ = admin.send(&login.clone().header("sec-fetch-site", "cross-site")).await.expect(403);
    let opened = admin.send(&login.clone()).await.expect(303);
    let set = opened.header("set-cookie").unwrap().to_owned();
    assert!(set.contains("; HttpOnly; SameSite=Strict") && !set.contains("Secure"), "{set}");
    let by_tls = admin.send(&login.header("origin", "https://console.example")).await.expect(303);
    assert!(by_tls.header("set-cookie").unwrap().ends_with("; Secure"));
    let cookie = set.split(';').next().unwrap().to_owned();

    let page = admin.send(&Call::new("GET", "/console").header("cookie", &cookie)).await.expect(200);
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!((page.header("x-content-type-options"), page.header("cache-control")), (Some("nosniff"), Some("no-store")));
    let text = page.text();
    let csrf = text.split("name=\"csrf\" value=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();

    let make = |csrf: &str| form("/console/projects", format!("csrf={csrf}&name=made")).header("cookie", &cookie);
    let _ = admin.send(&form("/console/projects", format!("csrf={csrf}&name=made"))).await.expect(303);
    let _ = admin.send(&make("guessed")).await.expect(403);
    let _ = admin.send(&make(csrf).header("sec-fetch-site", "same-site")).await.expect(403);
    assert!(!admin.get("/projects").await.text().contains("made"), "nothing was made");
    let made = admin.send(&make(csrf).header("sec-fetch-site", "same-origin")).await.expect(303);
    assert!(made.header("location").unwrap().starts_with("/console/projects/made-"));

    let _ = admin.call("DELETE", &format!("/tokens/{}", token["id"].as_str().unwrap()), &Value::Null).await.expect(204);
    let ended = admin.send(&Call::new("GET", "/console").header("cookie", &cookie)).await.expect(303);
    assert_eq!(ended.header("location"), Some("/console/login"));
}
