//! A Redis Cluster of the tests' own: three masters on loopback that share the slots.

#![allow(dead_code, reason = "each test binary uses its part")]

use crate::redis::{Home, Redis, free_port};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The last slot of the first master.
pub const LAST_OF_THE_FIRST: u16 = 5_460;

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

/// A replica of the first master, in step with it.
pub fn replica_of_the_first(home: &Home) -> Arc<Redis> {
    let (replica, first) = (node(), &home.nodes[0]);
    replica.tell(&format!("CLUSTER MEET {}", first.address().replace(':', " ")));
    eventually(&replica, "CLUSTER INFO", &["cluster_state:ok", "cluster_known_nodes:4"]);
    replica.tell(&format!("CLUSTER REPLICATE {}", first.tell("CLUSTER MYID").trim()));
    eventually(&replica, "INFO replication", &["role:slave", "master_link_status:up"]);
    for node in home.nodes.iter() {
        eventually(node, "CLUSTER NODES", &[" slave "]);
        node.tell("CONFIG SET cluster-node-timeout 1500");
    }
    replica
}

fn node() -> Arc<Redis> {
    loop {
        // The cluster's own port is 10000 above.
        let port = free_port();
        if port < 55_000 {
            let settings = ["--save", "", "--repl-diskless-sync-delay", "0", "--cluster-enabled", "yes", "--cluster-node-timeout", "5000"];
            return Arc::new(Redis::start_on(port, &settings));
        }
    }
}

/// Until a node answers a command with all of these.
fn eventually(node: &Redis, command: &str, wanted: &[&str]) {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let said = node.tell(command);
        if wanted.iter().all(|wanted| said.contains(wanted)) {
            return;
        }
        assert!(Instant::now() < until, "{command} of the cluster: {said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// New ones that know of each other; the first has the lowest slots.
fn nodes() -> Vec<Arc<Redis>> {
    let nodes: Vec<_> = (0..3).map(|_| node()).collect();
    let first = nodes[0].address().replace(':', " ");
    for (node, slots) in nodes.iter().zip(["0 5460", "5461 10922", "10923 16383"]) {
        node.tell(&format!("CLUSTER ADDSLOTSRANGE {slots}"));
        node.tell(&format!("CLUSTER MEET {first}"));
    }
    for node in &nodes {
        eventually(node, "CLUSTER INFO", &["cluster_state:ok", "cluster_known_nodes:3", "cluster_size:3"]);
    }
    nodes
}
