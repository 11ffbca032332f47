//! The flags of a rendering, for `proxium render envoy` and `proxium serve`.

use super::{HostPort, OnControlPlaneFailure, Options, OtherPaths, Streams};
use std::path::{Path, PathBuf};

/// How the rendered Envoy is to be.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Envoy")]
pub struct EnvoyFlags {
    /// Where Envoy listens for clients.
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:10000")]
    pub envoy_listen: HostPort,
    /// Envoy's own admin port: loopback only, it can show the shared secret. None when left out.
    #[arg(long, value_name = "HOST:PORT")]
    pub envoy_admin: Option<HostPort>,
    /// The internal port of a control plane; several times for several.
    #[arg(long = "control-plane", value_name = "HOST:PORT", default_value = "127.0.0.1:10003")]
    pub control_planes: Vec<HostPort>,
    /// The filter; it is copied beside the rendered files under a name that follows its content.
    #[arg(long, value_name = "FILE", default_value = "proxium_filter.wasm")]
    pub wasm: PathBuf,
    /// The directory of the rendered files as Envoy sees it, where it is mounted elsewhere.
    #[arg(long, value_name = "DIR")]
    pub envoy_dir: Option<PathBuf>,
    /// What becomes of paths that are none of proxium's.
    #[arg(long, value_enum, default_value = "continue")]
    pub other_paths: OtherPaths,
    /// What becomes of calls while no control plane answers.
    #[arg(long, value_enum, default_value = "deny")]
    pub on_control_plane_failure: OnControlPlaneFailure,
    /// The path that streams take.
    #[arg(long, value_enum, default_value = "router")]
    pub streams: Streams,
    /// What each worker of Envoy may keep of answers, in MiB, so that a hot free hit asks nobody; 0: nothing.
    #[arg(long, value_name = "MIB", default_value = "32", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub l1_mib: u16,
    /// CA certificates that `https` providers are verified with, as Envoy sees them.
    #[arg(long, value_name = "FILE", default_value = "/etc/ssl/certs/ca-certificates.crt")]
    pub ca_bundle: PathBuf,
    /// Where Envoy's access log lines go; `off` for nowhere.
    #[arg(long, value_name = "FILE", default_value = "/dev/stdout")]
    pub access_log: PathBuf,
    /// Names this Envoy in its statistics.
    #[arg(long, value_name = "NAME", default_value = "proxium")]
    pub node_id: String,
}

impl EnvoyFlags {
    /// With the directory and the filter as Envoy sees them.
    #[must_use]
    pub fn options(&self, dir: PathBuf, wasm: PathBuf, internal_secret: String) -> Options {
        Options {
            dir,
            wasm,
            listen: self.envoy_listen.clone(),
            admin: self.envoy_admin.clone(),
            control_planes: self.control_planes.clone(),
            internal_secret,
            other_paths: self.other_paths,
            on_control_plane_failure: self.on_control_plane_failure,
            streams: self.streams,
            l1_mib: self.l1_mib,
            ca_bundle: self.ca_bundle.clone(),
            access_log: Some(self.access_log.clone()).filter(|path| path != Path::new("off")),
            node_id: self.node_id.clone(),
        }
    }
}

/// The secret that filters and control planes share.
#[derive(Clone, clap::Args)]
pub struct SecretFlags {
    /// The secret that filters and control planes share.
    #[arg(long, value_name = "SECRET", env = "PROXIUM_INTERNAL_SECRET", hide_env_values = true)]
    pub internal_secret: Option<String>,
    /// A file that holds it alone; it goes before the variable.
    #[arg(long, value_name = "FILE")]
    pub internal_secret_file: Option<PathBuf>,
}

impl SecretFlags {
    /// The secret.
    ///
    /// # Errors
    /// There is none, or none that a header can carry; the text says what to set.
    pub fn read(&self) -> Result<String, String> {
        let secret = match (&self.internal_secret_file, &self.internal_secret) {
            (Some(path), _) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("cannot read the internal secret from {}: {error}", path.display()))?;
                text.trim().to_owned()
            }
            (None, Some(secret)) => secret.clone(),
            (None, None) => return Err("set PROXIUM_INTERNAL_SECRET, or name a file with --internal-secret-file".to_owned()),
        };
        if secret.is_empty() || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the internal secret must be visible ASCII without spaces, like the output of `openssl rand -hex 32`".to_owned());
        }
        Ok(secret)
    }
}
