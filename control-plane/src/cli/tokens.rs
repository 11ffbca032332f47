//! `proxium tokens …`

use super::remote::{Answer, Fault, Remote, path};
use clap::{Subcommand, ValueEnum};
use serde_json::json;
use ureq::http::Method;

#[derive(Subcommand)]
pub enum Command {
    /// Show all, without their texts.
    List,
    /// Make one; its text is shown this once.
    Create {
        /// Its name, for people: it stands in the audit stream.
        #[arg(long)]
        name: String,
        /// What it allows.
        #[arg(long, value_enum)]
        role: Role,
        /// Refused from this instant on: RFC 3339 with an offset.
        #[arg(long, value_name = "TIME")]
        expires_at: Option<String>,
    },
    /// End one, at once and for ever, and the console's sessions it opened.
    Revoke {
        /// Its id (`tok_…`), not its text.
        token: String,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Role {
    /// Everything.
    Admin,
    /// Reading.
    Viewer,
}

pub fn run(remote: &Remote, command: Command) -> Result<Answer, Fault> {
    match command {
        Command::List => remote.get("tokens"),
        Command::Create { name, role, expires_at } => {
            let role = match role {
                Role::Admin => "admin",
                Role::Viewer => "viewer",
            };
            remote.send(Method::POST, "tokens", &json!({"name": name, "role": role, "expires_at": expires_at}))
        }
        Command::Revoke { token } => remote.delete(&path(["tokens", &token])),
    }
}
