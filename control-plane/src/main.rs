//! The proxium binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    proxium::cli::run()
}
