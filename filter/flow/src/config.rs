//! The plugin configuration: what `proxium render` writes into Envoy's filter configuration.

use serde_json::{Map, Value};

/// What to do with a path that is not proxium's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtherPaths {
    /// Leave it to the rest of Envoy, untouched.
    #[default]
    Continue,
    /// Answer 404.
    NotFound,
}

/// What to do when the control plane cannot answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// Answer 503: no call without its limits checked.
    #[default]
    Deny,
    /// Serve known keys, unreserved, and settle later.
    Allow,
}

/// The path a stream takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streams {
    /// Replayed from a whole answer.
    #[default]
    Callout,
    /// Through Envoy's router, as the provider sends it; needs the routes and clusters that `proxium render` makes with it.
    Router,
}

/// The plugin configuration; unknown members are errors, so that a misspelt one is not silently ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Envoy's cluster for the control plane; HTTP/2.
    pub control_plane_cluster: String,
    /// The secret that filters and control planes share.
    pub internal_secret: String,
    /// What to do with other paths.
    pub other_paths: OtherPaths,
    /// What to do without a control plane.
    pub on_control_plane_failure: OnFailure,
    /// The path a stream takes.
    pub streams: Streams,
    /// The most that a worker keeps of answers, in bytes; 0: none.
    pub l1_bytes: usize,
}

const DEFAULT_L1_BYTES: usize = 32 << 20;

impl Config {
    /// Reads the configuration.
    ///
    /// # Errors
    /// What is wrong, for Envoy's log: it refuses the update and keeps the old one.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        let told: Map<String, Value> = crate::json::parse(json).map_err(|error| format!("plugin configuration: {error}"))?;
        let mut config = Self {
            control_plane_cluster: String::new(),
            internal_secret: String::new(),
            other_paths: OtherPaths::default(),
            on_control_plane_failure: OnFailure::default(),
            streams: Streams::default(),
            l1_bytes: DEFAULT_L1_BYTES,
        };
        for (name, value) in &told {
            let wrong = || format!("plugin configuration: `{name}` is of another type");
            match (name.as_str(), value.as_str()) {
                ("control_plane_cluster", Some(cluster)) => cluster.clone_into(&mut config.control_plane_cluster),
                ("internal_secret", Some(secret)) => secret.clone_into(&mut config.internal_secret),
                ("other_paths", Some("continue")) => config.other_paths = OtherPaths::Continue,
                ("other_paths", Some("not_found")) => config.other_paths = OtherPaths::NotFound,
                ("on_control_plane_failure", Some("deny")) => config.on_control_plane_failure = OnFailure::Deny,
                ("on_control_plane_failure", Some("allow")) => config.on_control_plane_failure = OnFailure::Allow,
                ("streams", Some("callout")) => config.streams = Streams::Callout,
                ("streams", Some("router")) => config.streams = Streams::Router,
                ("l1_bytes", None) => {
                    config.l1_bytes = value.as_u64().and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(wrong)?;
                }
                ("other_paths" | "on_control_plane_failure" | "streams", Some(word)) => {
                    return Err(format!("plugin configuration: unknown variant `{word}` of `{name}`"));
                }
                ("control_plane_cluster" | "internal_secret" | "other_paths" | "on_control_plane_failure" | "streams" | "l1_bytes", _) => {
                    return Err(wrong());
                }
                _ => return Err(format!("plugin configuration: unknown field `{name}`")),
            }
        }
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
    fn every_member_is_read_and_a_wrong_value_refused() {
        let read = |more: &str| Config::read(format!(r#"{{"control_plane_cluster":"c","internal_secret":"s"{more}}}"#).as_bytes());
        let all = read(r#","other_paths":"not_found","on_control_plane_failure":"allow","streams":"router","l1_bytes":0"#).unwrap();
        assert_eq!((all.other_paths, all.on_control_plane_failure), (OtherPaths::NotFound, OnFailure::Allow));
        assert_eq!((all.streams, all.l1_bytes), (Streams::Router, 0));
        let said = r#","other_paths":"continue","on_control_plane_failure":"deny","streams":"callout","l1_bytes":33554432"#;
        assert_eq!(read(said), read(""));
        for (wrong, told) in [
            (r#","streams":"Router""#, "unknown variant `Router` of `streams`"),
            (r#","streams":null"#, "`streams` is of another type"),
            (r#","l1_bytes":-1"#, "`l1_bytes` is of another type"),
            (r#","l1_bytes":"1""#, "`l1_bytes` is of another type"),
            (r#","internal_secret":["s"]"#, "`internal_secret` is of another type"),
            (r#","other_path":"continue""#, "unknown field `other_path`"),
        ] {
            assert_eq!(read(wrong), Err(format!("plugin configuration: {told}")));
        }
    }

    #[test]
    fn a_misspelt_member_is_refused() {
        assert!(Config::read(br#"{"control_plane_cluster":"c","internal_secret":"s","other_path":"not_found"}"#).is_err());
        assert!(Config::read(br#"{"control_plane_cluster":"","internal_secret":"s"}"#).is_err());
    }
}
