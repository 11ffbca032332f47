//! The plugin configuration: what `proxium render` writes into Envoy's filter configuration.

use serde::Deserialize;

/// What to do with a path that is not proxium's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OtherPaths {
    /// Leave it to the rest of Envoy, untouched.
    #[default]
    Continue,
    /// Answer 404.
    NotFound,
}

/// What to do when the control plane cannot answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Answer 503: no call without its limits checked.
    #[default]
    Deny,
    /// Serve known keys, unreserved, and settle later.
    Allow,
}

/// The path a stream takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Streams {
    /// Replayed from a whole answer.
    #[default]
    Callout,
    /// Through Envoy's router, as the provider sends it; needs the routes and clusters that `proxium render` makes with it.
    Router,
}

/// The plugin configuration; unknown members are errors, so that a misspelt one is not silently ignored.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Envoy's cluster for the control plane; HTTP/2.
    pub control_plane_cluster: String,
    /// The secret that filters and control planes share.
    pub internal_secret: String,
    /// What to do with other paths.
    #[serde(default)]
    pub other_paths: OtherPaths,
    /// What to do without a control plane.
    #[serde(default)]
    pub on_control_plane_failure: OnFailure,
    /// The path a stream takes.
    #[serde(default)]
    pub streams: Streams,
    /// The most that a worker keeps of answers, in bytes; 0: none.
    #[serde(default = "default_l1_bytes")]
    pub l1_bytes: usize,
}

const fn default_l1_bytes() -> usize {
    32 << 20
}

impl Config {
    /// Reads the configuration.
    ///
    /// # Errors
    /// What is wrong, for Envoy's log: it refuses the update and keeps the old one.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        let config: Self = crate::json::parse(json).map_err(|error| format!("plugin configuration: {error}"))?;
        if config.control_plane_cluster.is_empty() || config.internal_secret.is_empty() {
            return Err("plugin configuration: control_plane_cluster and internal_secret must not be empty".into());
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn the_defaults_deny_and_continue() {
        let config = Config::read(br#"{"control_plane_cluster":"c","internal_secret":"s"}"#).unwrap();
        assert_eq!((config.other_paths, config.on_control_plane_failure), (OtherPaths::Continue, OnFailure::Deny));
        assert_eq!(config.l1_bytes, 32 << 20);
    }

    #[test]
    fn a_misspelt_member_is_refused() {
        assert!(Config::read(br#"{"control_plane_cluster":"c","internal_secret":"s","other_path":"not_found"}"#).is_err());
        assert!(Config::read(br#"{"control_plane_cluster":"","internal_secret":"s"}"#).is_err());
    }
}
