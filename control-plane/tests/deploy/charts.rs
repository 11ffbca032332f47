//! The Helm chart, as the real `helm` renders it (`PROXIUM_HELM`), and all manifests against the schemas that Kubernetes, Istio and the
//! Prometheus operator publish (`PROXIUM_SCHEMAS`, a directory of `.dev/tools schemas`). Without them what needs them says so.

use super::{deploy, documents, output, text};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const KUBERNETES: &str = "1.37";

fn helm() -> Option<PathBuf> {
    let helm = std::env::var_os("PROXIUM_HELM").map(PathBuf::from);
    if helm.is_none() {
        eprintln!("skipped: PROXIUM_HELM names no helm");
    }
    helm
}

/// What `helm template` makes of the chart with these arguments.
fn template(helm: &Path, args: &[&str]) -> String {
    let catalog = format!("catalog={}", deploy().join("istio/example/catalog.yaml").display());
    let chart = deploy().join("helm/proxium");
    let command = &mut Command::new(helm);
    output(command.args(["template", "proxium"]).arg(chart).args(["--namespace", "proxium", "--set-file", &catalog]).args(args))
}

/// Sets every value that has no default, or another one.
const EVERYTHING: [&str; 34] = [
    "--set=autoscaling.enabled=false",
    "--set=image.digest=sha256:0123",
    "--set=imagePullSecrets[0].name=pull",
    "--set=redis.cacheUrlKey=cache-url",
    "--set=serviceAccount.annotations.a=b",
    "--set=podAnnotations.a=b",
    "--set=podLabels.a=b",
    "--set=nodeSelector.a=b",
    "--set=tolerations[0].key=gateway",
    "--set=tolerations[0].operator=Exists",
    "--set=affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=zone",
    "--set=networkPolicy.gateways[0].podSelector.matchLabels.app=envoy",
    "--set=networkPolicy.redis[0].ipBlock.cidr=10.0.0.0/8",
    "--set=serviceMonitor.enabled=true",
    "--set=serviceMonitor.labels.release=prometheus",
    "--set=extraEnv[0].name=OTEL_EXPORTER_OTLP_ENDPOINT",
    "--set=extraEnv[0].value=http://collector:4318",
    "--set=extraEnv[1].name=PROXIUM_REDIS_WAIT_REPLICAS",
    "--set-string=extraEnv[1].value=1",
    "--set=resources.limits.cpu=2",
    "--set=service.adminPort=8081",
    "--set=service.internalPort=8083",
    "--set=log=text",
    "--set=replicas=3",
    "--set=image.pullPolicy=Always",
    "--set=image.repository=registry.example.com/proxium",
    "--set=existingSecret=mine",
    "--set=credentialsSecret=mine-too",
    "--set=redis.existingSecret=redis",
    "--set=redis.urlKey=redis-url",
    "--set=topologySpreadConstraints[0].maxSkew=2",
    "--set=topologySpreadConstraints[0].topologyKey=zone",
    "--set=topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
    "--set=networkPolicy.admins[0].podSelector.matchLabels.app=prometheus",
];

#[test]
fn the_example_is_what_helm_makes_of_the_chart() {
    let Some(helm) = helm() else { return };
    let rendered = template(&helm, &["--set=serviceMonitor.enabled=true"]);
    let path = deploy().join("helm/example.yaml");
    if std::env::var_os("PROXIUM_WRITE_GOLDEN").is_some() {
        std::fs::write(path, &rendered).unwrap();
    }
    assert_eq!(rendered, text("helm/example.yaml"), "PROXIUM_WRITE_GOLDEN=1 writes it anew");
    let linted = output(Command::new(&helm).args(["lint", "--strict", "--set=catalog=x"]).arg(deploy().join("helm/proxium")));
    assert!(linted.contains("0 chart(s) failed"), "{linted}");
    // Without a catalog it says what to do.
    let refused = Command::new(&helm).args(["template", "proxium"]).arg(deploy().join("helm/proxium")).output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--set-file catalog=catalog.yaml"));
}

/// Runs a script of `schemas/` on these documents: whether all are valid, and what it says.
fn checked(schemas: &Path, documents: &[Value]) -> (bool, String) {
    let (own, custom): (Vec<_>, Vec<_>) = documents.iter().partition(|document| {
        let version = document["apiVersion"].as_str().unwrap_or_default();
        !version.contains("istio.io/") && !version.contains("coreos.com/")
    });
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/deploy/schemas");
    let node = std::env::var_os("PROXIUM_NODE").unwrap_or_else(|| "node".into());
    let mut python = Command::new("python3");
    python.arg(scripts.join("kubernetes.py")).arg(KUBERNETES).env("PYTHONPATH", schemas.join("python"));
    let mut javascript = Command::new(node);
    javascript.arg(scripts.join("custom.mjs")).arg(schemas);
    let (mut valid, mut said) = (true, String::new());
    for (command, documents) in [(&mut python, own), (&mut javascript, custom)] {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(json!(documents).to_string().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        valid &= output.status.success();
        said += &String::from_utf8_lossy(&[output.stdout, output.stderr].concat());
    }
    (valid, said)
}

#[test]
fn every_manifest_is_valid_by_the_schemas_that_are_published() {
    let Some(schemas) = std::env::var_os("PROXIUM_SCHEMAS").map(PathBuf::from) else {
        return eprintln!("skipped: PROXIUM_SCHEMAS names no schemas");
    };
    let mut all = documents("helm/example.yaml");
    for file in ["providers", "envoyfilter", "control-plane"] {
        all.extend(documents(&format!("istio/example/{file}.yaml")));
    }
    if let Some(helm) = helm() {
        all.extend(super::documents_of(&template(&helm, &EVERYTHING)));
    }
    all.retain(|document| !document.is_null());
    assert!(all.len() >= 15, "{}", all.len());
    let (valid, said) = checked(&schemas, &all);
    assert!(valid, "{said}");

    // They do look: a word that is none, of each kind of schema.
    let of = |kind: &str| all.iter().find(|document| document["kind"] == kind).unwrap().clone();
    let mut deployment = of("Deployment");
    deployment["spec"]["template"]["spec"]["containers"][0]["redinessProbe"] = json!({});
    let mut entry = of("ServiceEntry");
    entry["spec"]["location"] = json!("MESH_OUTSIDE");
    for wrong in [deployment, entry] {
        let (valid, said) = checked(&schemas, std::slice::from_ref(&wrong));
        assert!(!valid && (said.contains("redinessProbe") || said.contains("location")), "{said}");
    }
}
