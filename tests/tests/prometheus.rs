//! The dashboard's and the alerts' queries, asked of a real Prometheus that scrapes a stack. Where there is one: `PROXIUM_PROMETHEUS`
//! (Debian's package `prometheus` has it).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use proxium::mock_provider::Behaviour;
use proxium_e2e::{BOUND, Dir, Port, Process, Stack, chat, eventually};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Every query of the dashboard, and every alert's without its threshold's verdict.
fn queries() -> Vec<String> {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/grafana");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(deploy.join("dashboard.json")).unwrap()).unwrap();
    let alerts: Value = serde_yaml_ng::from_str(&std::fs::read_to_string(deploy.join("alerts.yaml")).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let all = panels.chain(alerts["groups"][0]["rules"].as_array().unwrap());
    all.map(|one| one["expr"].as_str().unwrap().replace("$__rate_interval", "1m")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_prometheus_understands_every_query_and_sees_the_calls() {
    let Some(prometheus) = std::env::var_os("PROXIUM_PROMETHEUS").map(PathBuf::from) else {
        return eprintln!("skipped: PROXIUM_PROMETHEUS names no prometheus");
    };
    let stack = Stack::builder().and_catalog("breaker: {consecutive_failures: 1, cooldown: 300s}").start().await;
    let key = stack.key().await;
    let _ = stack.chat(&key, &chat("m1", "hello")).await.expect(200);
    stack.mocks.third.next("m3", [Behaviour::status(500)]);
    let _ = stack.chat(&key, &chat("m3", "hello")).await.expect(502);

    let (dir, port) = (Dir::fresh(), Port::take());
    let job = |name: &str, path: &str, address: String| json!({"job_name": name, "metrics_path": path, "static_configs": [{"targets": [address]}]});
    let config = json!({
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            job("envoy", "/stats/prometheus", stack.envoys[0].admin_addr().to_string()),
            job("control-plane", "/metrics", stack.control_planes[0].admin_addr().to_string()),
        ],
    });
    let path = dir.path().join("prometheus.yaml");
    std::fs::write(&path, config.to_string()).unwrap();
    let args = [
        format!("--config.file={}", path.display()),
        format!("--storage.tsdb.path={}", dir.path().join("tsdb").display()),
        format!("--web.listen-address={}", port.addr()),
    ];
    let mut process = Process::new("prometheus", &prometheus, args, &[], dir.path());
    process.start();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let ask = |query: String| {
        let url = reqwest::Url::parse_with_params(&format!("http://{}/api/v1/query", port.addr()), [("query", query)]).unwrap();
        let request = client.get(url);
        async move {
            let text = request.send().await.map_err(|error| error.to_string())?.text().await.map_err(|error| error.to_string())?;
            serde_json::from_str::<Value>(&text).map_err(|error| error.to_string())
        }
    };
    for (query, value) in [
        (r#"sum(proxium_calls_total{endpoint="chat",code="ok"})"#, "1"),
        (r#"max by (provider) (proxium_breaker_state{breaker="platform",provider="first"})"#, "0"),
        (r#"max by (provider) (proxium_breaker_state{breaker="platform",provider="third"})"#, "2"),
        (r#"sum(gen_ai_client_token_usage_count{gen_ai_response_model="m1",gen_ai_token_type="output"})"#, "1"),
        (r#"sum(proxium_settlements_total{end="settle"})"#, "1"),
    ] {
        eventually(query, BOUND, || async {
            let answer = ask(query.to_owned()).await?;
            if answer["data"]["result"][0]["value"][1] == value { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
    }
    for query in queries() {
        let answer = ask(query.clone()).await.unwrap();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
    }
}
