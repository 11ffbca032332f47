//! `proxium projects …`

use super::document::{Base, Document};
use super::remote::{Answer, Fault, Remote, path};
use clap::{Args, Subcommand};
use ureq::http::Method;

#[derive(Subcommand)]
pub enum Command {
    /// Show all.
    List,
    /// Show one.
    Get {
        /// Its id.
        project: String,
    },
    /// Make one.
    Create(Fields),
    /// Change one; what is not named stays.
    Update {
        /// Its id.
        project: String,
        #[command(flatten)]
        fields: Fields,
    },
    /// Delete one and end its keys; its ledger stays.
    Delete {
        /// Its id.
        project: String,
    },
}

#[derive(Args)]
pub struct Fields {
    /// Its name, for people.
    #[arg(long)]
    name: Option<String>,
    /// The most a calendar month may cost, in USD.
    #[arg(long, value_name = "USD")]
    monthly_cap_usd: Option<String>,
    /// The day on which the month begins, 1 to 31.
    #[arg(long, value_name = "DAY")]
    reset_day: Option<u64>,
    /// Past this cost of a month, chat and messages go to the soft cap's chain, in USD.
    #[arg(long, value_name = "USD")]
    soft_cap_usd: Option<String>,
    /// The soft cap's chain.
    #[arg(long, value_name = "MODEL,…", value_delimiter = ',')]
    soft_cap_chain: Option<Vec<String>>,
    /// What a stored answer costs, as a fraction (0 to 1) of what it saved.
    #[arg(long, value_name = "FRACTION")]
    cached_answer_charge: Option<serde_json::Number>,
    /// Whether the same request is answered from the store.
    #[arg(long, value_name = "true|false")]
    cache_exact: Option<bool>,
    /// How long an answer is kept, in seconds.
    #[arg(long, value_name = "SECONDS")]
    cache_ttl_s: Option<u64>,
    /// Whether a question almost like one answered before gets its answer.
    #[arg(long, value_name = "true|false")]
    cache_near: Option<bool>,
    /// How near it must be, as a cosine (0 to 1).
    #[arg(long, value_name = "COSINE")]
    cache_near_threshold: Option<serde_json::Number>,
    /// Whether memories are recalled where a call asks for it.
    #[arg(long, value_name = "true|false")]
    memory: Option<bool>,
    /// Whether `auto` becomes a tier by the catalog's classifier.
    #[arg(long, value_name = "true|false")]
    auto_classify: Option<bool>,
    #[command(flatten)]
    base: Base,
}

impl Fields {
    fn document(self) -> Result<Document, Fault> {
        let mut document = Document::from(&self.base)?;
        document.set("name", self.name);
        document.set("monthly_cap_usd", self.monthly_cap_usd);
        document.set("reset_day", self.reset_day);
        document.set("soft_cap_usd", self.soft_cap_usd);
        document.set("soft_cap_chain", self.soft_cap_chain);
        document.set("cached_answer_charge", self.cached_answer_charge.map(serde_json::Value::Number));
        document.set("cache.exact", self.cache_exact);
        document.set("cache.ttl_s", self.cache_ttl_s);
        document.set("cache.near.enabled", self.cache_near);
        document.set("cache.near.threshold", self.cache_near_threshold.map(serde_json::Value::Number));
        document.set("memory", self.memory);
        document.set("auto_classify", self.auto_classify);
        Ok(document)
    }
}

pub fn run(remote: &Remote, command: Command) -> Result<Answer, Fault> {
    match command {
        Command::List => remote.get("projects"),
        Command::Get { project } => remote.get(&path(["projects", &project])),
        Command::Create(fields) => remote.send(Method::POST, "projects", fields.document()?.value()),
        Command::Update { project, fields } => remote.send(Method::PATCH, &path(["projects", &project]), fields.document()?.value()),
        Command::Delete { project } => remote.delete(&path(["projects", &project])),
    }
}
