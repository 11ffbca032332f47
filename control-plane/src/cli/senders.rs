//! `proxium senders …`

use super::document::{Base, Ceilings, Document};
use super::remote::{Answer, Fault, Remote, path};
use clap::{Args, Subcommand};
use ureq::http::Method;

#[derive(Subcommand)]
pub enum Command {
    /// Show all of a project that have settings.
    List {
        /// The project's id.
        project: String,
    },
    /// Show one.
    Get(Which),
    /// Set rules and ceilings of one, in the place of all it had.
    Set {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        ceilings: Ceilings,
        #[command(flatten)]
        base: Base,
    },
    /// Take the settings of one away.
    Delete(Which),
}

#[derive(Args)]
pub struct Which {
    /// The project's id.
    project: String,
    /// The value of `x-proxium-source`.
    source: String,
}

impl Which {
    fn path(&self) -> String {
        path(["projects", &self.project, "senders", &self.source])
    }
}

pub fn run(remote: &Remote, command: Command) -> Result<Answer, Fault> {
    match command {
        Command::List { project } => remote.get(&path(["projects", &project, "senders"])),
        Command::Get(which) => remote.get(&which.path()),
        Command::Set { which, ceilings, base } => {
            let mut document = Document::from(&base)?;
            ceilings.set(&mut document);
            remote.send(Method::PUT, &which.path(), document.value())
        }
        Command::Delete(which) => remote.delete(&which.path()),
    }
}
