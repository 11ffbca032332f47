//! What lies in `deploy/`, as far as it can be checked without a cluster. `helm`, `buildah`, `promtool` and published schemas are asked
//! where they are (`PROXIUM_HELM`, `PROXIUM_BUILDAH`, `PROXIUM_PROMTOOL`, `PROXIUM_SCHEMAS`).

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

mod charts;
mod images;

use proxium::metrics::Metrics;
use proxium_wire::metric;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

fn deploy() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn text(path: &str) -> String {
    std::fs::read_to_string(deploy().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn documents(path: &str) -> Vec<Value> {
    documents_of(&text(path))
}

fn documents_of(text: &str) -> Vec<Value> {
    let all = serde_yaml_ng::Deserializer::from_str(text).map(Value::deserialize);
    all.map(|document| document.unwrap_or_else(|error| panic!("{error}: {text}"))).collect()
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Every query of the dashboard and of the alerts.
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&text("grafana/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap().clone());
    let alerts = documents("grafana/alerts.yaml");
    let rules = alerts[0]["groups"][0]["rules"].as_array().unwrap().clone();
    panels.chain(rules).map(|one| one["expr"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_metrics_that_exist() {
    let ours = Metrics::new().unwrap().text(false).unwrap();
    let mut known: BTreeSet<String> =
        ours.lines().filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split_once(' ')?.0.to_owned())).collect();
    // What has labels is not in the text before it is counted.
    known.extend(
        ["proxium_admissions_total", "proxium_settlements_total", "proxium_requests_total", "proxium_request_seconds"].map(str::to_owned),
    );
    known.extend(
        [
            metric::TOKENS,
            metric::DURATION,
            metric::FIRST_TOKEN,
            metric::ATTEMPT,
            metric::CALLS,
            metric::CACHE,
            metric::ATTEMPTS,
            metric::BREAKER,
            metric::BREAKER_STATE,
            metric::CREDENTIAL_REFUSED,
            metric::OUTBOX_PENDING,
            metric::OUTBOX_GIVEN_UP,
            metric::CONTROL_PLANE,
            metric::SETTLE_LAG,
        ]
        .map(str::to_owned),
    );
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let queries = queries();
    assert!(queries.len() > 20);
    for query in &queries {
        let words: Vec<&str> = query.split(|c| !is_word(c)).collect();
        let metrics = words.iter().filter(|word| word.starts_with("proxium_") || word.starts_with("gen_ai_"));
        let mut found = 0;
        for word in metrics.filter(|word| !metric::LABELS.contains(word)) {
            let name = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word);
            assert!(known.contains(name), "{name} of {query}");
            found += 1;
        }
        assert!(found > 0, "{query}");
    }
    if let Some(promtool) = std::env::var_os("PROXIUM_PROMTOOL") {
        let checked = output(Command::new(promtool).args(["check", "rules"]).arg(deploy().join("grafana/alerts.yaml")));
        assert!(checked.contains("SUCCESS"), "{checked}");
    }
}

#[test]
fn each_alert_fires_when_it_should_and_none_on_a_quiet_day() {
    let tests = text("grafana/alerts.test.yaml");
    for rule in documents("grafana/alerts.yaml")[0]["groups"][0]["rules"].as_array().unwrap() {
        let name = format!("alertname: {}", rule["alert"].as_str().unwrap());
        assert!(tests.matches(&name).count() >= 2, "{name} is not tried both ways");
    }
    let Some(promtool) = std::env::var_os("PROXIUM_PROMTOOL") else { return eprintln!("skipped: PROXIUM_PROMTOOL names no promtool") };
    output(Command::new(promtool).args(["test", "rules", "alerts.test.yaml"]).current_dir(deploy().join("grafana")));
}

#[test]
fn the_charts_pod_is_confined_and_its_secrets_are_references() {
    let all = documents("helm/example.yaml");
    let of = |kind: &str| all.iter().find(|document| document["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"));
    for kind in ["Service", "ServiceAccount", "PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy", "ServiceMonitor"] {
        let _ = of(kind);
    }
    assert!(all.iter().all(|document| document["kind"] != "Secret"));
    let pod = &of("Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!((&pod["securityContext"]["runAsNonRoot"], &pod["automountServiceAccountToken"]), (&true.into(), &false.into()));
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL");
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], "admin", "{probe}");
    }
    let url = container["env"].as_array().unwrap().iter().find(|variable| variable["name"] == "REDIS_URL").unwrap();
    assert_eq!(url["valueFrom"]["secretKeyRef"]["name"], "proxium-redis");
    // A mesh takes HTTP/2 for what it is, and finds the control plane where `render istio` looks for it.
    let service = of("Service");
    assert_eq!((&service["metadata"]["name"], &service["spec"]["ports"][0]["appProtocol"]), (&"proxium".into(), &"http2".into()));
    // The chart's catalog is one that the control plane takes.
    let catalog = of("ConfigMap")["data"]["catalog.yaml"].as_str().unwrap();
    assert!(proxium::catalog::parse(catalog, &|_| Ok("sk-credential".to_owned())).is_ok());
}

#[test]
fn compose_runs_the_control_plane_and_envoy_as_one_user_without_a_secret_in_the_file() {
    let compose = &documents("compose.yaml")[0];
    let services = &compose["services"];
    assert_eq!(services["envoy"]["user"], "65532:65532", "the user of the control plane's image, whose files only it reads");
    assert!(text("images/control-plane.Dockerfile").contains("USER 65532:65532"));
    let version = std::fs::read_to_string(deploy().join("../envoy/VERSION")).unwrap();
    assert!(services["envoy"]["image"].as_str().unwrap().ends_with(version.trim()), "the Envoy that the tests run");
    for variable in ["PROXIUM_INTERNAL_SECRET", "PROXIUM_ADMIN_TOKEN", "PROXIUM_SEAL_KEY"] {
        let value = services["control-plane"]["environment"][variable].as_str().unwrap();
        assert!(value.starts_with(&format!("${{{variable}:?")), "{value}");
    }
}
