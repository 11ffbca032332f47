//! Cold starts of the filter. V8 compiles a module once in a process, whatever number of VMs and configurations use it: code that Envoy has
//! not seen costs its compilation, and a VM of code that it knows (another worker, another configuration, one that trapped) only itself.

use super::servers::Servers;
use proxium_e2e::binaries;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The listener's filter among what Envoy has by discovery.
const RELOADS: &str = "extension_config_discovery.http_filter.proxium.config_reload";

/// Milliseconds from a new file of Envoy's filter configuration until Envoy serves by it, one of each round.
#[derive(Default, Serialize, Deserialize)]
pub struct Cold {
    /// With code that this process never ran: V8 compiles all of it first.
    pub new_code_ms: Vec<f64>,
    /// With VMs that this process never had, of that same code.
    pub new_vm_ms: Vec<f64>,
}

/// Starts the filter anew, so many times in each way.
pub async fn measure(servers: &Servers, rounds: usize) -> Cold {
    let files = servers.stack.envoys[0].files();
    let mut cold = Cold::default();
    for round in 0..rounds {
        // A custom section more, so that V8 cannot know the code.
        let mut code = std::fs::read(binaries::wasm()).expect("the filter");
        code.extend([0, 3, 1, b'c', u8::try_from(round).expect("few rounds")]);
        let wasm = files.join(format!("cold-{round}.wasm"));
        std::fs::write(&wasm, code).expect("the filter's copy");
        cold.new_code_ms.push(reload(servers, "filename", &wasm.display().to_string()).await);
        cold.new_vm_ms.push(reload(servers, "vm_id", &format!("cold-{round}")).await);
    }
    cold
}

/// Gives a member of the filter's configuration another value, and waits until Envoy serves by it.
async fn reload(servers: &Servers, member: &str, value: &str) -> f64 {
    let envoy = &servers.stack.envoys[0];
    let ecds = envoy.files().join("ecds.yaml");
    let text = std::fs::read_to_string(&ecds).expect("the filter's configuration");
    let (before, rest) = text.split_once(&format!("{member}: ")).expect("the member");
    let after = &rest[rest.find(['}', '\n']).expect("its end")..];
    let fresh = ecds.with_extension("new");
    std::fs::write(&fresh, format!("{before}{member}: \"{value}\"{after}")).expect("the new configuration");
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
