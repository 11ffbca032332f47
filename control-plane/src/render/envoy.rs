//! Catalog and options to the text of Envoy's files.

use super::{File, HostPort, Options};
use crate::catalog::{BaseUrl, Catalog, Provider, split_port};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value};
use proxium_wire::metric;
use serde::Serialize;
use serde_json::json;
use std::net::IpAddr;
use std::path::Path;

/// In the order in which they are to be written: whatever is named must be there before its name.
const TEMPLATES: [(&str, &str); 6] = [
    ("ecds-upstream.yaml", include_str!("templates/ecds-upstream.yaml")),
    ("cds.yaml", include_str!("templates/cds.yaml")),
    ("rds.yaml", include_str!("templates/rds.yaml")),
    ("ecds.yaml", include_str!("templates/ecds.yaml")),
    ("lds.yaml", include_str!("templates/lds.yaml")),
    ("bootstrap.yaml", include_str!("templates/bootstrap.yaml")),
];

/// What the filter's body limit needs above the largest body, so that the filter and not Envoy answers 413.
const BODY_SLACK_BYTES: u64 = 2 << 20;

/// How much longer than the latest deadline a stream may be silent before Envoy ends it: the filter is to be first.
const IDLE_SLACK_MS: u64 = 10_000;

/// A cluster of `cds.yaml`.
#[derive(PartialEq, Serialize)]
pub(super) struct Cluster {
    pub name: String,
    /// Statistics keep one name while the provider moves.
    stat_name: String,
    r#type: &'static str,
    pub endpoint: HostPort,
    pub tls: Option<Tls>,
    /// It has the upstream filter, for streams through the router.
    stream: bool,
}

#[derive(PartialEq, Serialize)]
pub(super) struct Tls {
    /// Server name of the handshake; none for an address.
    pub sni: Option<String>,
    san_type: &'static str,
    pub san: String,
}

/// What the filter reads when it starts.
#[derive(Serialize)]
struct PluginConfig<'a> {
    control_plane_cluster: &'a str,
    internal_secret: &'a str,
    other_paths: super::OtherPaths,
    on_control_plane_failure: super::OnControlPlaneFailure,
    streams: super::Streams,
    l1_bytes: u64,
}

/// The paths that the filter lets on to a route, once it knows where to.
const STREAM_PATHS: &[&str] = &["/v1/chat/completions", "/v1/messages", "/v1/responses"];

/// The filter's plan has so many entries: the cluster of each attempt is a slot of filter state.
const SLOTS: [u8; 4] = [0, 1, 2, 3];

/// Where a slot leads that names no cluster: nowhere, so that a plan that is older than the routes ends in "no healthy upstream", with
/// which the filter can go on by callouts.
pub(super) const NO_CLUSTER: &str = "proxium-no-cluster";

const CONTROL_PLANE_CLUSTER: &str = "proxium-control-plane";

/// Renders all files: the same arguments give the same bytes.
///
/// # Errors
/// The catalog is for a mesh; or a template is broken, which the tests exclude.
pub fn envoy(catalog: &Catalog, options: &Options) -> Result<Vec<File>, String> {
    if catalog.providers.values().any(|provider| provider.in_mesh) {
        return Err("this catalog says `mesh: istio`, whose Envoys have their clusters from Istio: use `proxium render istio`".to_owned());
    }
    files(catalog, options, CONTROL_PLANE_CLUSTER, &clusters(catalog, options.streams))
}

/// The same with these names of clusters.
pub(super) fn files(catalog: &Catalog, options: &Options, control_plane: &str, clusters: &[Cluster]) -> Result<Vec<File>, String> {
    let mut templates = Environment::new();
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build();
    templates.set_syntax(syntax.map_err(|error| error.to_string())?);
    // Their names end in .yaml, so that every value is written as JSON, which is YAML: nothing can break out of its place.
    for (name, text) in TEMPLATES {
        templates.add_template(name, text).map_err(|error| error.to_string())?;
    }
    let plugin = PluginConfig {
        control_plane_cluster: control_plane,
        internal_secret: &options.internal_secret,
        other_paths: options.other_paths,
        on_control_plane_failure: options.on_control_plane_failure,
        streams: options.streams,
        l1_bytes: u64::from(options.l1_mib) << 20,
    };
    let histograms: Vec<_> = metric::BUCKETS.iter().map(|(name, bounds)| json!({"name": name, "buckets": bounds})).collect();
    let file = |name: &str| options.dir.join(name).to_string_lossy().into_owned();
    let values = Value::from(Serde(json!({
        "clusters": clusters,
        "stream_paths": if options.streams == super::Streams::Router { STREAM_PATHS } else { &[] },
        "slots": SLOTS,
        "no_cluster": NO_CLUSTER,
        "control_plane": {
            "name": control_plane,
            "type": cluster_type(options.control_planes.iter().map(|address| address.host.as_str())),
            "endpoints": options.control_planes,
        },
        "files": {"lds": file("lds.yaml"), "rds": file("rds.yaml"), "cds": file("cds.yaml"), "ecds": file("ecds.yaml"), "ecds_upstream": file("ecds-upstream.yaml")},
        "listen": options.listen,
        "admin": options.admin,
        "node_id": options.node_id,
        "wasm": options.wasm.to_string_lossy(),
        "plugin": serde_json::to_string(&plugin).map_err(|error| error.to_string())?,
        "ca_bundle": options.ca_bundle.to_string_lossy(),
        "access_log": options.access_log.as_deref().map(Path::to_string_lossy),
        "metric_labels": metric::LABELS,
        "histograms": histograms,
        "log_fields": metric::LOG_FIELDS,
        "body_limit": catalog.limits.max_body_bytes.saturating_add(BODY_SLACK_BYTES),
        "max_timeout": seconds(catalog.limits.max_timeout_ms),
        "idle_timeout": seconds(catalog.limits.max_timeout_ms.saturating_add(IDLE_SLACK_MS)),
    })));
    TEMPLATES
        .iter()
        .map(|(name, _)| {
            let text = templates.get_template(name).and_then(|template| template.render(&values));
            let text = text.map_err(|error| format!("{name}: {error}"))?;
            Ok(File { path: (*name).to_owned(), text, secret: *name == "ecds.yaml" })
        })
        .collect()
}

fn clusters(catalog: &Catalog, streams: super::Streams) -> Vec<Cluster> {
    let mut clusters = Vec::new();
    for (name, provider) in catalog.providers.iter().filter(|(_, provider)| provider.cluster.is_none()) {
        clusters.push(Cluster::new(provider.cluster_name(name), format!("provider-{name}"), provider, false));
        if let (super::Streams::Router, Some(stream_name)) = (streams, provider.stream_cluster_name(name)) {
            clusters.push(Cluster::new(stream_name, format!("provider-{name}-stream"), provider, true));
        }
    }
    clusters
}

impl Cluster {
    pub(super) fn new(name: String, stat_name: String, provider: &Provider, stream: bool) -> Self {
        Self {
            name,
            stat_name,
            r#type: cluster_type(std::iter::once(provider.endpoint.host.as_str())),
            endpoint: HostPort { host: provider.endpoint.host.clone(), port: provider.endpoint.port },
            tls: provider.endpoint.tls.then(|| tls(&provider.endpoint, provider.authority.as_deref())),
            stream,
        }
    }
}

/// Who must be at the other end: `authority` where it is given, else the endpoint's host.
fn tls(endpoint: &BaseUrl, authority: Option<&str>) -> Tls {
    let host = authority.and_then(split_port).map_or(endpoint.host.as_str(), |(host, _)| host).to_owned();
    match host.parse::<IpAddr>() {
        Ok(_) => Tls { sni: None, san_type: "IP_ADDRESS", san: host },
        Err(_) => Tls { sni: Some(host.clone()), san_type: "DNS", san: host },
    }
}

/// Addresses need no resolver; one name among them does.
fn cluster_type<'a>(mut hosts: impl Iterator<Item = &'a str>) -> &'static str {
    if hosts.all(|host| host.parse::<IpAddr>().is_ok()) { "STATIC" } else { "STRICT_DNS" }
}

/// A protobuf duration.
fn seconds(ms: u64) -> String {
    format!("{}.{:03}s", ms / 1000, ms % 1000)
}
