//! `proxium render …`.

use super::{EnvoyFlags, SecretFlags, install};
use crate::catalog::load_without_credentials;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `proxium render`.
#[derive(Clone, clap::Args)]
pub struct RenderArgs {
    #[command(subcommand)]
    target: Target,
}

#[derive(Clone, clap::Subcommand)]
enum Target {
    /// Write the files of a standalone Envoy; one that runs on them takes them up.
    Envoy(EnvoyArgs),
}

/// Arguments of `proxium render envoy`.
#[derive(Clone, clap::Args)]
pub struct EnvoyArgs {
    /// The catalog's file; the credentials that it names are not needed.
    #[arg(long, value_name = "FILE")]
    pub catalog: PathBuf,
    /// The directory to write to.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// The shared secret.
    #[command(flatten)]
    pub secret: SecretFlags,
    /// The rest.
    #[command(flatten)]
    pub envoy: EnvoyFlags,
}

/// Renders and says how to start Envoy; or prints what is wrong to standard error and exits with 1.
#[must_use]
pub fn command(args: &RenderArgs) -> ExitCode {
    let Target::Envoy(args) = &args.target;
    // A closed pipe is nobody's fault.
    match render(args) {
        Ok(()) => {
            let bootstrap = args.out.join("bootstrap.yaml");
            let _ = writeln!(std::io::stdout(), "ok: envoy -c {}", bootstrap.display());
            ExitCode::SUCCESS
        }
        Err(fault) => {
            let _ = writeln!(std::io::stderr(), "{fault}");
            ExitCode::FAILURE
        }
    }
}

fn render(args: &EnvoyArgs) -> Result<(), String> {
    let catalog = load_without_credentials(&args.catalog).map_err(|faults| faults.to_string())?;
    install(&catalog, &args.envoy, &args.secret.read()?, &args.out)
}
