//! `proxium render istio` in a mesh: its manifests, made into an Envoy's configuration as Istio does it, run in real Envoy.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use proxium::mock_provider::Behaviour;
use proxium_e2e::{BOUND, Call, Dir, INTERNAL_SECRET, Key, Mocks, Port, Process, Response, Stack, binaries, chat, eventually};
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

const SHA256: &str = "3f8a1c0e5b7d9f2a4c6e8b0d1f3a5c7e9b2d4f6a8c0e1b3d5f7a9c2e4b6d8f0a";
const OPTIONS: &str = "typed_extension_protocol_options";

fn catalog(_: &Mocks) -> String {
    "
mesh: istio
providers:
  first: {dialect: openai, endpoint: http://api.first.example/v1, credential: {env: FIRST_CREDENTIAL}}
  second: {dialect: openai, endpoint: http://api.second.example:8080/v1, credential: {env: SECOND_CREDENTIAL}}
models:
  m1: {provider: first, price_usd_per_mtok: {input: 1, output: 10}, max_output_tokens: 1000}
  m2: {provider: second, price_usd_per_mtok: {input: 2, output: 20}, max_output_tokens: 1000}
chains: {fast: [m1, m2]}
"
    .into()
}

/// The manifests of a rendering.
fn manifests(dir: &Path, more: &[&str]) -> Vec<Value> {
    let catalog = dir.join("catalog.yaml");
    let output = Command::new(binaries::proxium())
        .args(["render", "istio", "--wasm", "oci://registry.example.com/proxium-filter:1", "--wasm-sha256", SHA256, "--catalog"])
        .arg(&catalog)
        .arg("--out")
        .arg(dir.join("manifests"))
        .args(more)
        .env("PROXIUM_INTERNAL_SECRET", INTERNAL_SECRET)
        .output()
        .expect("proxium runs");
    assert!(output.status.success(), "proxium render: {}", String::from_utf8_lossy(&output.stderr));
    let mut documents = Vec::new();
    for name in ["control-plane.yaml", "providers.yaml", "envoyfilter.yaml"] {
        let text = std::fs::read_to_string(dir.join("manifests").join(name)).unwrap();
        documents.extend(serde_yaml_ng::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap()));
    }
    documents
}

/// Protobuf's merge, as Istio has it: members one by one, lists at the end, entries of a map as a whole.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                match into.get_mut(name) {
                    Some(there) if name == OPTIONS => value.as_object().unwrap().iter().for_each(|(key, value)| there[key] = value.clone()),
                    Some(there) => merge(there, value),
                    None => drop(into.insert(name.clone(), value.clone())),
                }
            }
        }
        (Value::Array(into), Value::Array(from)) => into.extend(from.iter().cloned()),
        (into, from) => *into = from.clone(),
    }
}

fn static_cluster(name: &str, address: SocketAddr) -> Value {
    let endpoint = json!({"endpoint": {"address": {"socket_address": {"address": address.ip(), "port_value": address.port()}}}});
    json!({
        "name": name, "type": "STATIC", "connect_timeout": "10s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    })
}

/// What Istio and its agent make of the manifests for a gateway.
struct Mesh {
    envoy: Value,
    dir: std::path::PathBuf,
}

impl Mesh {
    /// A cluster for each port of each host outside the mesh; here its address is a mock's.
    fn service_entry(&mut self, entry: &Value, addresses: &[(&str, SocketAddr)]) {
        let host = entry["spec"]["hosts"][0].as_str().unwrap();
        let address = addresses.iter().find(|(name, _)| *name == host).unwrap().1;
        for port in entry["spec"]["ports"].as_array().unwrap() {
            let cluster = static_cluster(&format!("outbound|{}||{host}", port["number"]), address);
            self.clusters().push(cluster);
        }
    }

    fn clusters(&mut self) -> &mut Vec<Value> {
        self.envoy["static_resources"]["clusters"].as_array_mut().unwrap()
    }

    fn listener(&mut self) -> &mut Value {
        &mut self.envoy["static_resources"]["listeners"][0]
    }

    fn manager(&mut self) -> &mut Value {
        &mut self.listener()["filter_chains"][0]["filters"][0]
    }

    fn host(&mut self) -> &mut Value {
        &mut self.manager()["typed_config"]["route_config"]["virtual_hosts"][0]
    }

    fn patch(&mut self, patch: &Value) {
        assert_eq!(patch["match"]["context"], "GATEWAY");
        let (operation, value) = (patch["patch"]["operation"].as_str().unwrap(), &patch["patch"]["value"]);
        match (patch["applyTo"].as_str().unwrap(), operation) {
            ("EXTENSION_CONFIG", "ADD") => self.extension(value),
            ("LISTENER", "MERGE") => merge(self.listener(), value),
            ("NETWORK_FILTER", "MERGE") => merge(self.manager(), value),
            ("HTTP_FILTER", "INSERT_BEFORE") => {
                let next = &patch["match"]["listener"]["filterChain"]["filter"]["subFilter"]["name"];
                let filters = self.manager()["typed_config"]["http_filters"].as_array_mut().unwrap();
                let at = filters.iter().position(|filter| filter["name"] == *next).unwrap();
                filters.insert(at, value.clone());
            }
            ("VIRTUAL_HOST", "MERGE") => merge(self.host(), value),
            ("HTTP_ROUTE", "INSERT_FIRST") => self.host()["routes"].as_array_mut().unwrap().insert(0, value.clone()),
            ("CLUSTER", "ADD") => self.clusters().push(value.clone()),
            ("CLUSTER", "MERGE") => {
                let name = &patch["match"]["cluster"]["name"];
                merge(self.clusters().iter_mut().find(|cluster| cluster["name"] == *name).expect("a cluster of Istio's"), value);
            }
            ("BOOTSTRAP", "MERGE") => merge(&mut self.envoy, value),
            other => panic!("Istio knows no {other:?}, or this test does not"),
        }
    }

    /// Istio's agent fetches the code and hands Envoy a file.
    fn extension(&self, value: &Value) {
        let mut resource = json!({"@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"});
        merge(&mut resource, value);
        let code = &mut resource["typed_config"]["config"]["vm_config"]["code"];
        assert_eq!(code["remote"]["sha256"], SHA256);
        *code = json!({"local": {"filename": binaries::wasm()}});
        std::fs::write(self.extension_path(value["name"].as_str().unwrap()), json!({"resources": [resource]}).to_string()).unwrap();
    }

    fn extension_path(&self, name: &str) -> std::path::PathBuf {
        self.dir.join(format!("{name}.json"))
    }

    /// There is no istiod here: a file is the source of what it would send.
    fn without_ads(&self, value: &mut Value) {
        if let Some(name) = value["name"].as_str().map(str::to_owned)
            && value.pointer("/config_discovery/config_source/ads").is_some()
        {
            let path = self.extension_path(&name);
            value["config_discovery"]["config_source"] = json!({"resource_api_version": "V3", "path_config_source": {"path": path}});
        }
        match value {
            Value::Object(members) => members.values_mut().for_each(|member| self.without_ads(member)),
            Value::Array(elements) => elements.iter_mut().for_each(|element| self.without_ads(element)),
            _ => {}
        }
    }
}

struct Gateway {
    stack: Stack,
    process: Process,
    listen: Port,
    admin: Port,
    key: Key,
    client: reqwest::Client,
    _dir: Dir,
}

impl Gateway {
    async fn start(more: &[&str]) -> Self {
        let stack = Stack::builder().envoys(0).catalog(catalog).start().await;
        let dir = Dir::fresh();
        std::fs::write(dir.path().join("catalog.yaml"), catalog(&stack.mocks)).unwrap();
        let (listen, admin) = (Port::take(), Port::take());
        let address = |addr: SocketAddr| json!({"socket_address": {"address": addr.ip(), "port_value": addr.port()}});
        let mut envoy: Value = serde_yaml_ng::from_str(include_str!("gateway.yaml")).unwrap();
        envoy["admin"] = json!({"address": address(admin.addr())});
        let mut mesh = Mesh { envoy, dir: dir.path().into() };
        mesh.listener()["address"] = address(listen.addr());
        for (name, addr) in [
            ("outbound|80||orders.shop.svc.cluster.local", stack.mocks.third.addr()),
            ("outbound|10003||proxium.proxium.svc.cluster.local", stack.control_planes[0].internal().addr()),
        ] {
            let found = mesh.clusters().iter_mut().find(|cluster| cluster["name"] == name).unwrap();
            merge(found, &static_cluster(name, addr));
        }
        let addresses = [("api.first.example", stack.mocks.first.addr()), ("api.second.example", stack.mocks.second.addr())];
        let documents = manifests(dir.path(), more);
        let of = |kind: &str| documents.iter().filter(move |document| document["kind"] == kind).collect::<Vec<_>>();
        of("ServiceEntry").into_iter().for_each(|entry| mesh.service_entry(entry, &addresses));
        for patch in of("EnvoyFilter")[0]["spec"]["configPatches"].as_array().unwrap() {
            mesh.patch(patch);
        }
        let mut envoy = std::mem::take(&mut mesh.envoy);
        mesh.without_ads(&mut envoy);
        let bootstrap = dir.path().join("gateway.json");
        std::fs::write(&bootstrap, envoy.to_string()).unwrap();
        let args = ["-c", bootstrap.to_str().unwrap(), "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"];
        let mut process = Process::new("gateway", &binaries::envoy(), args, &[], dir.path());
        process.start();
        let key = stack.key().await;
        let client = reqwest::Client::builder().pool_max_idle_per_host(0).no_proxy().build().unwrap();
        let mut gateway = Self { stack, process, listen, admin, key, client, _dir: dir };
        gateway.ready().await;
        gateway
    }

    async fn ready(&mut self) {
        let probe = Call::chat(&self.key, &chat("no-such-model", "ready?"));
        let base = format!("http://{}", self.listen.addr());
        eventually("the gateway knows the catalog", BOUND, || {
            self.process.check().unwrap_or_else(|why| panic!("{why}"));
            async {
                let answer = probe.send(&self.client, &base).await.map_err(|error| error.to_string())?;
                if answer.text().contains("model_not_found") { Ok(()) } else { Err(answer.text()) }
            }
        })
        .await;
    }

    async fn call(&self, call: &Call) -> Response {
        call.send(&self.client, &format!("http://{}", self.listen.addr())).await.expect("an answer of the gateway")
    }

    fn streamed(&self, text: &str) -> Call {
        let mut body = chat("fast", text);
        body["stream"] = json!(true);
        Call::chat(&self.key, &body)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_of_a_mesh_serves_calls_and_streams_with_failover() {
    let gateway = Gateway::start(&[]).await;
    let (stack, key) = (&gateway.stack, &gateway.key);
    let unary = gateway.call(&Call::chat(key, &chat("fast", "hello"))).await.expect(200);
    assert_eq!(unary.json()["choices"][0]["message"]["content"], "You said: hello");
    let stream = gateway.call(&gateway.streamed("a stream")).await.expect(200);
    assert!(stream.text().ends_with("data: [DONE]\n\n"), "{}", stream.text());
    assert_eq!(stream.header("x-proxium-model"), Some("m1"));
    stack.mocks.first.next("m1", [Behaviour::status(500)]);
    let next = gateway.call(&gateway.streamed("another")).await.expect(200);
    assert_eq!((next.header("x-proxium-model"), next.header("x-proxium-attempts")), (Some("m2"), Some("2")));
    assert!(next.text().ends_with("data: [DONE]\n\n"), "{}", next.text());
    for answer in [&unary, &stream, &next] {
        stack.settled(&key.project, answer).await;
    }
    // The same cluster for both ways, and no header of the mesh's on either.
    let seen = stack.mocks.first.requests();
    assert_eq!(seen.len(), 3);
    for request in &seen {
        assert_eq!(request.header("host"), Some("api.first.example"));
        assert_eq!(request.header("authorization"), Some("Bearer platform-credential-of-first"));
        for name in ["x-envoy-internal", "x-envoy-expected-rq-timeout-ms", "x-forwarded-proto", "x-request-id"] {
            assert_eq!(request.header(name), None, "{name}");
        }
    }

    // Other routes stay the mesh's own.
    let orders = gateway.call(&Call::new("GET", "/shop/models").header("host", "orders")).await.expect(200);
    assert!(orders.headers.keys().all(|name| !name.as_str().starts_with("x-proxium")), "{:#?}", orders.headers);

    // The labels of metrics, by the patched bootstrap.
    let metrics = Call::new("GET", "/stats/prometheus?usedonly");
    eventually("the calls are counted", BOUND, || async {
        let text = metrics.send(&gateway.client, &format!("http://{}", gateway.admin.addr())).await.unwrap().text();
        text.lines().any(|line| line.starts_with("proxium_calls_total{") && line.contains("code=\"ok\"") && line.ends_with("} 3"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateways_buffer_is_as_large_as_the_largest_body_and_the_filter_says_when_one_is_larger() {
    let gateway = Gateway::start(&["--streams", "callout"]).await;
    let key = &gateway.key;
    let large = gateway.call(&Call::chat(key, &chat("m1", &"x".repeat(9 << 20)))).await.expect(200);
    assert_eq!(large.header("x-proxium-model"), Some("m1"));
    let refused = gateway.call(&Call::chat(key, &chat("m1", &"x".repeat(11 << 20)))).await.expect(413);
    assert_eq!(refused.code(), "request_too_large", "not Envoy's plain text");
    // Streams need neither routes nor upstream filters then.
    let stream = gateway.call(&gateway.streamed("replayed")).await.expect(200);
    assert!(stream.text().ends_with("data: [DONE]\n\n"), "{}", stream.text());
    let seen = gateway.stack.mocks.first.requests();
    assert!(seen.iter().all(|request| request.header("x-envoy-internal").is_none()));
}
