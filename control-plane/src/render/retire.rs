//! Clusters that the catalog no longer names stay for a while.
//!
//! Envoy resets every callout of a cluster that it removes or changes, at once (measured on 1.40.0: 503 "upstream failure"), yet a call in
//! flight is to end on the catalog that it began with. So a cluster's name follows where it leads
//! ([`crate::catalog::Provider::cluster_name`]): a changed provider is a new cluster. The old one is kept, letter by letter, until no call
//! can be left on it; a later rendering drops it. Until then it is idle and costs nothing.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The clusters that are kept, by name; lives beside the rendered files.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Retired(BTreeMap<String, Entry>);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    /// Unix seconds from when it may go.
    until_s: u64,
    cluster: Value,
}

#[derive(Deserialize)]
struct Clusters {
    resources: Vec<Value>,
}

impl Retired {
    /// `new` with the clusters that are still to be kept, which `self` then holds: those of `old` that `new` lacks, for `keep_s` seconds
    /// from `now_s`.
    pub(super) fn carry_over(&mut self, old: &str, new: String, now_s: u64, keep_s: u64) -> String {
        // What was there and cannot be read was not in use either.
        let clusters = |text| serde_yaml_ng::from_str(text).map_or_else(|_| Vec::new(), |Clusters { resources }| resources);
        for cluster in clusters(old) {
            if let Some(name) = name(&cluster) {
                self.0.entry(name.to_owned()).or_insert(Entry { until_s: now_s.saturating_add(keep_s), cluster });
            }
        }
        for cluster in clusters(&new) {
            name(&cluster).and_then(|name| self.0.remove(name));
        }
        self.0.retain(|_, entry| entry.until_s > now_s);
        if self.0.is_empty() {
            return new;
        }
        let mut text = new.replace("\n  []\n", "\n");
        text.push_str("  # No longer in the catalog; kept for the calls that are still on them.\n");
        for Entry { cluster, .. } in self.0.values() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  - {cluster}");
        }
        text
    }
}

fn name(cluster: &Value) -> Option<&str> {
    cluster.get("name")?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "resources:\n  - {name: a, connect_timeout: 5s}\n  - {name: b, connect_timeout: 5s}\n";
    const NEW: &str = "resources:\n  - {name: b, connect_timeout: 5s}\n";

    fn names(text: &str) -> Vec<String> {
        let Clusters { resources } = serde_yaml_ng::from_str(text).unwrap();
        resources.iter().map(|cluster| name(cluster).unwrap().to_owned()).collect()
    }

    #[test]
    fn a_cluster_that_is_gone_stays_as_it_was_until_its_time_is_over() {
        let mut retired = Retired::default();
        let first = retired.carry_over(OLD, NEW.to_owned(), 1_000, 60);
        assert_eq!(names(&first), ["b", "a"]);
        assert!(first.contains(r#"- {"connect_timeout":"5s","name":"a"}"#), "{first}");
        let second = retired.carry_over(&first, NEW.to_owned(), 1_059, 60);
        assert_eq!(second, first, "another rendering does not prolong it");
        assert_eq!(retired.carry_over(&second, NEW.to_owned(), 1_060, 60), NEW);
        assert_eq!(retired, Retired::default());
    }

    #[test]
    fn a_cluster_that_comes_back_is_no_longer_retired() {
        let mut retired = Retired::default();
        let first = retired.carry_over(OLD, NEW.to_owned(), 1_000, 60);
        assert_eq!(retired.carry_over(&first, OLD.to_owned(), 1_001, 60), OLD);
        assert_eq!(retired, Retired::default());
    }

    #[test]
    fn clusters_are_kept_also_when_no_other_is_left_and_nothing_when_none_were_there() {
        let none = "resources:\n  []\n";
        assert_eq!(names(&Retired::default().carry_over(OLD, none.to_owned(), 0, 60)), ["a", "b"]);
        assert_eq!(Retired::default().carry_over("", none.to_owned(), 0, 60), none);
        assert_eq!(Retired::default().carry_over("resources: {broken", none.to_owned(), 0, 60), none);
    }
}
