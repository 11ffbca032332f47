//! `proxium audit …`

use super::remote::{Answer, Fault, Remote, encoded};
use clap::Subcommand;

#[derive(Subcommand)]
pub enum Command {
    /// Show who changed what, the newest first.
    List {
        /// Go on behind this page: its `next`.
        #[arg(long, value_name = "CURSOR", conflicts_with = "after")]
        before: Option<String>,
        /// The oldest first, from right behind this cursor (`0-0`: from the beginning), as an export needs it.
        #[arg(long, value_name = "CURSOR")]
        after: Option<String>,
        /// The most entries.
        #[arg(long, default_value_t = 100)]
        limit: u32,
    },
}

pub fn run(remote: &Remote, command: Command) -> Result<Answer, Fault> {
    let Command::List { before, after, limit } = command;
    let mut query = format!("audit?limit={limit}");
    for (name, cursor) in [("before", before), ("after", after)] {
        if let Some(cursor) = cursor {
            query += &format!("&{name}={}", encoded(&cursor));
        }
    }
    remote.get(&query)
}
