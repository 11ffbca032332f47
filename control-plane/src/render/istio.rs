//! `proxium render istio`: the pieces of a standalone Envoy's files as manifests for a mesh.
//!
//! Nothing is written twice: filter, routes, upstream filters and metric labels are taken out of the files that [`super::envoy`] makes, and
//! an `EnvoyFilter` puts them where Istio's own configuration has a place for them. `deploy/istio/README.md` says why each patch is there.

use super::envoy::{Cluster, NO_CLUSTER, files};
use super::{File, HostPort, OnControlPlaneFailure, Options, OtherPaths, SecretFlags, Streams};
use crate::catalog::Catalog;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const HTTP_CONNECTION_MANAGER: &str = "envoy.filters.network.http_connection_manager";
const WASM_TYPE: &str = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
const HEADER: &str = "# Rendered by `proxium render istio`; why each patch: deploy/istio/README.md.\n";

/// Arguments of `proxium render istio`.
#[derive(Clone, clap::Args)]
pub struct IstioArgs {
    /// The catalog's file, with `mesh: istio`; the credentials that it names are not needed.
    #[arg(long, value_name = "FILE")]
    pub catalog: PathBuf,
    /// The directory to write to.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// The shared secret.
    #[command(flatten)]
    pub secret: SecretFlags,
    /// The filter: `oci://…`, `https://…`, or a path inside the proxy's container.
    #[arg(long, value_name = "URL")]
    pub wasm: String,
    /// SHA-256 of what the URL gives: of the module, or of the OCI image (or write it into the URL: `…@sha256:…`).
    #[arg(long, value_name = "HEX")]
    pub wasm_sha256: Option<String>,
    /// Which proxies get the filter.
    #[arg(long, value_enum, default_value = "gateway")]
    pub context: MeshContext,
    /// Their namespace.
    #[arg(long, value_name = "NAME", default_value = "istio-system")]
    pub namespace: String,
    /// A label of theirs, `name=value`; several times for several.
    #[arg(long = "selector", value_name = "LABEL", default_value = "istio=ingressgateway", value_parser = label)]
    pub selectors: Vec<(String, String)>,
    /// Who may call the control plane's internal port: their identities in the mesh.
    #[arg(
        long = "principal",
        value_name = "SPIFFE",
        default_value = "cluster.local/ns/istio-system/sa/istio-ingressgateway-service-account"
    )]
    pub principals: Vec<String>,
    /// The internal port of the control plane's Service.
    #[arg(long, value_name = "HOST:PORT", default_value = "proxium.proxium.svc.cluster.local:10003")]
    pub control_plane: HostPort,
    /// The control plane's namespace.
    #[arg(long, value_name = "NAME", default_value = "proxium")]
    pub control_plane_namespace: String,
    /// What becomes of paths that are none of proxium's.
    #[arg(long, value_enum, default_value = "continue")]
    pub other_paths: OtherPaths,
    /// What becomes of calls while no control plane answers.
    #[arg(long, value_enum, default_value = "deny")]
    pub on_control_plane_failure: OnControlPlaneFailure,
    /// The path that streams take; `router` needs a mesh whose Envoy is 1.39 or later.
    #[arg(long, value_enum, default_value = "router")]
    pub streams: Streams,
    /// What each worker of Envoy may keep of answers, in MiB, so that a hot free hit asks nobody; 0: nothing.
    #[arg(long, value_name = "MIB", default_value = "32", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub l1_mib: u16,
    /// CA certificates that `https` providers are verified with, as the proxy's container has them.
    #[arg(long, value_name = "FILE", default_value = "/etc/ssl/certs/ca-certificates.crt")]
    pub ca_bundle: PathBuf,
}

/// Istio's word for a kind of proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum MeshContext {
    /// An ingress or egress gateway.
    Gateway,
    /// What an application's sidecar sends.
    SidecarOutbound,
    /// What an application's sidecar receives.
    SidecarInbound,
}

impl MeshContext {
    const fn name(self) -> &'static str {
        match self {
            Self::Gateway => "GATEWAY",
            Self::SidecarOutbound => "SIDECAR_OUTBOUND",
            Self::SidecarInbound => "SIDECAR_INBOUND",
        }
    }

    /// Where the clusters of providers are.
    const fn of_clusters(self) -> &'static str {
        match self {
            Self::Gateway => "GATEWAY",
            Self::SidecarOutbound | Self::SidecarInbound => "SIDECAR_OUTBOUND",
        }
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be name=value")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Renders the manifests: the same arguments give the same bytes.
///
/// # Errors
/// The catalog is not for a mesh, or names what a mesh cannot reach by name; the text says what to change.
pub fn istio(catalog: &Catalog, args: &IstioArgs, secret: &str) -> Result<Vec<File>, String> {
    let clusters = clusters(catalog, args.streams)?;
    let control_plane = format!("outbound|{}||{}", args.control_plane.port, args.control_plane.host);
    let rendered = files(catalog, &options(args, secret), &control_plane, &clusters)?;
    let pieces = Pieces(rendered.iter().map(|file| (file.path.as_str(), parsed(&file.text))).collect());
    let manifest = |path: &str, secret, documents: &[Value]| -> Result<File, String> {
        let documents: Result<Vec<String>, _> = documents.iter().map(serde_yaml_ng::to_string).collect();
        let text = documents.map_err(|error| error.to_string())?.join("---\n");
        Ok(File { path: path.to_owned(), text: format!("{HEADER}{text}"), secret })
    };
    Ok(vec![
        manifest("control-plane.yaml", false, &internal_port(args))?,
        manifest("providers.yaml", false, &providers(&clusters, args)?)?,
        manifest("envoyfilter.yaml", true, &[envoy_filter(&pieces, &clusters, args)?])?,
    ])
}

/// The files of a standalone Envoy, as values.
struct Pieces<'a>(BTreeMap<&'a str, Value>);

impl Pieces<'_> {
    fn at(&self, file: &str, pointer: &str) -> Result<&Value, String> {
        let value = self.0.get(file).and_then(|value| value.pointer(pointer));
        value.ok_or_else(|| format!("{file} has nothing at {pointer}"))
    }
}

fn parsed(yaml: &str) -> Value {
    serde_yaml_ng::from_str(yaml).unwrap_or_default()
}

fn options(args: &IstioArgs, secret: &str) -> Options {
    Options {
        dir: PathBuf::new(),
        wasm: PathBuf::new(),
        listen: args.control_plane.clone(),
        admin: None,
        control_planes: vec![args.control_plane.clone()],
        internal_secret: secret.to_owned(),
        other_paths: args.other_paths,
        on_control_plane_failure: args.on_control_plane_failure,
        streams: args.streams,
        l1_mib: args.l1_mib,
        ca_bundle: args.ca_bundle.clone(),
        access_log: None,
        node_id: String::new(),
    }
}

/// One cluster for calls and streams alike; providers at one address share it.
fn clusters(catalog: &Catalog, streams: Streams) -> Result<Vec<Cluster>, String> {
    let mut clusters: BTreeMap<String, Cluster> = BTreeMap::new();
    for (name, provider) in &catalog.providers {
        if !provider.in_mesh {
            return Err("this catalog is for a standalone Envoy: write `mesh: istio` at its top".to_owned());
        }
        let cluster = Cluster::new(provider.cluster_name(name), String::new(), provider, streams == Streams::Router);
        if let Some(other) = clusters.get(&cluster.name)
            && *other != cluster
        {
            return Err(format!("providers.{name}: another provider reaches {} by another name or without TLS", cluster.name));
        }
        clusters.insert(cluster.name.clone(), cluster);
    }
    Ok(clusters.into_values().collect())
}

fn envoy_filter(pieces: &Pieces<'_>, clusters: &[Cluster], args: &IstioArgs) -> Result<Value, String> {
    let context = args.context.name();
    let patch = |apply_to: &str, matches: Value, operation: &str, value: Value| json!({"applyTo": apply_to, "match": matches, "patch": {"operation": operation, "value": value}});
    let in_filters = |filter: Value| json!({"context": context, "listener": {"filterChain": {"filter": filter}}});
    let router = args.streams == Streams::Router;

    let mut patches = vec![
        patch("EXTENSION_CONFIG", json!({"context": context}), "ADD", extension(pieces, "ecds.yaml", args)?),
        patch(
            "HTTP_FILTER",
            in_filters(json!({"name": HTTP_CONNECTION_MANAGER, "subFilter": {"name": "envoy.filters.http.router"}})),
            "INSERT_BEFORE",
            discovered("proxium"),
        ),
        patch(
            "LISTENER",
            json!({"context": context}),
            "MERGE",
            json!({"per_connection_buffer_limit_bytes": pieces.at("lds.yaml", "/resources/0/per_connection_buffer_limit_bytes")?}),
        ),
    ];
    if args.context == MeshContext::Gateway {
        let manager = "/resources/0/filter_chains/0/filters/0/typed_config";
        let member = |name: &str| pieces.at("lds.yaml", &format!("{manager}/{name}"));
        let value = json!({"name": HTTP_CONNECTION_MANAGER, "typed_config": {
            "@type": member("@type")?,
            "stream_idle_timeout": member("stream_idle_timeout")?,
            "delayed_close_timeout": member("delayed_close_timeout")?,
        }});
        patches.push(patch("NETWORK_FILTER", in_filters(json!({"name": HTTP_CONNECTION_MANAGER})), "MERGE", value));
    }
    for cluster in clusters {
        patches.push(cluster_patch(pieces, cluster, args).map(|(matches, value)| patch("CLUSTER", matches, "MERGE", value))?);
    }
    if router {
        let upstream = json!({"context": args.context.of_clusters()});
        patches.push(patch("EXTENSION_CONFIG", upstream.clone(), "ADD", extension(pieces, "ecds-upstream.yaml", args)?));
        patches.push(patch("CLUSTER", upstream, "ADD", json!({"name": NO_CLUSTER, "type": "STATIC", "connect_timeout": "1s"})));
        patches.push(patch("VIRTUAL_HOST", json!({"context": context}), "MERGE", json!({"include_request_attempt_count": true})));
        let routes = pieces.at("rds.yaml", "/resources/0/virtual_hosts/0/routes")?.as_array();
        for route in routes.into_iter().flatten().filter(|route| route.get("route").is_some()) {
            patches.push(patch("HTTP_ROUTE", json!({"context": context}), "INSERT_FIRST", route.clone()));
        }
    }
    let stats = json!({"stats_config": pieces.at("bootstrap.yaml", "/stats_config")?});
    patches.push(patch("BOOTSTRAP", json!({"context": context}), "MERGE", stats));
    let labels: BTreeMap<_, _> = args.selectors.iter().cloned().collect();
    Ok(json!({
        "apiVersion": "networking.istio.io/v1alpha3",
        "kind": "EnvoyFilter",
        "metadata": {"name": "proxium", "namespace": args.namespace},
        "spec": {"workloadSelector": {"labels": labels}, "configPatches": patches},
    }))
}

/// The cluster's HTTP options, upstream filter included.
fn cluster_patch(pieces: &Pieces<'_>, cluster: &Cluster, args: &IstioArgs) -> Result<(Value, Value), String> {
    let resources = pieces.at("cds.yaml", "/resources")?.as_array();
    let rendered = resources.into_iter().flatten().find(|rendered| rendered.get("name").is_some_and(|name| *name == cluster.name.as_str()));
    let mut options = rendered.and_then(|rendered| rendered.get("typed_extension_protocol_options")).cloned().unwrap_or_default();
    let filters = options.pointer_mut("/envoy.extensions.upstreams.http.v3.HttpProtocolOptions/http_filters").and_then(Value::as_array_mut);
    for filter in filters.into_iter().flatten().filter(|filter| filter.get("config_discovery").is_some()) {
        *filter = discovered("proxium-upstream");
    }
    Ok((
        json!({"context": args.context.of_clusters(), "cluster": {"name": cluster.name}}),
        json!({"typed_extension_protocol_options": options}),
    ))
}

/// A filter that Istio delivers apart, its agent having fetched the code.
fn discovered(name: &str) -> Value {
    let source = json!({"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"});
    json!({"name": name, "config_discovery": {"config_source": source, "type_urls": [WASM_TYPE]}})
}

fn extension(pieces: &Pieces<'_>, file: &str, args: &IstioArgs) -> Result<Value, String> {
    let mut typed = pieces.at(file, "/resources/0/typed_config")?.clone();
    if let Some(at) = typed.pointer_mut("/config/vm_config/code") {
        *at = code(args)?;
    }
    Ok(json!({"name": pieces.at(file, "/resources/0/name")?, "typed_config": typed}))
}

fn code(args: &IstioArgs) -> Result<Value, String> {
    if Path::new(&args.wasm).is_absolute() {
        return Ok(json!({"local": {"filename": args.wasm}}));
    }
    let in_url = args.wasm.split_once("@sha256:").map(|(_, hex)| hex);
    let is_sha256 = |text: &&str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match args.wasm_sha256.as_deref().or(in_url).filter(is_sha256) {
        Some(sha256) if args.wasm.starts_with("oci://") || args.wasm.starts_with("https://") => {
            Ok(json!({"remote": {"http_uri": {"uri": args.wasm, "timeout": "60s", "cluster": "unused"}, "sha256": sha256}}))
        }
        Some(_) => Err(format!("--wasm {} must be oci://…, https://… or an absolute path", args.wasm)),
        None => {
            Err("name the filter's SHA-256 with --wasm-sha256, 64 hexadecimal digits: what is fetched must be what you built".to_owned())
        }
    }
}

/// A `ServiceEntry` and a `DestinationRule` for each host outside the mesh.
fn providers(clusters: &[Cluster], args: &IstioArgs) -> Result<Vec<Value>, String> {
    let mut hosts: BTreeMap<&str, Vec<&Cluster>> = BTreeMap::new();
    for cluster in clusters {
        let HostPort { host, port } = &cluster.endpoint;
        // Any other cluster is one that the catalog names because the mesh has it.
        if cluster.name == format!("outbound|{port}||{host}") && !host.ends_with(".svc.cluster.local") {
            if host.parse::<std::net::IpAddr>().is_ok() {
                return Err(format!("{host}: a mesh knows hosts by name; give the endpoint a DNS name, or name its `cluster`"));
            }
            hosts.entry(host).or_default().push(cluster);
        }
    }
    let mut documents = Vec::new();
    for (host, clusters) in hosts {
        let metadata = json!({"name": format!("proxium-{}", host.replace('.', "-")), "namespace": args.namespace});
        let ports: Vec<Value> = clusters.iter().map(|cluster| port(cluster)).collect();
        let settings: Vec<Value> = clusters.iter().map(|cluster| settings(cluster, &args.ca_bundle)).collect();
        documents.push(json!({
            "apiVersion": "networking.istio.io/v1",
            "kind": "ServiceEntry",
            "metadata": metadata,
            "spec": {"hosts": [host], "exportTo": ["."], "location": "MESH_EXTERNAL", "resolution": "DNS", "ports": ports},
        }));
        documents.push(json!({
            "apiVersion": "networking.istio.io/v1",
            "kind": "DestinationRule",
            "metadata": metadata,
            "spec": {"host": host, "exportTo": ["."], "trafficPolicy": {"portLevelSettings": settings}},
        }));
    }
    Ok(documents)
}

fn port(cluster: &Cluster) -> Value {
    let (number, protocol) = (cluster.endpoint.port, if cluster.tls.is_some() { "HTTPS" } else { "HTTP" });
    json!({"number": number, "name": format!("{}-{number}", protocol.to_lowercase()), "protocol": protocol})
}

fn settings(cluster: &Cluster, ca_bundle: &Path) -> Value {
    let tcp = json!({"connectTimeout": "5s", "tcpKeepalive": {"time": "30s", "interval": "10s", "probes": 3}});
    let tls = match &cluster.tls {
        Some(tls) => json!({"mode": "SIMPLE", "sni": tls.sni, "subjectAltNames": [tls.san], "caCertificates": ca_bundle.to_string_lossy()}),
        None => json!({"mode": "DISABLE"}),
    };
    json!({"port": {"number": cluster.endpoint.port}, "connectionPool": {"tcp": tcp}, "tls": tls})
}

/// Only the proxies with the filter reach the internal port, and only by mutual TLS.
fn internal_port(args: &IstioArgs) -> [Value; 2] {
    let metadata = json!({"name": "proxium-internal", "namespace": args.control_plane_namespace});
    let selector = json!({"matchLabels": {"app.kubernetes.io/name": "proxium"}});
    let port = args.control_plane.port.to_string();
    [
        json!({
            "apiVersion": "security.istio.io/v1",
            "kind": "PeerAuthentication",
            "metadata": metadata,
            "spec": {"selector": selector, "portLevelMtls": {&port: {"mode": "STRICT"}}},
        }),
        json!({
            "apiVersion": "security.istio.io/v1",
            "kind": "AuthorizationPolicy",
            "metadata": metadata,
            "spec": {"selector": selector, "action": "DENY", "rules": [
                {"from": [{"source": {"notPrincipals": args.principals}}], "to": [{"operation": {"ports": [port]}}]},
            ]},
        }),
    ]
}
