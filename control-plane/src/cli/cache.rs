//! `proxium cache …`

use super::remote::{Answer, Fault, Remote, encoded, path};
use clap::Subcommand;

#[derive(Subcommand)]
pub enum Command {
    /// Forget stored answers of a project: all, those of one model, or that of one request.
    Purge {
        /// The project's id.
        project: String,
        /// Only those of this model.
        #[arg(long, conflicts_with = "request_id")]
        model: Option<String>,
        /// Only that of this request (`x-proxium-request-id`).
        #[arg(long)]
        request_id: Option<String>,
    },
}

pub fn run(remote: &Remote, command: Command) -> Result<Answer, Fault> {
    let Command::Purge { project, model, request_id } = command;
    let cache = path(["projects", &project, "cache"]);
    remote.delete(&match (model, request_id) {
        (Some(model), _) => format!("{cache}?model={}", encoded(&model)),
        (None, Some(id)) => format!("{cache}?request_id={}", encoded(&id)),
        (None, None) => cache,
    })
}
