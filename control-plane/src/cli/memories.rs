//! `proxium memories …`

use super::remote::{Answer, Fault, Remote, encoded, path};
use clap::Subcommand;
use serde_json::json;
use ureq::http::Method;

#[derive(Subcommand)]
pub enum Command {
    /// Show those of the project and of its end users, newest first.
    List {
        /// The project's id.
        project: String,
        /// Only those of this end user.
        #[arg(long)]
        end_user: Option<String>,
    },
    /// Add one.
    Add {
        /// The project's id.
        project: String,
        /// What is to be remembered.
        text: String,
        /// Of whom; without it, of the project: every call that recalls gets it.
        #[arg(long)]
        end_user: Option<String>,
        /// When it is to be forgotten, like 2027-01-31T12:00:00+01:00.
        #[arg(long, value_name = "TIME")]
        expires_at: Option<String>,
    },
    /// Delete one, those of an end user, or all; and the stored answers that came of them.
    Delete {
        /// The project's id.
        project: String,
        /// The memory's id.
        #[arg(required_unless_present_any = ["end_user", "all"])]
        memory: Option<String>,
        /// All of this end user.
        #[arg(long, conflicts_with = "memory")]
        end_user: Option<String>,
        /// All of the project and of its end users.
        #[arg(long, conflicts_with_all = ["memory", "end_user"])]
        all: bool,
    },
}

pub fn run(remote: &Remote, command: Command) -> Result<Answer, Fault> {
    let of = |project: &str, end_user: Option<String>| {
        let memories = path(["projects", project, "memories"]);
        end_user.map_or(memories.clone(), |end_user| format!("{memories}?end_user={}", encoded(&end_user)))
    };
    match command {
        Command::List { project, end_user } => remote.get(&of(&project, end_user)),
        Command::Add { project, text, end_user, expires_at } => {
            let document = json!({"text": text, "end_user": end_user, "expires_at": expires_at});
            remote.send(Method::POST, &of(&project, None), &document)
        }
        Command::Delete { project, memory: Some(memory), .. } => remote.delete(&path(["projects", &project, "memories", &memory])),
        Command::Delete { project, memory: None, end_user, .. } => remote.delete(&of(&project, end_user)),
    }
}
