//! The catalog as configuration of Envoy, in files that Envoy watches: a new provider or a new filter goes live without a restart.
//!
//! | file | what |
//! |---|---|
//! | `cds.yaml` | two clusters a provider, for callouts and for streams (none for a provider with `cluster:`) |
//! | `rds.yaml` | the routes: streams to where the filter plans them, all else 404 |
//! | `ecds-upstream.yaml` | the same `.wasm` as the upstream filter of the stream clusters |
//! | `ecds.yaml` | the filter: its `.wasm` and its settings, the shared secret among them (mode 0600) |
//! | `lds.yaml` | the listener |
//! | `bootstrap.yaml` | what Envoy starts with: `envoy -c bootstrap.yaml` |
//!
//! [`istio`] gives the same to a mesh: the pieces of these files as patches of Istio's own configuration.
//!
//! [`envoy`] is a pure function of its arguments; [`install`] does all that `proxium render envoy` does, and is what a running control
//! plane calls when its catalog changes; it also keeps the clusters of calls that are still in flight (`retired.json` beside the files). `envoy/README.md` says why each value is what it is.

mod command;
mod envoy;
mod flags;
mod install;
mod istio;
mod options;
mod retire;

pub use command::{EnvoyArgs, RenderArgs, command};
pub use envoy::envoy;
pub use flags::{EnvoyFlags, SecretFlags};
pub use install::{install, wasm_by_hash, write};
pub use istio::{IstioArgs, istio};
pub use options::{HostPort, OnControlPlaneFailure, Options, OtherPaths, Streams};

/// A rendered file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name in the directory.
    pub path: String,
    /// Its content.
    pub text: String,
    /// Holds the shared secret: for its owner's eyes only.
    pub secret: bool,
}
