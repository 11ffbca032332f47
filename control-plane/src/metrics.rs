//! What the control plane counts, for Prometheus. Label values come from routes and fixed words only.

use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use prometheus::{Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};
use proxium_wire::{AdmitReply, Limit, SettleRequest, admit_reply::Outcome, settlement::End};
use std::sync::Arc;
use std::time::Instant;

/// Seconds; most calls are one round trip to Redis.
const BUCKETS: [f64; 10] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0];

/// All counters, registered.
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    request_seconds: HistogramVec,
    admissions: IntCounterVec,
    settlements: IntCounterVec,
    redis_errors: IntCounter,
    catalog_fault: IntGauge,
    swept: IntCounter,
    sweep: Histogram,
}

/// Which port a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Filters.
    Internal,
    /// People.
    Admin,
}

impl Port {
    /// The name in metrics and spans.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::Admin => "admin",
        }
    }
}

impl Metrics {
    /// All at zero.
    ///
    /// # Errors
    /// A metric's name is wrong or used twice: a mistake in this file.
    pub fn new() -> Result<Self, prometheus::Error> {
        let vec = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let metrics = Self {
            registry: Registry::new(),
            requests: vec("proxium_requests_total", "Requests by port, route and status.", &["port", "route", "status"])?,
            request_seconds: HistogramVec::new(
                HistogramOpts::new("proxium_request_seconds", "Time of requests by port and route.").buckets(BUCKETS.to_vec()),
                &["port", "route"],
            )?,
            admissions: vec("proxium_admissions_total", "Admissions by outcome and refusing limit.", &["outcome", "limit"])?,
            settlements: vec("proxium_settlements_total", "Ends of reservations that are in Redis.", &["end"])?,
            redis_errors: IntCounter::new("proxium_redis_errors_total", "Requests that Redis could not serve.")?,
            catalog_fault: IntGauge::new("proxium_catalog_fault", "1 while the catalog's file is refused and an older one in use.")?,
            swept: IntCounter::new("proxium_swept_holds_total", "Due holds that were charged at their estimate.")?,
            sweep: Histogram::with_opts(HistogramOpts::new("proxium_sweep_seconds", "Time of one sweep over all projects."))?,
        };
        let registry = &metrics.registry;
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.request_seconds.clone()))?;
        registry.register(Box::new(metrics.admissions.clone()))?;
        registry.register(Box::new(metrics.settlements.clone()))?;
        registry.register(Box::new(metrics.redis_errors.clone()))?;
        registry.register(Box::new(metrics.catalog_fault.clone()))?;
        registry.register(Box::new(metrics.swept.clone()))?;
        registry.register(Box::new(metrics.sweep.clone()))?;
        Ok(metrics)
    }

    /// A request was answered.
    pub fn answered(&self, port: Port, route: &str, status: StatusCode, began: Instant) {
        self.request_seconds.with_label_values(&[port.name(), route]).observe(began.elapsed().as_secs_f64());
        self.requests.with_label_values(&[port.name(), route, status.as_str()]).inc();
    }

    /// A request failed for Redis.
    pub fn redis_error(&self) {
        self.redis_errors.inc();
    }

    /// An admission was answered.
    pub fn admitted(&self, reply: &AdmitReply) {
        let (outcome, limit) = match &reply.outcome {
            Some(Outcome::Hit(hit)) => (if hit.similarity_ppm.is_some() { "near" } else { "hit" }, ""),
            // The call's own admission follows.
            Some(Outcome::Embed(_)) => return,
            Some(Outcome::Admitted(_)) => ("admitted", ""),
            Some(Outcome::InvalidKey(())) => ("invalid_key", ""),
            Some(Outcome::Refused(refused)) => ("refused", Limit::try_from(refused.limit).map_or("", Limit::name)),
            None => return,
        };
        self.admissions.with_label_values(&[outcome, limit]).inc();
    }

    /// Ends of reservations are in Redis.
    pub fn settled(&self, request: &SettleRequest) {
        for settlement in &request.settlements {
            let end = match &settlement.end {
                Some(End::Settle(_)) => "settle",
                Some(End::Release(_)) => "release",
                Some(End::Hits(hits)) => {
                    self.admissions.with_label_values(&["filter_hit", ""]).inc_by(hits.count);
                    "hits"
                }
                None => continue,
            };
            self.settlements.with_label_values(&[end]).inc();
        }
    }

    /// A sweep over all projects ended.
    pub fn swept(&self, holds: u64, took: std::time::Duration) {
        self.swept.inc_by(holds);
        self.sweep.observe(took.as_secs_f64());
    }

    /// The text that Prometheus reads.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn text(&self, catalog_is_refused: bool) -> Result<String, prometheus::Error> {
        self.catalog_fault.set(i64::from(catalog_is_refused));
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}

/// Counts a request by its route, never by its path.
pub async fn count(State((metrics, port)): State<(Arc<Metrics>, Port)>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let began = Instant::now();
    let response = next.run(request).await;
    metrics.answered(port, &route, response.status(), began);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxium_wire::Refused;

    #[test]
    fn refusals_are_counted_by_their_limit() {
        let metrics = Metrics::new().unwrap();
        let refused = Refused { limit: Limit::TokensPerMinute.into(), ..Refused::default() };
        metrics.admitted(&AdmitReply { outcome: Some(Outcome::Refused(refused)) });
        let text = metrics.text(true).unwrap();
        assert!(text.contains(r#"proxium_admissions_total{limit="tokens_per_minute",outcome="refused"} 1"#), "{text}");
        assert!(text.contains("proxium_catalog_fault 1"), "{text}");
    }
}
