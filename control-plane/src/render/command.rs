//! `proxium render …`.

use super::{EnvoyFlags, IstioArgs, SecretFlags, install, istio, write};
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
    /// Write manifests for Istio: an EnvoyFilter, and what the providers and the internal port need.
    Istio(IstioArgs),
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
    let rendered = match &args.target {
        Target::Envoy(args) => envoy(args).map(|()| format!("envoy -c {}", args.out.join("bootstrap.yaml").display())),
        Target::Istio(args) => mesh(args).map(|()| format!("kubectl apply -f {}", args.out.display())),
    };
    // A closed pipe is nobody's fault.
    match rendered {
        Ok(next) => {
            let _ = writeln!(std::io::stdout(), "ok: {next}");
            ExitCode::SUCCESS
        }
        Err(fault) => {
            let _ = writeln!(std::io::stderr(), "{fault}");
            ExitCode::FAILURE
        }
    }
}

fn mesh(args: &IstioArgs) -> Result<(), String> {
    let catalog = load_without_credentials(&args.catalog).map_err(|faults| faults.to_string())?;
    let files = istio(&catalog, args, &args.secret.read()?)?;
    let written = std::fs::create_dir_all(&args.out).and_then(|()| write(&args.out, &files));
    written.map_err(|error| format!("cannot write into {}: {error}", args.out.display()))
}

fn envoy(args: &EnvoyArgs) -> Result<(), String> {
    let catalog = load_without_credentials(&args.catalog).map_err(|faults| faults.to_string())?;
    install(&catalog, &args.envoy, &args.secret.read()?, &args.out)
}
