//! What `proxium render istio` makes. That the Envoy of a mesh runs it is shown end to end (`tests/tests/istio.rs`).

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use clap::Parser;
use proxium::catalog::{self, Catalog};
use proxium::render::{self, File, IstioArgs};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

const SHA256: &str = "3f8a1c0e5b7d9f2a4c6e8b0d1f3a5c7e9b2d4f6a8c0e1b3d5f7a9c2e4b6d8f0a";

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    istio: IstioArgs,
}

fn args(more: &[&str]) -> IstioArgs {
    let wasm = ["--wasm", "oci://registry.example.com/proxium-filter:1.0.0", "--wasm-sha256", SHA256];
    Flags::parse_from(["test", "--catalog", "unused", "--out", "unused"].iter().chain(&wasm).chain(more)).istio
}

fn catalog(yaml: &str) -> Catalog {
    catalog::parse(yaml, &|_| Ok("sk-credential".to_owned())).unwrap_or_else(|faults| panic!("{faults}"))
}

fn documents(files: &[File]) -> Vec<Value> {
    let texts = files.iter().map(|file| file.text.as_str());
    texts.flat_map(|text| serde_yaml_ng::Deserializer::from_str(text).map(|document| Value::deserialize(document).unwrap())).collect()
}

#[test]
fn the_example_is_what_render_makes_of_its_catalog() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/istio/example");
    let catalog = catalog::load_without_credentials(&root.join("catalog.yaml")).unwrap();
    let files = render::istio(&catalog, &args(&[]), "change-me").unwrap();
    assert_eq!(files, render::istio(&catalog, &args(&[]), "change-me").unwrap(), "the same in, the same out");
    for file in files {
        assert_eq!(file.secret, file.text.contains("change-me"), "{}", file.path);
        let path = root.join(&file.path);
        if std::env::var_os("PROXIUM_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, &file.text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(committed, file.text, "{}: set PROXIUM_WRITE_GOLDEN=1 to write it anew", path.display());
    }
}

#[test]
fn a_provider_outside_the_mesh_is_named_to_it_with_whom_to_expect_there() {
    let yaml = "mesh: istio
providers:
  far: {dialect: openai, endpoint: https://llm.example.com/v1}
  fronted: {dialect: openai, endpoint: https://edge.example.com:8443/v1, authority: llm.example.com}
  near: {dialect: openai, endpoint: http://vllm.models.svc.cluster.local:8000/v1}
models: {m: {provider: far, free: true}}\n";
    let files = render::istio(&catalog(yaml), &args(&[]), "s").unwrap();
    let all = documents(&files);
    let of = |kind: &str| all.iter().filter(|document| document["kind"] == kind).collect::<Vec<_>>();
    let hosts: Vec<_> = of("ServiceEntry").iter().map(|entry| entry["spec"]["hosts"][0].clone()).collect();
    assert_eq!(hosts, ["edge.example.com", "llm.example.com"], "not what the mesh knows by itself");
    let tls = &of("DestinationRule")[0]["spec"]["trafficPolicy"]["portLevelSettings"][0];
    assert_eq!((&tls["port"]["number"], &tls["tls"]["mode"]), (&8443.into(), &"SIMPLE".into()));
    assert_eq!((&tls["tls"]["sni"], &tls["tls"]["subjectAltNames"][0]), (&"llm.example.com".into(), &"llm.example.com".into()));
    let wire = catalog(yaml).to_wire();
    let far = wire.providers.iter().find(|provider| provider.name == "far").unwrap();
    assert_eq!((far.cluster.as_str(), far.stream_cluster.as_str()), ("outbound|443||llm.example.com", "outbound|443||llm.example.com"));
    assert!(files.iter().all(|file| !file.text.contains("sk-credential")));
}

#[test]
fn what_a_mesh_cannot_do_is_refused_with_what_to_change() {
    let mesh = |endpoint: &str| {
        format!(
            "mesh: istio\nproviders: {{p: {{dialect: openai, endpoint: \"{endpoint}\"}}}}\nmodels: {{m: {{provider: p, free: true}}}}\n"
        )
    };
    let refused = |yaml: &str, more: &[&str]| render::istio(&catalog(yaml), &args(more), "s").unwrap_err();
    assert!(refused(&mesh("https://192.0.2.1/v1"), &[]).contains("DNS name"));
    assert!(refused(&mesh("https://a.example/v1").replace("mesh: istio\n", ""), &[]).contains("mesh: istio"));
    let two = mesh("https://a.example/v1").replace("}}\nmodels", "}, q: {dialect: openai, endpoint: \"http://a.example:443\"}}\nmodels");
    assert!(refused(&two, &[]).contains("without TLS"));
    let mut unsigned = args(&[]);
    unsigned.wasm_sha256 = None;
    assert!(render::istio(&catalog(&mesh("https://a.example")), &unsigned, "s").unwrap_err().contains("--wasm-sha256"));
    let faults = catalog::parse(&mesh("https://a.example").replace("istio", "linkerd"), &|_| Ok(String::new())).unwrap_err().to_string();
    assert!(faults.contains("mesh") && faults.contains("must be istio"), "{faults}");
}

#[test]
fn a_sidecar_is_patched_where_its_clusters_are() {
    let yaml = "mesh: istio\nproviders: {p: {dialect: openai, endpoint: https://a.example}}\nmodels: {m: {provider: p, free: true}}\n";
    let more = ["--context", "sidecar_inbound", "--selector", "app=shop", "--selector", "tier=web", "--streams", "callout"];
    let all = documents(&render::istio(&catalog(yaml), &args(&more), "s").unwrap());
    let filter = all.iter().find(|document| document["kind"] == "EnvoyFilter").unwrap();
    assert_eq!(filter["spec"]["workloadSelector"]["labels"]["app"], "shop");
    let patches = filter["spec"]["configPatches"].as_array().unwrap();
    let contexts = |kind: &str| {
        patches.iter().filter(|patch| patch["applyTo"] == kind).map(|patch| patch["match"]["context"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(contexts("CLUSTER"), ["SIDECAR_OUTBOUND"]);
    assert_eq!(contexts("HTTP_FILTER"), ["SIDECAR_INBOUND"]);
    assert!(contexts("HTTP_ROUTE").is_empty() && contexts("NETWORK_FILTER").is_empty(), "other routes of the application are left alone");
}
