//! `proxium credentials …`. Secrets come from standard input or a file, never from an argument, which every process can see.

use super::document::read;
use super::remote::{Answer, Fault, Remote, encoded, path};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::PathBuf;
use ureq::http::Method;

#[derive(Subcommand)]
pub enum Command {
    /// Show for which providers a project has its own.
    List {
        /// The project's id.
        project: String,
    },
    /// Set one; the secret is read from standard input unless a file is named.
    Set {
        #[command(flatten)]
        which: Which,
        /// A file that holds the secret alone.
        #[arg(long, value_name = "FILE", default_value = "-")]
        secret_file: PathBuf,
    },
    /// Take one away: the platform's serves again.
    Delete(Which),
    /// Seal the credentials of all projects anew by the first key of PROXIUM_SEAL_KEY; tells what cannot be read. May be repeated.
    Reseal,
}

#[derive(Args)]
pub struct Which {
    /// The project's id.
    project: String,
    /// The provider's name in the catalog.
    provider: String,
}

impl Which {
    fn path(&self) -> String {
        path(["projects", &self.project, "credentials", &self.provider])
    }
}

pub fn run(remote: &Remote, command: Command) -> Result<Answer, Fault> {
    match command {
        Command::List { project } => remote.get(&path(["projects", &project, "credentials"])),
        Command::Set { which, secret_file } => {
            let secret = read(&secret_file)?;
            remote.send(Method::PUT, &which.path(), &json!({"secret": secret.trim()}))
        }
        Command::Delete(which) => remote.delete(&which.path()),
        Command::Reseal => reseal(remote),
    }
}

/// Page by page, and the sum of what came of them.
fn reseal(remote: &Remote) -> Result<Answer, Fault> {
    let (mut resealed, mut already, mut unreadable, mut page) = (0, 0, Vec::new(), path(["credentials", "reseal"]));
    loop {
        let answer = remote.send(Method::POST, &page, &json!({}))?.unwrap_or_default();
        let count = |name: &str| answer.get(name).and_then(Value::as_u64).unwrap_or(0);
        resealed += count("resealed");
        already += count("already");
        unreadable.extend(answer.get("unreadable").and_then(Value::as_array).into_iter().flatten().cloned());
        let Some(next) = answer.get("next").and_then(Value::as_str) else {
            return Ok(Some(json!({"key": answer.get("key"), "resealed": resealed, "already": already, "unreadable": unreadable})));
        };
        page = format!("{}?after={}", path(["credentials", "reseal"]), encoded(next));
    }
}
