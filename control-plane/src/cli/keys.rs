//! `proxium keys …`

use super::document::{Base, Ceilings, Document};
use super::remote::{Answer, Fault, Remote, path};
use clap::{Args, Subcommand};
use serde_json::json;
use ureq::http::Method;

#[derive(Subcommand)]
pub enum Command {
    /// Show all of a project.
    List {
        /// The project's id.
        project: String,
    },
    /// Show one.
    Get(Which),
    /// Make one; its text is shown this once.
    Create {
        /// The project's id.
        project: String,
        #[command(flatten)]
        fields: Fields,
    },
    /// Change one; what is not named stays.
    Update {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        fields: Fields,
    },
    /// Refuse one for ever, everywhere within two seconds.
    Revoke(Which),
    /// Delete one.
    Delete(Which),
}

#[derive(Args)]
pub struct Which {
    /// The project's id.
    project: String,
    /// The key's id (`key_…`), not its text.
    key: String,
}

impl Which {
    fn path(&self) -> String {
        path(["projects", &self.project, "keys", &self.key])
    }
}

#[derive(Args)]
pub struct Fields {
    /// Its name, for people.
    #[arg(long)]
    name: Option<String>,
    /// Refused from this instant on: RFC 3339 with an offset.
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
    /// A model it may use; without any it may use all. May be given several times.
    #[arg(long = "allowed-model", value_name = "MODEL")]
    allowed_models: Vec<String>,
    #[command(flatten)]
    ceilings: Ceilings,
    #[command(flatten)]
    base: Base,
}

impl Fields {
    fn document(self) -> Result<Document, Fault> {
        let mut document = Document::from(&self.base)?;
        document.set("name", self.name);
        document.set("expires_at", self.expires_at);
        document.set("allowed_models", Some(self.allowed_models).filter(|models| !models.is_empty()));
        self.ceilings.set(&mut document);
        Ok(document)
    }
}

pub fn run(remote: &Remote, command: Command) -> Result<Answer, Fault> {
    match command {
        Command::List { project } => remote.get(&path(["projects", &project, "keys"])),
        Command::Get(which) => remote.get(&which.path()),
        Command::Create { project, fields } => remote.send(Method::POST, &path(["projects", &project, "keys"]), fields.document()?.value()),
        Command::Update { which, fields } => remote.send(Method::PATCH, &which.path(), fields.document()?.value()),
        Command::Revoke(which) => remote.send(Method::PATCH, &which.path(), &json!({"revoked": true})),
        Command::Delete(which) => remote.delete(&which.path()),
    }
}
