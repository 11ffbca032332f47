//! Calls to the control plane.

use crate::config::Config;
use crate::message::{Callout, Headers, Reply};
use prost::Message;
use proxium_wire::SECRET_HEADER;

/// The longest the control plane may take; Redis answers it within two seconds or not at all.
pub const TIMEOUT_MS: u64 = 3_000;

/// A call of one of [`proxium_wire::path`]'s paths.
#[must_use]
pub fn callout(config: &Config, path: &str, traceparent: Option<&str>, message: &impl Message, timeout_ms: u64) -> Callout {
    let mut headers = Headers::new();
    headers.add(":method", "POST");
    headers.add(":path", path);
    headers.add(":authority", "proxium");
    headers.add("content-type", "application/x-protobuf");
    headers.add(SECRET_HEADER, config.internal_secret.as_str());
    if let Some(traceparent) = traceparent {
        headers.add("traceparent", traceparent);
    }
    Callout { cluster: config.control_plane_cluster.clone(), headers, body: message.encode_to_vec(), timeout_ms, groups: false }
}

/// The message in a reply; `None` for anything but a readable 200.
#[must_use]
pub fn read<M: Message + Default>(reply: &Reply) -> Option<M> {
    match reply {
        Reply::Answer(answer) if answer.status == 200 => M::decode(answer.body.as_slice()).ok(),
        _ => None,
    }
}
