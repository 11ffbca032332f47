//! Spans of the control plane at an OpenTelemetry collector, which is here: OTLP over HTTP on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use proxium_e2e::{BOUND, Call, Stack, chat, eventually};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// What a collector was sent: path, and the message.
type Sent = Arc<Mutex<Vec<(String, ExportTraceServiceRequest)>>>;

async fn collector() -> (SocketAddr, Sent) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, sent) = (listener.local_addr().unwrap(), Sent::default());
    let kept = Arc::clone(&sent);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let kept = Arc::clone(&kept);
            let answer = service_fn(move |request: Request<Incoming>| {
                let kept = Arc::clone(&kept);
                async move {
                    let path = request.uri().path().to_owned();
                    let body = request.into_body().collect().await?.to_bytes();
                    kept.lock().unwrap().push((path, ExportTraceServiceRequest::decode(body).expect("an export")));
                    Ok::<_, hyper::Error>(Response::new(Full::<Bytes>::default()))
                }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), answer));
        }
    });
    (addr, sent)
}

fn spans(sent: &Sent) -> Vec<Span> {
    let sent = sent.lock().unwrap();
    let resources = sent.iter().flat_map(|(_, export)| &export.resource_spans);
    resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| scope.spans.clone()).collect()
}

fn of_client(spans: &[Span]) -> Vec<&Span> {
    spans.iter().filter(|span| span.trace_id == hex::decode(TRACE).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_calls_admission_and_settlement_are_spans_of_the_clients_trace() {
    let (addr, sent) = collector().await;
    let builder = Stack::builder().env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{addr}")).env("OTEL_BSP_SCHEDULE_DELAY", "100");
    let stack = builder.start().await;
    let key = stack.key().await;
    let call = Call::chat(&key, &chat("m1", "the secret prompt"));
    let _ = stack.call(&call.header("traceparent", &format!("00-{TRACE}-{PARENT}-01"))).await.expect(200);
    let wanted = ["POST /v1/authenticate", "POST /v1/admit", "POST /v1/settle"];
    eventually("the spans are at the collector", BOUND, || async {
        let all = spans(&sent);
        let names: Vec<_> = of_client(&all).iter().map(|span| span.name.clone()).collect();
        let missing = wanted.iter().find(|wanted| !names.iter().any(|name| name == *wanted));
        missing.map_or(Ok(()), |missing| Err(format!("{missing} of {names:?}")))
    })
    .await;

    let all = spans(&sent);
    for span in of_client(&all) {
        assert_eq!(span.parent_span_id, hex::decode(PARENT).unwrap(), "{span:?}");
        assert!(span.end_time_unix_nano > span.start_time_unix_nano, "{span:?}");
    }
    assert!(all.iter().any(|span| span.name == "POST /admin/v1/projects/{project}/keys"), "{all:?}");
    assert!(!all.iter().any(|span| span.name.contains("snapshot")), "polls are no part of a call: {all:?}");
    let told = format!("{:?}", sent.lock().unwrap());
    assert!(told.contains("proxium-control-plane"));
    for private in ["secret prompt", &key.text, &key.project, &key.id] {
        assert!(!told.contains(private), "{private}: {told}");
    }
    assert!(sent.lock().unwrap().iter().all(|(path, _)| path == "/v1/traces"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_costs_no_call() {
    let builder = Stack::builder().env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9").env("OTEL_BSP_SCHEDULE_DELAY", "50");
    let stack = builder.start().await;
    let key = stack.key().await;
    for number in 0..3 {
        let call = Call::chat(&key, &chat("m1", &format!("{number}"))).header("traceparent", &format!("00-{TRACE}-{PARENT}-01"));
        let _ = stack.call(&call).await.expect(200);
    }
    let log = || stack.control_planes[0].process().log();
    eventually("it says so", BOUND, || std::future::ready(log().contains("spans cannot be sent to the collector"))).await;
    assert_eq!(log().matches("spans cannot be sent").count(), 1, "once: {}", log());
}
