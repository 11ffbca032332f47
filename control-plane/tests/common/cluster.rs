//! A Redis Cluster of the tests' own: three masters on loopback that share the slots.

#![allow(dead_code, reason = "each test binary uses its part")]

use crate::redis::{Home, Redis, free_port};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The one that all tests of this binary share while any of them holds it.
pub fn shared() -> Home {
    static SHARED: Mutex<Weak<Vec<Arc<Redis>>>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let nodes = shared.upgrade().unwrap_or_else(|| {
        let nodes = Arc::new(nodes());
        *shared = Arc::downgrade(&nodes);
        nodes
    });
    home(nodes)
}

/// One of a test's own.
pub fn start() -> Home {
    home(Arc::new(nodes()))
}

fn home(nodes: Arc<Vec<Arc<Redis>>>) -> Home {
    Home { url: format!("redis-cluster://{}", nodes[0].address()), nodes }
}

/// New ones that know of each other; the first has the lowest slots.
fn nodes() -> Vec<Arc<Redis>> {
    let node = || loop {
        // The cluster's own port is 10000 above.
        let port = free_port();
        if port < 55_000 {
            return Arc::new(Redis::start_on(port, &["--save", "", "--cluster-enabled", "yes", "--cluster-node-timeout", "5000"]));
        }
    };
    let nodes: Vec<_> = (0..3).map(|_| node()).collect();
    let first = nodes[0].address().replace(':', " ");
    for (node, slots) in nodes.iter().zip(["0 5460", "5461 10922", "10923 16383"]) {
        node.tell(&format!("CLUSTER ADDSLOTSRANGE {slots}"));
        node.tell(&format!("CLUSTER MEET {first}"));
    }
    let until = Instant::now() + Duration::from_secs(30);
    for node in &nodes {
        let info = || node.tell("CLUSTER INFO");
        while !["cluster_state:ok", "cluster_known_nodes:3", "cluster_size:3"].iter().all(|wanted| info().contains(wanted)) {
            assert!(Instant::now() < until, "the cluster is not whole: {}", info());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    nodes
}
