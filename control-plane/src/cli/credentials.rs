//! `proxium credentials …`. Secrets come from standard input or a file, never from an argument, which every process can see.

use super::document::read;
use super::remote::{Answer, Fault, Remote, path};
use clap::{Args, Subcommand};
use serde_json::json;
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
    }
}
