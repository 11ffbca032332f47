//! Spans for an OpenTelemetry collector: one for each request of a filter that carries a `traceparent`, as a child of the client's span,
//! and one for each request of the admin API.
//!
//! Off unless `OTEL_EXPORTER_OTLP_ENDPOINT` (or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) is set. The other variables of OpenTelemetry's SDK
//! count too (`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`, `OTEL_BSP_SCHEDULE_DELAY`). The protocol is OTLP over HTTP with protobuf.
//! Spans hold routes, statuses and times: no ids of projects or keys, no content.

use crate::metrics::Port;
use async_trait::async_trait;
use axum::extract::{MatchedPath, Request};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use opentelemetry::global::BoxedSpan;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanKind, Status, Tracer};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"];
const NAME: &str = "proxium";
/// A collector that does not answer must not hold up what comes after.
const PATIENCE: Duration = Duration::from_secs(10);

/// The export while it runs.
pub struct Export(SdkTracerProvider);

impl Export {
    /// Begins it; `None`: no collector is named.
    ///
    /// # Errors
    /// Says which variable cannot be followed.
    pub fn start() -> Result<Option<Self>, String> {
        let set = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if ENDPOINTS.iter().find_map(set).is_none() {
            return Ok(None);
        }
        if let Some(protocol) = PROTOCOLS.iter().find_map(set).filter(|protocol| protocol != "http/protobuf") {
            return Err(format!("OTEL_EXPORTER_OTLP_PROTOCOL is `{protocol}`: only `http/protobuf` can be spoken, mostly on port 4318"));
        }
        let exporter = SpanExporter::builder().with_http().with_http_client(Collector::default()).build();
        let exporter = exporter.map_err(|error| format!("{} cannot be followed: {error}", ENDPOINTS.join(" or ")))?;
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("proxium-control-plane");
        }
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build();
        global::set_tracer_provider(provider.clone());
        Ok(Some(Self(provider)))
    }

    /// Sends what is left.
    pub fn end(self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// The collector. The SDK calls from a thread of its own.
#[derive(Debug, Default)]
struct Collector {
    failing: AtomicBool,
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: opentelemetry_http::Request<Bytes>) -> Result<opentelemetry_http::Response<Bytes>, HttpError> {
        let sent = send(request);
        let fault = match &sent {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(answer.status().to_string()),
            Err(error) => Some(error.to_string()),
        };
        if self.failing.swap(fault.is_some(), Ordering::Relaxed) != fault.is_some() {
            match fault {
                Some(error) => tracing::warn!(error, "spans cannot be sent to the collector and are dropped"),
                None => tracing::info!("spans can be sent to the collector again"),
            }
        }
        sent
    }
}

fn send(request: opentelemetry_http::Request<Bytes>) -> Result<opentelemetry_http::Response<Bytes>, HttpError> {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).build().into();
    let (head, mut body) = agent.run(request.map(|body| body.to_vec()))?.into_parts();
    Ok(opentelemetry_http::Response::from_parts(head, body.read_to_vec()?.into()))
}

/// A request that is being answered.
pub struct Served(BoxedSpan);

impl Served {
    fn begin(port: Port, method: &str, route: &str, parent: &dyn Extractor) -> Self {
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), parent);
        let tracer = global::tracer(NAME);
        let attributes =
            [("http.request.method", method.to_owned()), ("http.route", route.to_owned()), ("proxium.port", port.name().to_owned())];
        let span = tracer
            .span_builder(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_attributes(attributes.map(|(name, value)| KeyValue::new(name, value)))
            .start_with_context(&tracer, &parent);
        Self(span)
    }

    /// It is answered.
    pub fn end(mut self, status: StatusCode) {
        self.0.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if status.is_server_error() {
            self.0.set_status(Status::error(status.to_string()));
        }
        self.0.end();
    }
}

/// Puts a request of the admin API into a span.
pub async fn span(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let Some(route) = route else { return next.run(request).await };
    let span = Served::begin(Port::Admin, request.method().as_str(), &route, &HeaderExtractor(request.headers()));
    let response = next.run(request).await;
    span.end(response.status());
    response
}

/// The `traceparent` of what a filter asks.
struct OfFilter<'a>(&'a str);

impl Extractor for OfFilter<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == "traceparent").then_some(self.0)
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}

/// Begins the span of what a filter asks for its client. A filter's own polls belong to no call.
pub fn of_filter(path: &str, traceparent: &str) -> Option<Served> {
    (!traceparent.is_empty()).then(|| Served::begin(Port::Internal, "POST", path, &OfFilter(traceparent)))
}
