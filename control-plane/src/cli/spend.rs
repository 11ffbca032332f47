//! `proxium spend …`

use super::remote::{Answer, Fault, Remote, encoded, path};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use ureq::http::Method;

#[derive(Subcommand)]
pub enum Command {
    /// Sum up what a project spent, by model, key, source or day.
    Show {
        /// The project's id.
        project: String,
        /// The first day (UTC), like 2026-11-01; without it the first of the month.
        #[arg(long, value_name = "DAY")]
        from: Option<String>,
        /// The last day; without it today.
        #[arg(long, value_name = "DAY")]
        to: Option<String>,
        /// By what.
        #[arg(long, value_parser = ["model", "key", "source", "day"], default_value = "day")]
        by: String,
    },
    /// Print the records of a project's ledger behind a cursor.
    Ledger {
        /// The project's id.
        project: String,
        /// The cursor of the last record you have.
        #[arg(long, value_name = "CURSOR")]
        after: Option<String>,
        /// At most so many.
        #[arg(long, default_value_t = 1_000)]
        limit: u64,
    },
    /// Begin a window anew, on all replicas at once; what was recorded stays recorded.
    Reset {
        #[command(flatten)]
        of: Of,
        /// Which.
        #[arg(long, value_parser = ["monthly_cap", "calls_per_hour", "requests_per_minute", "tokens_per_minute", "all"])]
        window: String,
        /// Why, for the audit.
        #[arg(long)]
        note: Option<String>,
    },
    /// Add a signed amount to the running month.
    Correct {
        #[command(flatten)]
        of: Of,
        /// The amount in USD, like -1.25.
        #[arg(long, value_name = "USD", allow_hyphen_values = true)]
        cost_usd: String,
        /// Why.
        #[arg(long)]
        note: String,
        /// A name of your own for it: the same again within two hours is nothing.
        #[arg(long)]
        id: Option<String>,
    },
}

/// Whose window, or to whom an amount is put down.
#[derive(Args)]
pub struct Of {
    /// The project's id.
    project: String,
    /// A key of it.
    #[arg(long)]
    key: Option<String>,
    /// A sender of it.
    #[arg(long)]
    source: Option<String>,
}

impl Of {
    fn send(self, remote: &Remote, action: &str, fields: Value) -> Result<Answer, Fault> {
        let given =
            [("key", self.key), ("source", self.source)].into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
        let fields = fields.as_object().cloned().unwrap_or_default().into_iter().filter(|(_, value)| !value.is_null());
        let document: Map<String, Value> = fields.chain(given).collect();
        remote.send(Method::POST, &path(["projects", &self.project, "spend", action]), &document.into())
    }
}

pub fn run(remote: &Remote, command: Command) -> Result<Answer, Fault> {
    match command {
        Command::Show { project, from, to, by } => show(remote, &project, &[("from", from), ("to", to), ("by", Some(by))]),
        Command::Ledger { project, after, limit } => {
            let query = [("after", after), ("limit", Some(limit.to_string()))];
            remote.get(&(path(["projects", &project, "ledger"]) + &asked(&query)))
        }
        Command::Reset { of, window, note } => of.send(remote, "reset", json!({"window": window, "note": note})),
        Command::Correct { of, cost_usd, note, id } => of.send(remote, "correct", json!({"cost_usd": cost_usd, "note": note, "id": id})),
    }
}

/// All pages as one.
fn show(remote: &Remote, project: &str, query: &[(&str, Option<String>)]) -> Result<Answer, Fault> {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let mut query = query.to_vec();
        query.push(("after", after));
        let mut page = remote.get(&(path(["projects", project, "spend"]) + &asked(&query)))?.unwrap_or_default();
        if let Some(Value::Array(more)) = page.get_mut("rows") {
            rows.append(more);
        }
        match page.get("next").and_then(Value::as_str) {
            Some(next) => after = Some(next.to_owned()),
            None => return Ok(Some(json!({ "rows": rows }))),
        }
    }
}

fn asked(query: &[(&str, Option<String>)]) -> String {
    let given: Vec<String> = query.iter().filter_map(|(name, value)| Some(format!("{name}={}", encoded(value.as_ref()?)))).collect();
    format!("?{}", given.join("&"))
}
