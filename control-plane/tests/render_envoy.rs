//! What `render` makes, in real Envoy. Its binary: `PROXIUM_ENVOY`, else where `make` puts it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use clap::Parser;
use proxium::catalog::{self, Catalog};
use proxium::render::{self, EnvoyFlags, File, HostPort, OnControlPlaneFailure, Options, OtherPaths, Streams};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROVIDERS: &str = r#"
providers:
  plain:   {dialect: openai, endpoint: http://127.0.0.1:1/v1}
  v6:      {dialect: openai, endpoint: "http://[::1]:1/v1"}
  named:   {dialect: openai, endpoint: https://localhost:1/v1}
  address: {dialect: anthropic, endpoint: https://127.0.0.1:1, credential: {env: NOBODY_SETS_THIS}}
  fronted: {dialect: openai, endpoint: https://127.0.0.1:1, authority: api.example.com}
  mesh:    {dialect: openai, endpoint: http://llm:80, cluster: "outbound|80||llm"}
"#;
const MODELS: &str = "models: {m: {provider: plain, free: true}}\n";

/// The smallest module that Envoy takes for a filter: memory, an allocator and the version of the interface.
const NO_OP_WASM: &[u8] = b"\0asm\x01\0\0\0\
    \x01\x09\x02\x60\0\0\x60\x01\x7f\x01\x7f\
    \x03\x03\x02\0\x01\
    \x05\x03\x01\0\x01\
    \x07\x2d\x03\x06memory\x02\0\x17proxy_abi_version_0_2_1\0\0\x06malloc\0\x01\
    \x0a\x0a\x02\x02\0\x0b\x05\0\x41\x80\x08\x0b";

fn catalog(yaml: &str) -> Catalog {
    catalog::parse(yaml, &|_| Ok("sk-credential".to_owned())).unwrap_or_else(|faults| panic!("{faults}"))
}

fn options(dir: &Path) -> Options {
    Options {
        dir: dir.to_owned(),
        wasm: dir.join("proxium.wasm"),
        listen: "127.0.0.1:10000".parse().unwrap(),
        admin: None,
        control_planes: vec!["127.0.0.1:10003".parse().unwrap()],
        internal_secret: "shared-secret".to_owned(),
        other_paths: OtherPaths::Continue,
        on_control_plane_failure: OnControlPlaneFailure::Deny,
        streams: Streams::Router,
        l1_mib: 32,
        ca_bundle: PathBuf::from("/etc/ssl/certs/ca-certificates.crt"),
        access_log: Some(PathBuf::from("/dev/stdout")),
        node_id: "proxium".to_owned(),
    }
}

fn text<'a>(files: &'a [File], name: &str) -> &'a str {
    &files.iter().find(|file| file.path == name).unwrap().text
}

#[test]
fn the_example_is_what_render_makes_of_the_example_catalog() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let catalog = catalog::load_without_credentials(&root.join("deploy/catalog/example.yaml")).unwrap();
    let example = Options {
        wasm: PathBuf::from("envoy/example/proxium.wasm"),
        admin: Some("127.0.0.1:10009".parse().unwrap()),
        internal_secret: "change-me".to_owned(),
        ..options(Path::new("envoy/example"))
    };
    let files = render::envoy(&catalog, &example).unwrap();
    assert_eq!(files, render::envoy(&catalog, &example).unwrap(), "the same in, the same out");
    for file in files {
        let path = root.join("envoy/example").join(&file.path);
        if std::env::var_os("PROXIUM_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, &file.text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(committed, file.text, "{}: set PROXIUM_WRITE_GOLDEN=1 to write it anew", path.display());
    }
}

#[test]
fn no_credential_is_rendered_and_the_secret_is_in_one_file_that_only_its_owner_reads() {
    let dir = Dir::new("modes");
    let files = render::envoy(&catalog(&format!("{PROVIDERS}{MODELS}")), &options(&dir.0)).unwrap();
    render::write(&dir.0, &files).unwrap();
    for file in &files {
        assert!(!file.text.contains("sk-credential"), "{}", file.path);
        assert_eq!(file.text.contains("shared-secret"), file.path == "ecds.yaml", "{}", file.path);
        let mode = std::fs::metadata(dir.0.join(&file.path)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if file.secret { 0o600 } else { 0o644 }, "{}", file.path);
    }
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), files.len(), "no temporary file stays");
}

#[test]
fn each_provider_gets_a_cluster_that_knows_whom_to_expect() {
    let files = render::envoy(&catalog(&format!("{PROVIDERS}{MODELS}")), &options(Path::new("/d"))).unwrap();
    let clusters: serde_json::Value = serde_yaml_ng::from_str(text(&files, "cds.yaml")).unwrap();
    let clusters = clusters["resources"].as_array().unwrap();
    let names: Vec<&str> = clusters.iter().filter_map(|cluster| cluster["alt_stat_name"].as_str()).collect();
    let expected =
        ["address", "fronted", "named", "plain", "v6"].map(|name| [format!("provider-{name}"), format!("provider-{name}-stream")]);
    assert_eq!(names, expected.as_flattened(), "not the mesh's");
    let tls = |name: &str| {
        let cluster = clusters.iter().find(|cluster| cluster["alt_stat_name"] == name).unwrap();
        let tls = &cluster["transport_socket"]["typed_config"];
        let san = &tls["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"][0];
        (cluster["type"].clone(), tls["sni"].clone(), san["san_type"].clone(), san["matcher"]["exact"].clone())
    };
    let null = serde_json::Value::Null;
    assert_eq!(tls("provider-named"), ("STRICT_DNS".into(), "localhost".into(), "DNS".into(), "localhost".into()));
    assert_eq!(tls("provider-address"), ("STATIC".into(), null.clone(), "IP_ADDRESS".into(), "127.0.0.1".into()));
    assert_eq!(tls("provider-fronted"), ("STATIC".into(), "api.example.com".into(), "DNS".into(), "api.example.com".into()));
    assert_eq!(tls("provider-plain"), ("STATIC".into(), null.clone(), null.clone(), null));
}

#[test]
fn what_an_option_holds_stays_in_its_place() {
    let hostile = "x\"}\n- y: {{ node_id }} #";
    let options = Options { node_id: hostile.to_owned(), internal_secret: hostile.to_owned(), ..options(Path::new("/d")) };
    let files = render::envoy(&catalog(&format!("{PROVIDERS}{MODELS}")), &options).unwrap();
    let bootstrap: serde_json::Value = serde_yaml_ng::from_str(text(&files, "bootstrap.yaml")).unwrap();
    assert_eq!(bootstrap["node"]["id"], hostile);
    let ecds: serde_json::Value = serde_yaml_ng::from_str(text(&files, "ecds.yaml")).unwrap();
    let plugin = ecds["resources"][0]["typed_config"]["config"]["configuration"]["value"].as_str().unwrap();
    let plugin: serde_json::Value = serde_json::from_str(plugin).unwrap();
    assert_eq!(plugin["internal_secret"], hostile);
    assert_eq!((&plugin["other_paths"], &plugin["on_control_plane_failure"]), (&"continue".into(), &"deny".into()));
}

#[test]
fn the_filter_is_copied_under_a_name_that_follows_its_content() {
    let dir = Dir::new("wasm");
    let built = dir.0.join("built.wasm");
    std::fs::write(&built, NO_OP_WASM).unwrap();
    let first = render::wasm_by_hash(&dir.0, &built).unwrap();
    assert_eq!(first, render::wasm_by_hash(&dir.0, &built).unwrap());
    std::fs::write(&built, [NO_OP_WASM, b"\0\x02\x01x"].concat()).unwrap();
    assert_ne!(first, render::wasm_by_hash(&dir.0, &built).unwrap());
    assert_eq!(std::fs::read(dir.0.join(first)).unwrap(), NO_OP_WASM);
    std::fs::write(&built, "<html>").unwrap();
    assert!(render::wasm_by_hash(&dir.0, &built).is_err_and(|fault| fault.contains("no wasm module")));
}

#[test]
fn envoy_runs_what_is_rendered_and_takes_up_each_later_rendering_without_a_restart() {
    let envoy = Envoy::start(&format!("{PROVIDERS}{MODELS}"));
    for (stat, value) in [
        ("cluster_manager.cds.update_success", "1"),
        ("cluster_manager.cds.update_rejected", "0"),
        ("listener_manager.lds.update_rejected", "0"),
        ("http.proxium.rds.proxium.update_rejected", "0"),
        ("extension_config_discovery.http_filter.proxium.config_fail", "0"),
    ] {
        assert_eq!(envoy.stat(stat).as_deref(), Some(value), "{stat}");
    }
    let answer = envoy.call();
    assert!(answer.starts_with("404") && answer.contains("\"code\":\"not_found\""), "{answer}");

    // A provider more.
    let added = |port: u16| format!("{PROVIDERS}  added: {{dialect: openai, endpoint: http://127.0.0.1:{port}}}\n{MODELS}");
    envoy.render(&added(2));
    eventually("the new cluster", || envoy.has_provider_at(2));
    // It moves, then it goes: the clusters that calls may be on stay untouched.
    envoy.render(&added(3));
    eventually("the cluster of its new place", || envoy.has_provider_at(3));
    let updates = envoy.stat("cluster_manager.cds.update_success");
    envoy.render(&format!("{PROVIDERS}{MODELS}"));
    eventually("the change is seen", || envoy.stat("cluster_manager.cds.update_success") != updates);
    assert!(envoy.has_provider_at(2) && envoy.has_provider_at(3));
    for stat in ["cluster_manager.cluster_modified", "cluster_manager.cluster_removed", "cluster_manager.cds.update_rejected"] {
        assert_eq!(envoy.stat(stat).as_deref(), Some("0"), "{stat}");
    }

    // Another filter and other settings of it.
    let reloads = "extension_config_discovery.http_filter.proxium.config_reload";
    let before = envoy.stat(reloads);
    std::fs::write(envoy.dir.0.join("built.wasm"), [NO_OP_WASM, b"\0\x02\x01x"].concat()).unwrap();
    envoy.render(&format!("{PROVIDERS}{MODELS}"));
    eventually("the new filter", || envoy.stat(reloads) != before);

    // Another largest body: the listener changes and goes on listening.
    let updates = envoy.stat("listener_manager.lds.update_success");
    envoy.render(&format!("{PROVIDERS}{MODELS}limits: {{max_body: 1MiB}}\n"));
    eventually("the new listener", || envoy.stat("listener_manager.lds.update_success") != updates);
    eventually("it answers", || envoy.call().starts_with("404"));
    for stat in ["cluster_manager.cds.update_rejected", "listener_manager.lds.update_rejected"] {
        assert_eq!(envoy.stat(stat).as_deref(), Some("0"), "{stat}");
    }
    let log = std::fs::read_to_string(envoy.dir.0.join("access.log")).unwrap();
    assert!(log.contains(r#""path":"/some/path""#) && !log.contains("token=hidden"), "no query in the log: {log}");
}

struct Envoy {
    process: Child,
    dir: Dir,
    listen: HostPort,
    admin: HostPort,
}

impl Envoy {
    /// Validates, then starts.
    fn start(yaml: &str) -> Self {
        let dir = Dir::new("envoy");
        std::fs::write(dir.0.join("built.wasm"), NO_OP_WASM).unwrap();
        let (listen, admin) = (free_port(), free_port());
        write(&dir.0, &listen, &admin, yaml);
        let bootstrap = dir.0.join("bootstrap.yaml");
        let valid = Command::new(binary()).args(["--mode", "validate", "-c"]).arg(&bootstrap).output().unwrap();
        assert!(valid.status.success(), "{}", String::from_utf8_lossy(&valid.stderr));
        let log = std::fs::File::create(dir.0.join("envoy.log")).unwrap();
        let process = Command::new(binary())
            .args(["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning", "-c"])
            .arg(&bootstrap)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let envoy = Self { process, dir, listen, admin };
        let listening = || envoy.stat("listener_manager.workers_started").as_deref() == Some("1");
        if !within_bound(|| listening() && envoy.call().starts_with("404")) {
            panic!("Envoy did not start:\n{}", std::fs::read_to_string(envoy.dir.0.join("envoy.log")).unwrap_or_default());
        }
        envoy
    }

    fn render(&self, yaml: &str) {
        write(&self.dir.0, &self.listen, &self.admin, yaml);
    }

    fn admin(&self, path: &str) -> String {
        get(&format!("http://{}/{path}", self.admin))
    }

    fn has_provider_at(&self, port: u16) -> bool {
        let clusters = self.admin("clusters");
        clusters.lines().any(|line| line.contains("provider-added-") && line.contains(&format!("::127.0.0.1:{port}::")))
    }

    fn stat(&self, name: &str) -> Option<String> {
        let stats = self.admin("stats");
        stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
    }

    /// Status and body of a call that the filter leaves alone.
    fn call(&self) -> String {
        get(&format!("http://{}/some/path?token=hidden", self.listen))
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Renders as `proxium render envoy` and a running control plane do.
fn write(dir: &Path, listen: &HostPort, admin: &HostPort, yaml: &str) {
    let (listen, admin, dir_text) = (listen.to_string(), admin.to_string(), dir.to_string_lossy());
    let (wasm, log) = (format!("{dir_text}/built.wasm"), format!("{dir_text}/access.log"));
    let flags = Flags::parse_from([
        "test",
        "--envoy-listen",
        &listen,
        "--envoy-admin",
        &admin,
        "--wasm",
        &wasm,
        "--access-log",
        &log,
        "--control-plane",
        "127.0.0.1:1",
        "--control-plane",
        "localhost:1",
    ]);
    render::install(&catalog(yaml), &flags.envoy, "shared-secret", dir).unwrap();
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    envoy: EnvoyFlags,
}

fn binary() -> PathBuf {
    let cached = ".cache/proxium/envoy-1.40.0/lib/python3.11/site-packages/envoy/_bin/envoy";
    let path =
        std::env::var_os("PROXIUM_ENVOY").map_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(cached), PathBuf::from);
    assert!(path.exists(), "no Envoy at {}: `make test` fetches it, or name one with PROXIUM_ENVOY", path.display());
    path
}

/// Status, a space, the body; or what went wrong.
fn get(url: &str) -> String {
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(5))).build();
    match ureq::Agent::new_with_config(config).get(url).call() {
        Ok(mut answer) => format!("{} {}", answer.status().as_u16(), answer.body_mut().read_to_string().unwrap_or_default()),
        Err(error) => error.to_string(),
    }
}

fn free_port() -> HostPort {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    address.to_string().parse().unwrap()
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    assert!(within_bound(holds), "not within 30 s: {what}");
}

fn within_bound(holds: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        if Instant::now() > end {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// A directory that is removed with its value.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
