//! The processes: a plain Envoy, a whole proxium, the provider of both.

use super::{LOAD_CORE, mock};
use proxium_e2e::{BOUND, Dir, Key, Port, Process, Stack, binaries, eventually};
use serde_json::json;
use std::net::SocketAddr;

/// All of them, until this is dropped.
pub struct Servers {
    /// One Envoy of one worker, one control plane, one Redis.
    pub stack: Stack,
    /// Ceilings on, far away; nothing is cached.
    pub metered: Key,
    /// The same, and answers are cached.
    pub cached: Key,
    /// Its one call an hour is made.
    pub refused: Key,
    plain: Process,
    plain_port: Port,
    mock: Process,
    _mock_port: Port,
    _dir: Dir,
}

/// What `shared/bench/conf/envoy.yaml` is.
fn plain_yaml(listen: SocketAddr, provider: SocketAddr) -> String {
    let address = |addr: SocketAddr| format!("{{socket_address: {{address: {}, port_value: {}}}}}", addr.ip(), addr.port());
    format!(
        r#"static_resources:
  listeners:
  - name: in
    address: {}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config:
            virtual_hosts: [{{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, route: {{cluster: mock, timeout: 0s}}}}]}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: mock
    type: STATIC
    connect_timeout: 1s
    circuit_breakers: {{thresholds: [{{max_connections: 4096, max_pending_requests: 4096, max_requests: 4096}}]}}
    load_assignment: {{cluster_name: mock, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {}}}}}]}}]}}
"#,
        address(listen),
        address(provider)
    )
}

fn catalog(provider: SocketAddr) -> String {
    format!(
        "providers:\n  mock: {{dialect: openai, endpoint: \"http://{provider}/v1\"}}\n  held: {{dialect: openai, endpoint: \"http://{provider}{}\"}}\n\
         models:\n  gpt-4o-mini: {{provider: mock, price_usd_per_mtok: {{input: 0.15, cached_input: 0.075, output: 0.60}}}}\n  \
         held: {{provider: held, price_usd_per_mtok: {{input: 0.15, output: 0.60}}}}\n",
        mock::HELD
    )
}

impl Servers {
    /// Starts all.
    pub async fn start() -> Self {
        let dir = Dir::fresh();
        let (mock_port, plain_port) = (Port::take(), Port::take());
        let this = std::env::current_exe().expect("this program");
        let mut mock = Process::new("mock", &this, ["mock".to_owned(), mock_port.number().to_string()], &[], dir.path());
        mock.start();
        let yaml = dir.path().join("plain.yaml");
        std::fs::write(&yaml, plain_yaml(plain_port.addr(), mock_port.addr())).expect("plain.yaml is written");
        let args = ["-c", &yaml.display().to_string(), "--concurrency", "1", "--disable-hot-restart", "-l", "error"].map(str::to_owned);
        let mut plain = Process::new("plain-envoy", &binaries::envoy(), args, &[], dir.path());
        plain.start();
        let provider = mock_port.addr();
        let stack = Stack::builder().catalog(move |_| catalog(provider)).concurrency(1).render("--access-log", "off").start().await;
        for addr in [provider, plain_port.addr()] {
            eventually("a port is open", BOUND, || tokio::net::TcpStream::connect(addr)).await;
        }
        let ceilings = json!({"ceilings": {"calls_per_hour": 1_000_000_000, "requests_per_minute": 1_000_000_000, "tokens_per_minute": 1_000_000_000_000_u64}});
        let metered = stack.key_with(json!({"cache": {"exact": false}}), ceilings.clone()).await;
        let cached = stack.key_with(json!({"cache": {"exact": true, "ttl_s": 3600}}), ceilings).await;
        let refused = stack.key_with(json!({"cache": {"exact": false}}), json!({"ceilings": {"calls_per_hour": 1}})).await;
        Self { stack, metered, cached, refused, plain, plain_port, mock, _mock_port: mock_port, _dir: dir }
    }

    /// Where clients call, and the processes whose costs these are.
    pub fn plain(&self) -> (SocketAddr, Vec<u32>) {
        (self.plain_port.addr(), vec![self.plain.id().expect("it runs")])
    }

    /// The same of proxium: Envoy, control plane, Redis.
    pub fn proxium(&self) -> (SocketAddr, Vec<u32>) {
        let Stack { envoys, control_planes, redis, .. } = &self.stack;
        let processes = [envoys[0].process(), control_planes[0].process(), redis.process()];
        (envoys[0].listen().addr(), processes.iter().map(|process| process.id().expect("it runs")).collect())
    }

    /// Every process but the load.
    pub fn everything(&self) -> Vec<u32> {
        [self.plain().1, self.proxium().1, self.mock.id().into_iter().collect()].concat()
    }

    /// Where Redis is.
    pub fn redis(&self) -> SocketAddr {
        (std::net::Ipv4Addr::LOCALHOST, self.stack.redis.port()).into()
    }
}

const _: () = assert!(LOAD_CORE != super::GATEWAY_CORE, "each has a core of its own");
