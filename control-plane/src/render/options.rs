//! What a rendering needs beside the catalog.

use crate::catalog::split_port;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Settings of the rendered Envoy.
#[derive(Clone)]
pub struct Options {
    /// The directory of the files as Envoy sees it; a relative one starts where Envoy is started.
    pub dir: PathBuf,
    /// The filter as Envoy sees it. New code needs a new name: see [`super::wasm_by_hash`].
    pub wasm: PathBuf,
    /// Where clients connect.
    pub listen: HostPort,
    /// Envoy's own admin port; it can show the shared secret and stop Envoy, so loopback only.
    pub admin: Option<HostPort>,
    /// The internal ports of the control planes.
    pub control_planes: Vec<HostPort>,
    /// What filters and control planes share.
    pub internal_secret: String,
    /// What becomes of paths that are none of proxium's.
    pub other_paths: OtherPaths,
    /// What becomes of calls while no control plane answers.
    pub on_control_plane_failure: OnControlPlaneFailure,
    /// The path that streams take.
    pub streams: Streams,
    /// The most that each worker keeps of answers, in MiB; 0: none.
    pub l1_mib: u16,
    /// The system's CA certificates as Envoy sees them, for `https` providers.
    pub ca_bundle: PathBuf,
    /// Where access log lines go; `None`: nowhere.
    pub access_log: Option<PathBuf>,
    /// Names this Envoy, in its own statistics and traces.
    pub node_id: String,
}

/// Paths that are none of proxium's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum OtherPaths {
    /// Left to the routes, as in a sidecar; the rendered gateway's only route says 404.
    Continue,
    /// Refused by the filter with 404.
    NotFound,
}

/// Calls while no control plane answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum OnControlPlaneFailure {
    /// 503.
    Deny,
    /// Served for keys the filter has seen, settled later.
    Allow,
}

/// The path that streams take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Streams {
    /// Through Envoy's router, as the provider sends them.
    Router,
    /// Replayed from a whole answer: for an Envoy before 1.39, or with clusters from elsewhere.
    Callout,
}

/// A host (name or address) and a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostPort {
    /// A DNS name or an IP address, IPv6 without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        split_port(text)
            .and_then(|(host, port)| Some(Self { host: host.to_owned(), port: port?.parse().ok().filter(|port| *port > 0)? }))
            .ok_or_else(|| "must be host:port, like 127.0.0.1:10000".to_owned())
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') { write!(f, "[{}]:{}", self.host, self.port) } else { write!(f, "{}:{}", self.host, self.port) }
    }
}
