//! What a project spent: counters by day, the ledger for export, and changes by hand.

use super::args::Args;
use super::reservations::{STATE_MISSING, state_missing};
use super::scripts::Scripts;
use super::{StoreError, name};
use fred::prelude::*;
use jiff::civil::Date;
use jiff::{Timestamp, tz::TimeZone};
use proxium_wire::NanoUsd;
use std::collections::{BTreeMap, HashMap};

/// By what spend is summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The model that answered.
    Model,
    /// The key.
    Key,
    /// `x-proxium-source`.
    Source,
    /// The day of the admission, UTC.
    Day,
}

impl By {
    /// The name in a query and of the rows' first column.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Key => "key",
            Self::Source => "source",
            Self::Day => "day",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Model, Self::Key, Self::Source, Self::Day].into_iter().find(|by| by.name() == name)
    }
}

/// What some calls came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Answered calls, those from the cache included.
    pub calls: i64,
    /// What they cost.
    pub cost: NanoUsd,
    /// Input tokens that no provider's cache served.
    pub input_tokens: i64,
    /// Input tokens read from a provider's cache.
    pub cached_input_tokens: i64,
    /// Input tokens written to a provider's cache.
    pub cache_write_tokens: i64,
    /// Output tokens.
    pub output_tokens: i64,
    /// Calls answered from the cache of proxium.
    pub cached_calls: i64,
    /// Calls whose usage was estimated.
    pub estimated_calls: i64,
}

impl Totals {
    /// With others.
    pub fn sum(&mut self, more: &Self) {
        let sums: [(&mut i64, i64); 8] = [
            (&mut self.calls, more.calls),
            (&mut self.cost.0, more.cost.0),
            (&mut self.input_tokens, more.input_tokens),
            (&mut self.cached_input_tokens, more.cached_input_tokens),
            (&mut self.cache_write_tokens, more.cache_write_tokens),
            (&mut self.output_tokens, more.output_tokens),
            (&mut self.cached_calls, more.cached_calls),
            (&mut self.estimated_calls, more.estimated_calls),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
    }

    fn add(&mut self, metric: &str, more: i64) {
        let sum = match metric {
            "answers" => &mut self.calls,
            "cost" => &mut self.cost.0,
            "input" => &mut self.input_tokens,
            "cached_input" => &mut self.cached_input_tokens,
            "cache_write" => &mut self.cache_write_tokens,
            "output" => &mut self.output_tokens,
            "cached" => &mut self.cached_calls,
            "estimated" => &mut self.estimated_calls,
            _ => return,
        };
        *sum = sum.saturating_add(more);
    }
}

/// The longest span of one question, in days.
pub const MOST_DAYS: usize = 400;

/// The days from `from` to `to`, both counted in, at most [`MOST_DAYS`].
fn days(from: Date, to: Date) -> impl Iterator<Item = Date> {
    let next = |day: &Date| day.tomorrow().ok();
    std::iter::successors(Some(from), next).take_while(move |day| *day <= to).take(MOST_DAYS)
}

/// Sums up what a project spent on these days, both counted in.
///
/// # Errors
/// Redis cannot answer.
pub async fn report(redis: &Client, project: &str, from: Date, to: Date, by: By) -> Result<BTreeMap<String, Totals>, StoreError> {
    let mut rows: BTreeMap<String, Totals> = BTreeMap::new();
    for (_, day) in each_day(redis, project, from, to, by).await? {
        for (name, totals) in day {
            rows.entry(name).or_default().sum(&totals);
        }
    }
    Ok(rows)
}

/// The same day by day, those without calls too.
///
/// # Errors
/// Redis cannot answer.
pub async fn each_day(
    redis: &Client,
    project: &str,
    from: Date,
    to: Date,
    by: By,
) -> Result<Vec<(Date, BTreeMap<String, Totals>)>, StoreError> {
    let mut all = Vec::new();
    for day in days(from, to) {
        let name = name::spend_day(project, &day.strftime("%Y%m%d").to_string());
        let fields: HashMap<String, i64> = redis.hgetall(name).await?;
        let mut rows: BTreeMap<String, Totals> = BTreeMap::new();
        for (field, more) in &fields {
            let mut parts = field.splitn(4, '|');
            let (Some(metric), Some(key), Some(model), Some(source)) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let row = match by {
                By::Model => model.to_owned(),
                By::Key => key.to_owned(),
                By::Source => source.to_owned(),
                By::Day => day.to_string(),
            };
            rows.entry(row).or_default().add(metric, *more);
        }
        all.push((day, rows));
    }
    Ok(all)
}

/// A record of the ledger: its cursor and its fields.
pub type Record = (String, Vec<(String, String)>);

/// Records behind a cursor in their order. They are only ever added behind the last one, so that following the cursor misses and repeats none.
///
/// # Errors
/// Redis cannot answer.
pub async fn ledger(redis: &Client, project: &str, after: Option<&str>, limit: u64) -> Result<Vec<Record>, StoreError> {
    let start = after.map_or_else(|| "-".to_owned(), |cursor| format!("({cursor}"));
    let page: Vec<(String, Vec<String>)> = redis.xrange(name::ledger(project), start, "+", Some(limit)).await?;
    Ok(records(page))
}

/// The newest records, the newest first.
///
/// # Errors
/// Redis cannot answer.
pub async fn newest(redis: &Client, project: &str, limit: u64) -> Result<Vec<Record>, StoreError> {
    Ok(records(redis.xrevrange(name::ledger(project), "+", "-", Some(limit)).await?))
}

/// Entries of a stream as cursors and pairs.
pub(super) fn records(page: Vec<(String, Vec<String>)>) -> Vec<Record> {
    let pair = |pair: &[String]| if let [field, value] = pair { Some((field.clone(), value.clone())) } else { None };
    page.into_iter().map(|(id, flat)| (id, flat.chunks_exact(2).filter_map(pair).collect())).collect()
}

/// What counts towards a project's caps in the running month, which begins on its reset day.
///
/// # Errors
/// Redis cannot answer.
pub async fn this_month(redis: &Client, project: &str, reset_day: u8) -> Result<NanoUsd, StoreError> {
    let (month, spend): (Option<i64>, Option<i64>) = redis.hmget(name::state(project), vec!["month", "spend"]).await?;
    // The state turns to a new month with its first call.
    let runs = month.is_some_and(|month| month >= period(today(), reset_day));
    Ok(NanoUsd(spend.filter(|_| runs).unwrap_or(0)))
}

/// The period of a day, named by the month it began in: 202611. In a shorter month it begins on the last day.
fn period(day: Date, reset_day: u8) -> i64 {
    let reset_day = i8::try_from(reset_day).unwrap_or(1).min(day.last_of_month().day());
    let began = if day.day() < reset_day { day.first_of_month().yesterday().unwrap_or(day) } else { day };
    i64::from(began.year()) * 100 + i64::from(began.month())
}

/// Today, UTC.
#[must_use]
pub fn today() -> Date {
    TimeZone::UTC.to_datetime(Timestamp::now()).date()
}

/// Begins windows anew. What was recorded stays recorded.
#[derive(Clone, Debug, Default)]
pub struct Reset {
    /// `monthly_cap`, the name of a ceiling, or `all`.
    pub window: String,
    /// Of this key; of all keys and senders when neither is named.
    pub key: Option<String>,
    /// Of this sender.
    pub source: Option<String>,
    /// Why.
    pub note: String,
}

/// A signed amount.
#[derive(Clone, Debug, Default)]
pub struct Correction {
    /// Names it: the same again is nothing.
    pub id: String,
    /// More, or less than nothing.
    pub cost: NanoUsd,
    /// The key it is put down to.
    pub key: Option<String>,
    /// The sender it is put down to.
    pub source: Option<String>,
    /// Why.
    pub note: String,
}

pub(super) async fn reset(redis: &Client, scripts: &Scripts, project: &str, reset: &Reset) -> Result<bool, StoreError> {
    let id = format!("reset_{}", hex::encode(rand::random::<[u8; 12]>()));
    let Reset { window, key, source, note } = reset;
    let args = Args::default().text(&id).text(window).text(key.as_deref().unwrap_or("")).text(source.as_deref().unwrap_or("")).text(note);
    done(scripts.reset.run(redis, project, args).await?, project)
}

pub(super) async fn correct(redis: &Client, scripts: &Scripts, project: &str, correction: &Correction) -> Result<bool, StoreError> {
    let Correction { id, cost, key, source, note } = correction;
    let args = Args::default().text(id).text(key.as_deref().unwrap_or("")).text(source.as_deref().unwrap_or("")).number(cost.0).text(note);
    done(scripts.correct.run(redis, project, args).await?, project)
}

fn done(answer: String, project: &str) -> Result<bool, StoreError> {
    match answer.as_str() {
        "done" => Ok(true),
        STATE_MISSING => Err(state_missing(project)),
        _ => Ok(false),
    }
}

/// Makes the state of a project anew if it is lost: from the counter of the month, else from the ledger. Any number may do so at once:
/// nothing is spent or recorded while the state is missing, and the first one writes it.
pub(super) async fn rebuild(redis: &Client, scripts: &Scripts, project: &str) -> Result<(), StoreError> {
    let mut evidence = Args::default();
    loop {
        let answer: Vec<String> = scripts.rebuild.run(redis, project, evidence).await?;
        match answer.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["sum", of, start_ms] => {
                let spend = sum(redis, project, of, start_ms).await?.to_string();
                evidence = Args::default().text(&spend).text(of);
            }
            ["no_evidence"] => {
                return Err(StoreError::Corrupt(format!(
                    "the state of project {project} is gone, and so are its counters and its ledger, or some of the ledger's month: restore \
                     Redis from a backup, or begin at nothing with `proxium spend reset {project} --window monthly_cap`"
                )));
            }
            ["gone"] => return Ok(()),
            _ => {
                tracing::warn!(project, "the state of the project is there again");
                return Ok(());
            }
        }
    }
}

/// What the ledger's records of a month come to, less what resets forgave.
async fn sum(redis: &Client, project: &str, month: &str, start_ms: &str) -> Result<i64, StoreError> {
    const PAGE: u64 = 1_000;
    let (mut sum, mut after) = (0_i64, None::<String>);
    loop {
        let start = after.map_or_else(|| start_ms.to_owned(), |id| format!("({id}"));
        let page: Vec<(String, HashMap<String, String>)> = redis.xrange(name::ledger(project), start, "+", Some(PAGE)).await?;
        for (_, record) in &page {
            if record.get("month").map(String::as_str) == Some(month) {
                let amount = |field: &str| record.get(field).and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
                sum = sum.saturating_add(amount("cost_nano_usd")).saturating_sub(amount("forgiven_nano_usd"));
            }
        }
        let Some((last, _)) = page.into_iter().next_back() else { return Ok(sum) };
        after = Some(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_named_by_the_month_in_which_its_reset_day_was() {
        for (day, reset_day, expected) in [
            ("2026-11-30", 1, 202_611),
            ("2026-11-30", 31, 202_611),
            ("2026-11-29", 31, 202_610),
            ("2027-01-04", 5, 202_612),
            ("2027-01-05", 5, 202_701),
            ("2027-02-28", 30, 202_702),
        ] {
            assert_eq!(period(day.parse().unwrap(), reset_day), expected, "{day} {reset_day}");
        }
    }
}
