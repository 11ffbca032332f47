//! The filter's counters, gauges and histograms in Envoy's statistics, by the names of [`proxium_wire::metric`].

use crate::host::{self, Metric};
use proxium_flow::message::{Callout, Reply};
use proxium_wire::metric::{CONTROL_PLANE, LABELS};
use proxium_wire::path;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// So many label sets a VM knows; a catalog that needs more goes uncounted beyond, for Envoy never forgets a statistic.
const MAX_METRICS: usize = 4_096;

thread_local! {
    /// Defined once a VM: each look-up of a name in Envoy's statistics takes its lock, and each name takes time to write. Here they go by
    /// the hash of metric and label values, 64 bits for some thousands.
    static DEFINED: RefCell<BTreeMap<u64, Metric>> = const { RefCell::new(BTreeMap::new()) };
}

/// Counts one.
pub fn count(metric: &str, labels: &[(&str, &str)]) {
    with(metric, labels, Metric::counter, Metric::increment);
}

/// Records a value of a histogram.
pub fn record(metric: &str, labels: &[(&str, &str)], value: u64) {
    with(metric, labels, Metric::histogram, |metric| metric.record(value));
}

/// Sets a gauge.
pub fn set(metric: &str, labels: &[(&str, &str)], value: u64) {
    with(metric, labels, Metric::gauge, |metric| metric.record(value));
}

/// A call of the control plane on its way.
#[derive(Clone, Copy)]
pub struct ControlCall {
    path: &'static str,
    sent_ms: u64,
}

impl ControlCall {
    /// Looks whether this is one, sent now.
    pub fn of(callout: &Callout, cluster: &str) -> Option<Self> {
        let path = callout.headers.get(":path").filter(|_| callout.cluster == cluster)?;
        let path = [path::AUTHENTICATE, path::ADMIT, path::SETTLE, path::SNAPSHOT].into_iter().find(|known| *known == path)?;
        Some(Self { path, sent_ms: host::now_ms() })
    }

    /// Records how long it took.
    pub fn ended(self, reply: &Reply) {
        let call = self.path.rsplit('/').next().unwrap_or_default();
        let ms = host::now_ms().saturating_sub(self.sent_ms);
        let outcome = match reply {
            Reply::Answer(answer) => &format!("status_{}", answer.status),
            Reply::Failed(failure) => failure.name(),
        };
        record(CONTROL_PLANE, &[("call", call), ("outcome", outcome)], ms);
    }
}

fn with(metric: &str, labels: &[(&str, &str)], define: impl FnOnce(&str) -> Metric, act: impl FnOnce(&Metric)) {
    let mut hash = DefaultHasher::new();
    metric.hash(&mut hash);
    labels.iter().for_each(|(_, value)| value.hash(&mut hash));
    let key = hash.finish();
    DEFINED.with_borrow_mut(|defined| {
        if let Some(metric) = defined.get(&key) {
            act(metric);
        } else if defined.len() < MAX_METRICS {
            let metric = define(&name(metric, labels));
            act(&metric);
            defined.insert(key, metric);
        }
    });
}

fn name(metric: &str, labels: &[(&str, &str)]) -> String {
    let mut name = metric.to_owned();
    for (label, value) in labels {
        name.push('.');
        name.push_str(label);
        name.push('.');
        // Envoy takes the name apart at its dots, and finds a label by its name.
        name.extend(value.chars().map(|c| if c.is_ascii_alphanumeric() || "-_/:@".contains(c) { c } else { '_' }));
        if value.is_empty() || LABELS.contains(value) {
            name.push('_');
        }
    }
    name
}
