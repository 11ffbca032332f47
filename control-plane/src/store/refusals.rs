//! How often limits refused, by project, day and limit: for people to see. Counted in memory and written each second, so that a caller
//! who is refused a thousand times a second costs Redis one command; a control plane that dies loses a second of it.

use super::{StoreError, name};
use fred::prelude::*;
use jiff::civil::Date;
use proxium_wire::{Limit, Refused};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);
/// As long as the ledger by default.
const KEPT_S: i64 = 400 * 86_400;

type Counts = BTreeMap<(String, Date, String), i64>;

/// The counts that are not written yet. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Refusals(Arc<Mutex<Counts>>);

impl Refusals {
    /// Begins to write what is counted, until the last clone is dropped.
    #[must_use]
    pub fn start(redis: Client) -> Self {
        let counts = Arc::new(Mutex::new(Counts::new()));
        let written = Arc::downgrade(&counts);
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(EVERY);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                let Some(counts) = written.upgrade() else { return };
                let taken = std::mem::take(&mut *counts.lock().unwrap_or_else(PoisonError::into_inner));
                if let Err(error) = write(&redis, &taken).await {
                    tracing::debug!(%error, "refusals could not be counted");
                }
            }
        });
        Self(counts)
    }

    /// A limit refused a call of this project.
    pub fn count(&self, project: &str, refused: &Refused) {
        let limit = Limit::try_from(refused.limit).map_or("", Limit::name);
        let limit = if refused.of_sender { format!("{limit} (sender)") } else { limit.to_owned() };
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((project.to_owned(), super::spend::today(), limit)).or_default() += 1;
    }
}

async fn write(redis: &Client, counts: &Counts) -> Result<(), StoreError> {
    for ((project, day, limit), count) in counts {
        let name = of_day(project, *day);
        let () = redis.hincrby(&name, limit, *count).await?;
        let () = redis.expire(&name, KEPT_S, None).await?;
    }
    Ok(())
}

/// Counts by limit on each of these days.
///
/// # Errors
/// Redis cannot answer.
pub async fn each_day(redis: &Client, project: &str, days: &[Date]) -> Result<Vec<BTreeMap<String, i64>>, StoreError> {
    let mut all = Vec::with_capacity(days.len());
    for day in days {
        let counts: HashMap<String, i64> = redis.hgetall(of_day(project, *day)).await?;
        all.push(counts.into_iter().collect());
    }
    Ok(all)
}

fn of_day(project: &str, day: Date) -> String {
    name::refused_day(project, &day.strftime("%Y%m%d").to_string())
}
