//! What a VM leaves to its successors when it ends: settlements that are not acknowledged yet.
//!
//! Envoy's shared memory outlives a VM as long as the `vm_id` stays. Encoded messages are put end to end there: protobuf reads them as one.

use crate::host;
use prost::Message;
use proxium_wire::{SettleRequest, Settlement};

/// Adds to what is left for the VMs of this control plane.
pub fn leave(cluster: &str, request: &SettleRequest) {
    if request.settlements.is_empty() {
        return;
    }
    let count = request.settlements.len();
    log::info!("{count} settlements that are not acknowledged yet go to the next VM");
    let more = request.encode_to_vec();
    host::update_shared(&key(cluster), |left| ((), Some([left.unwrap_or_default(), &more].concat())));
}

/// Takes all that is left; one VM gets it.
pub fn take(cluster: &str) -> Vec<Settlement> {
    let left = host::update_shared(&key(cluster), |left| match left {
        Some(left) if !left.is_empty() => (left.to_vec(), Some(Vec::new())),
        _ => (Vec::new(), None),
    });
    SettleRequest::decode(left.as_slice()).unwrap_or_default().settlements
}

fn key(cluster: &str) -> String {
    format!("outbox:{cluster}")
}
