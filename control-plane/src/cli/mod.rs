//! The commands. Exit codes: 0 done, 1 refused or wrong, 2 not a command, 3 the control plane cannot be reached or cannot answer.

mod audit;
mod cache;
mod credentials;
mod document;
mod keys;
mod memories;
mod output;
mod projects;
mod remote;
mod senders;
mod serve;
mod spend;
mod tokens;

use crate::{catalog, mock_provider, render};
use clap::{Parser, Subcommand, ValueEnum};
use remote::{Answer, Remote};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// A self-hosted LLM gateway inside Envoy: keys, budgets, failover, exact cost.
#[derive(Parser)]
#[command(name = "proxium", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the control plane.
    Serve(Box<serve::Args>),
    /// Check a catalog and tell every fault.
    Check(catalog::CheckArgs),
    /// Render Envoy's configuration from a catalog.
    Render(Box<render::RenderArgs>),
    /// Run a provider that costs nothing, for trying out and tests.
    MockProvider(mock_provider::Args),
    /// Projects: budgets, rules, cache.
    Projects(On<projects::Command>),
    /// Keys of a project.
    Keys(On<keys::Command>),
    /// Rules and ceilings by `x-proxium-source` value.
    Senders(On<senders::Command>),
    /// A project's own credentials for providers.
    Credentials(On<credentials::Command>),
    /// What is remembered of a project and of its end users.
    Memories(On<memories::Command>),
    /// Stored answers of a project.
    Cache(On<cache::Command>),
    /// What a project spent: sums, ledger, resets, corrections.
    Spend(On<spend::Command>),
    /// Tokens of the admin API and the console.
    Tokens(On<tokens::Command>),
    /// Who changed what.
    Audit(On<audit::Command>),
}

/// A command on the admin API of a running control plane.
#[derive(clap::Args)]
struct On<C: Subcommand> {
    #[command(flatten)]
    remote: Remote,
    #[command(subcommand)]
    command: C,
}

/// How log lines are written, to standard error.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Log {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Runs the command that the arguments name.
#[must_use]
pub fn run() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => {
            log(args.log);
            in_runtime(serve::serve(*args))
        }
        Command::MockProvider(args) => {
            log(Log::Text);
            in_runtime(async { mock_provider::command(args).await.map_err(|error| format!("mock provider: {error}")) })
        }
        Command::Check(args) => catalog::check(&args),
        Command::Render(args) => render::command(&args),
        Command::Projects(on) => tell(&on.remote, projects::run(&on.remote, on.command)),
        Command::Keys(on) => tell(&on.remote, keys::run(&on.remote, on.command)),
        Command::Senders(on) => tell(&on.remote, senders::run(&on.remote, on.command)),
        Command::Credentials(on) => tell(&on.remote, credentials::run(&on.remote, on.command)),
        Command::Memories(on) => tell(&on.remote, memories::run(&on.remote, on.command)),
        Command::Cache(on) => tell(&on.remote, cache::run(&on.remote, on.command)),
        Command::Spend(on) => tell(&on.remote, spend::run(&on.remote, on.command)),
        Command::Tokens(on) => tell(&on.remote, tokens::run(&on.remote, on.command)),
        Command::Audit(on) => tell(&on.remote, audit::run(&on.remote, on.command)),
    }
}

/// `RUST_LOG` sets the levels; `info` by default. The Redis client's own lines about every reconnect would drown ours.
fn log(log: Log) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,fred=error"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match log {
        Log::Text => lines.with_target(false).with_ansi(std::io::stderr().is_terminal()).init(),
        Log::Json => lines.json().flatten_event(true).init(),
    }
}

fn in_runtime(work: impl Future<Output = Result<(), String>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let outcome = runtime.map_err(|error| format!("cannot start: {error}")).and_then(|runtime| {
        let outcome = runtime.block_on(work);
        // What is left are tasks that never end by themselves.
        runtime.shutdown_background();
        outcome
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => fail(&fault, 1),
    }
}

fn tell(remote: &Remote, answer: Result<Answer, remote::Fault>) -> ExitCode {
    match answer {
        Ok(answer) => match output::print(answer.as_ref(), remote.output, remote.field.as_deref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(fault) => fail(&fault, 1),
        },
        Err(fault) => fail(&fault.to_string(), fault.exit_code()),
    }
}

fn fail(fault: &str, code: u8) -> ExitCode {
    // With standard error closed there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "{fault}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_commands_contradict_nothing() {
        super::Cli::command().debug_assert();
    }
}
