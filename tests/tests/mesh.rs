//! The filter in a sidecar, as Istio would build it: foreign filters around it, clusters that are not ours.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use proxium_e2e::{BOUND, Call, Dir, INTERNAL_SECRET, Key, Port, Process, Response, Stack, binaries, chat, eventually};
use serde_json::json;

/// A sidecar beside a stack whose catalog names the sidecar's clusters.
struct Sidecar {
    stack: Stack,
    process: Process,
    inbound: Port,
    outbound: Port,
    _admin: Port,
    key: Key,
    client: reqwest::Client,
    _dir: Dir,
}

/// Two providers that only exist as clusters of the mesh: no endpoint can be reached.
fn catalog(_: &proxium_e2e::Mocks) -> String {
    "
providers:
  openai: {dialect: openai, endpoint: https://api.openai.com/v1, cluster: outbound|443||api.openai.com, credential: {env: FIRST_CREDENTIAL}}
  other: {dialect: openai, endpoint: https://api.other.example/v1, cluster: outbound|443||api.other.example, credential: {env: SECOND_CREDENTIAL}}
models:
  m1: {provider: openai, upstream: gpt, price_usd_per_mtok: {input: 1, output: 10}, max_output_tokens: 1000}
  m2: {provider: other, price_usd_per_mtok: {input: 2, output: 20}, max_output_tokens: 1000}
chains: {fast: [m1, m2]}
"
    .into()
}

impl Sidecar {
    /// `buffer`: bytes that a connection may hold back.
    async fn start(buffer: usize) -> Self {
        let stack = Stack::builder().envoys(0).catalog(catalog).start().await;
        let dir = Dir::fresh();
        let (inbound, outbound, admin) = (Port::take(), Port::take(), Port::take());
        let (first, second, third) = (stack.mocks.first.addr(), stack.mocks.second.addr(), stack.mocks.third.addr());
        let mut yaml = include_str!("sidecar.yaml").to_owned();
        for (name, value) in [
            ("ADMIN", admin.number().to_string()),
            ("INBOUND", inbound.number().to_string()),
            ("OUTBOUND", outbound.number().to_string()),
            ("BUFFER", buffer.to_string()),
            ("OPENAI", first.port().to_string()),
            ("OTHER", second.port().to_string()),
            ("ORDERS", third.port().to_string()),
            ("APP", third.port().to_string()),
            ("CONTROL_PLANE", stack.control_planes[0].internal().number().to_string()),
            ("WASM", binaries::wasm().display().to_string()),
            ("SECRET", INTERNAL_SECRET.into()),
        ] {
            yaml = yaml.replace(&format!("%{name}%"), &value);
        }
        let bootstrap = dir.path().join("sidecar.yaml");
        std::fs::write(&bootstrap, yaml).expect("the bootstrap");
        let args = ["-c", bootstrap.to_str().unwrap(), "--concurrency", "2", "--disable-hot-restart", "--log-level", "warning"];
        let mut process = Process::new("sidecar", &binaries::envoy(), args, &[], dir.path());
        process.start();
        let key = stack.key_with(json!({}), json!({"ceilings": {"calls_per_hour": 100}})).await;
        let client = reqwest::Client::builder().pool_max_idle_per_host(0).no_proxy().build().unwrap();
        let mut sidecar = Self { stack, process, inbound, outbound, _admin: admin, key, client, _dir: dir };
        sidecar.ready().await;
        sidecar
    }

    async fn ready(&mut self) {
        let probe = Call::chat(&self.key, &chat("no-such-model", "ready?"));
        eventually("both listeners know the catalog", BOUND, || {
            self.process.check().unwrap_or_else(|why| panic!("{why}"));
            async {
                for _ in 0..8 {
                    for port in [&self.inbound, &self.outbound] {
                        let answer =
                            probe.send(&self.client, &format!("http://{}", port.addr())).await.map_err(|error| error.to_string())?;
                        if answer.status != 404 {
                            return Err(format!("{} {}", answer.status, answer.text()));
                        }
                    }
                }
                Ok(())
            }
        })
        .await;
    }

    async fn call(&self, port: &Port, call: &Call) -> Response {
        call.send(&self.client, &format!("http://{}", port.addr())).await.expect("an answer of the sidecar")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecars_filter_serves_calls_through_the_clusters_of_the_mesh() {
    let sidecar = Sidecar::start(1 << 20).await;
    let (stack, key) = (&sidecar.stack, &sidecar.key);
    for (number, port) in [&sidecar.outbound, &sidecar.inbound].into_iter().enumerate() {
        let body = chat("fast", &format!("hello {number}"));
        let first = sidecar.call(port, &Call::chat(key, &body)).await.expect(200);
        assert_eq!(first.json()["choices"][0]["message"]["content"], format!("You said: hello {number}"));
        assert_eq!((first.header("x-proxium-model"), first.header("x-proxium-cache")), (Some("m1"), Some("miss")));
        assert!(first.header("x-ratelimit-remaining-requests").is_some());
        stack.closed_books(key, 2 * number + 1).await;
        let second = sidecar.call(port, &Call::chat(key, &body)).await.expect(200);
        assert_eq!((second.header("x-proxium-cache"), second.header("x-proxium-cost-usd")), (Some("hit"), Some("0")));
        eventually("the hit is in the ledger", BOUND, || async { stack.ledger(&key.project).await.len() == 2 * number + 2 }).await;
    }
    let seen = stack.mocks.first.requests();
    assert_eq!(seen.len(), 2);
    for request in &seen {
        assert_eq!((request.path.as_str(), request.model.as_str()), ("/v1/chat/completions", "gpt"));
        assert_eq!(request.header("host"), Some("api.openai.com"));
        assert_eq!(request.header("authorization"), Some("Bearer platform-credential-of-first"));
    }

    // Failover between two clusters of the mesh.
    stack.mocks.first.next("gpt", [proxium::mock_provider::Behaviour::status(503)]);
    let other = sidecar.call(&sidecar.outbound, &Call::chat(key, &chat("fast", "failover"))).await.expect(200);
    assert_eq!((other.header("x-proxium-model"), other.header("x-proxium-attempts")), (Some("m2"), Some("2")));

    // An answer that a foreign filter compresses is still ours underneath.
    let packed = Call::chat(key, &chat("m1", "compressed, please, since this is long enough")).header("accept-encoding", "gzip");
    let packed = sidecar.call(&sidecar.outbound, &packed).await.expect(200);
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert_eq!(packed.header("x-proxium-model"), Some("m1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sidecars_other_routes_and_filters_are_untouched() {
    let sidecar = Sidecar::start(1 << 20).await;
    let key = &sidecar.key;
    let orders = |path: &str| Call::new("GET", path).header("host", "orders").header("authorization", "Bearer of-the-application");
    let answer = sidecar.call(&sidecar.outbound, &orders("/shop/models?page=2")).await.expect(200);
    assert_eq!(answer.json()["object"], "list");
    assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("x-proxium")), "{:#?}", answer.headers);
    let seen = sidecar.stack.mocks.third.requests();
    assert_eq!((seen[0].path.as_str(), seen[0].header("authorization")), ("/shop/models?page=2", Some("Bearer of-the-application")));
    // A body that is not ours passes as it comes.
    let upload = Call::new("POST", "/shop/chat/completions").header("host", "orders").body(vec![b'x'; 300_000]);
    let _ = sidecar.call(&sidecar.inbound, &upload).await.expect(200);
    assert_eq!(sidecar.stack.mocks.third.requests()[1].body.len(), 300_000);

    // Filters of others before and after ours still have their say.
    for (port, path) in
        [(&sidecar.outbound, "/shop/models"), (&sidecar.outbound, "/v1/chat/completions"), (&sidecar.inbound, "/shop/models")]
    {
        let _ = sidecar.call(port, &orders(path).header("x-blocked", "yes")).await.expect(403);
    }
    let _ = sidecar.call(&sidecar.outbound, &orders("/shop/models").header("x-envoy-fault-abort-request", "418")).await.expect(418);

    // And ours is not passed by: no key, no call, whatever the host says.
    let mut call = Call::new("POST", "/v1/chat/completions").header("host", "orders").json(&chat("m1", "hello"));
    let refused = sidecar.call(&sidecar.outbound, &call).await.expect(401);
    assert_eq!(refused.code(), "missing_key");
    call = call.header("authorization", &format!("Bearer {}", key.text));
    let _ = sidecar.call(&sidecar.outbound, &call).await.expect(200);
    assert_eq!(sidecar.stack.mocks.third.calls(proxium::mock_provider::ANY), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sidecars_connection_can_hold_bounds_the_body_of_a_call() {
    let sidecar = Sidecar::start(1 << 20).await;
    let fits = sidecar.call(&sidecar.outbound, &Call::chat(&sidecar.key, &chat("m1", &"x".repeat(1_000_000)))).await.expect(200);
    assert_eq!(fits.header("x-proxium-model"), Some("m1"));
    // By Envoy itself, before the filter sees it whole: a mesh that wants larger bodies raises the listener's buffer.
    let _ = sidecar.call(&sidecar.outbound, &Call::chat(&sidecar.key, &chat("m1", &"x".repeat(1_100_000)))).await.expect(413);
    // Nothing is held for it, and the filter goes on.
    sidecar.stack.closed_books(&sidecar.key, 1).await;
    let _ = sidecar.call(&sidecar.outbound, &Call::chat(&sidecar.key, &chat("m1", "small"))).await.expect(200);
}
