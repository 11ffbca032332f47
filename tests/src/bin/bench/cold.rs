//! A cold start of the filter: Envoy is given the same code under a new name, and has to compile and configure it.

use super::servers::Servers;
use proxium_e2e::binaries;
use std::time::{Duration, Instant};

/// The listener's filter among what Envoy has by discovery.
const RELOADS: &str = "extension_config_discovery.http_filter.proxium.config_reload";

/// Milliseconds from a new file of Envoy's filter configuration until Envoy serves by it, one of each round.
pub async fn measure(servers: &Servers, rounds: usize) -> Vec<f64> {
    let mut all = Vec::new();
    for round in 0..rounds {
        all.push(start(servers, u8::try_from(round).expect("few rounds")).await);
    }
    all
}

async fn start(servers: &Servers, round: u8) -> f64 {
    let envoy = &servers.stack.envoys[0];
    let ecds = envoy.files().join("ecds.yaml");
    let text = std::fs::read_to_string(&ecds).expect("the filter's configuration");
    // A custom section more, so that V8 cannot know the code.
    let mut code = std::fs::read(binaries::wasm()).expect("the filter");
    code.extend([0, 3, 1, b'c', round]);
    let wasm = envoy.files().join(format!("cold-{round}.wasm"));
    std::fs::write(&wasm, code).expect("the filter's copy");
    let (before, rest) = text.split_once("filename: \"").expect("the filter's name");
    let (_, after) = rest.split_once('"').expect("its end");
    let fresh = ecds.with_extension("new");
    std::fs::write(&fresh, format!("{before}filename: \"{}\"{after}", wasm.display())).expect("the new configuration");
    let reloads = envoy.stat(RELOADS).await;
    let began = Instant::now();
    std::fs::rename(&fresh, &ecds).expect("it is replaced");
    while envoy.stat(RELOADS).await == reloads {
        assert!(began.elapsed() < proxium_e2e::BOUND, "Envoy took no new filter: {}", envoy.process().log());
        // Envoy has the same core.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    began.elapsed().as_secs_f64() * 1e3
}
