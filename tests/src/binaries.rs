//! Where the binaries are: each by an environment variable (`make test-e2e` sets all), else where `make build` and `.dev/tools` put it.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").into()
}

fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// A file of the repository.
#[must_use]
pub fn in_repo(path: &str) -> PathBuf {
    root().join(path)
}

/// `PROXIUM_BIN`, else the newer one of `target/release/proxium` and `target/debug/proxium`.
#[must_use]
pub fn proxium() -> PathBuf {
    let built = |path: &PathBuf| std::fs::metadata(path).and_then(|file| file.modified()).ok();
    named("PROXIUM_BIN").unwrap_or_else(|| {
        let candidates = ["target/release/proxium", "target/debug/proxium"].map(in_repo);
        candidates.into_iter().max_by_key(built).expect("two candidates")
    })
}

/// `PROXIUM_WASM`, else where `make build` puts the filter.
#[must_use]
pub fn wasm() -> PathBuf {
    named("PROXIUM_WASM").unwrap_or_else(|| in_repo("target/wasm32-wasip1/wasm/proxium_filter.wasm"))
}

/// `PROXIUM_ENVOY`, else what `.dev/tools envoy` says.
///
/// # Panics
/// It cannot be had.
#[must_use]
pub fn envoy() -> PathBuf {
    named("PROXIUM_ENVOY").unwrap_or_else(|| tool("envoy"))
}

/// `PROXIUM_REDIS_SERVER`, else what `.dev/tools redis` says.
///
/// # Panics
/// It cannot be had.
#[must_use]
pub fn redis_server() -> PathBuf {
    named("PROXIUM_REDIS_SERVER").unwrap_or_else(|| tool("redis"))
}

/// `PROXIUM_PYTHON_CLIENTS`, else what `.dev/tools python-clients` says: the `PYTHONPATH` of the SDKs.
///
/// # Panics
/// It cannot be had.
#[must_use]
pub fn python_clients() -> PathBuf {
    named("PROXIUM_PYTHON_CLIENTS").unwrap_or_else(|| tool("python-clients"))
}

/// `PROXIUM_NODE`, else what `.dev/tools node` says.
///
/// # Panics
/// It cannot be had.
#[must_use]
pub fn node() -> PathBuf {
    named("PROXIUM_NODE").unwrap_or_else(|| tool("node"))
}

/// `PROXIUM_NODE_CLIENTS`, else what `.dev/tools node-clients` says: where `node_modules` with the SDKs is.
///
/// # Panics
/// It cannot be had.
#[must_use]
pub fn node_clients() -> PathBuf {
    named("PROXIUM_NODE_CLIENTS").unwrap_or_else(|| tool("node-clients"))
}

/// `PROXIUM_AGENT`, else what `.dev/tools agent` says.
///
/// # Panics
/// It cannot be had.
#[must_use]
pub fn agent() -> PathBuf {
    named("PROXIUM_AGENT").unwrap_or_else(|| tool("agent"))
}

/// `PROXIUM_MINILM`, else what `.dev/tools minilm` says: the `PYTHONPATH` of numpy and the sentence model.
///
/// # Panics
/// It cannot be had.
#[must_use]
pub fn minilm() -> PathBuf {
    named("PROXIUM_MINILM").unwrap_or_else(|| tool("minilm"))
}

/// `PROXIUM_CHROMIUM`, else what `.dev/tools chromium` says.
///
/// # Panics
/// It cannot be had.
#[must_use]
pub fn chromium() -> PathBuf {
    named("PROXIUM_CHROMIUM").unwrap_or_else(|| tool("chromium"))
}

/// `PROXIUM_BROWSER`, else what `.dev/tools browser` says: where `node_modules` with playwright-core is.
///
/// # Panics
/// It cannot be had.
#[must_use]
pub fn browser() -> PathBuf {
    named("PROXIUM_BROWSER").unwrap_or_else(|| tool("browser"))
}

fn tool(name: &str) -> PathBuf {
    let output = Command::new(in_repo(".dev/tools")).arg(name).output().expect("bash");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().into()
}
