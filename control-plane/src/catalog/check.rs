//! `proxium check CATALOG`.

use super::{Catalog, load, load_without_credentials};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `proxium check`.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckArgs {
    /// The catalog's file.
    pub catalog: PathBuf,
    /// Do not ask for the credentials that it names (for a check before they exist, as in CI).
    #[arg(long)]
    pub without_credentials: bool,
}

/// Prints `ok: …` and what the catalog holds; or every fault, to standard error, and exits with 1.
#[must_use]
pub fn check(args: &CheckArgs) -> ExitCode {
    let load = if args.without_credentials { load_without_credentials } else { load };
    // A closed pipe is nobody's fault.
    match load(&args.catalog) {
        Ok(catalog) => {
            let _ = writeln!(std::io::stdout(), "ok: {}", summary(&catalog));
            ExitCode::SUCCESS
        }
        Err(faults) => {
            let _ = writeln!(std::io::stderr(), "{faults}\n{}: {} to mend", args.catalog.display(), count(faults.len(), "fault"));
            ExitCode::FAILURE
        }
    }
}

fn summary(catalog: &Catalog) -> String {
    let parts = [(catalog.providers.len(), "provider"), (catalog.models.len(), "model"), (catalog.chains.len(), "chain")];
    parts.map(|(number, what)| count(number, what)).join(", ")
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
