//! Files into the directory that Envoy watches.

use super::retire::Retired;
use super::{EnvoyFlags, File, envoy};
use crate::catalog::Catalog;
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

const RETIRED: &str = "retired.json";

/// Renders into `dir` (made if absent), the filter included: all that `proxium render envoy` does.
///
/// # Errors
/// The filter cannot be read, or a file cannot be written; the text says which.
pub fn install(catalog: &Catalog, flags: &EnvoyFlags, internal_secret: &str, dir: &Path) -> Result<(), String> {
    let cannot = |error: io::Error| format!("cannot write Envoy's files into {}: {error}", dir.display());
    std::fs::create_dir_all(dir).map_err(cannot)?;
    let wasm = wasm_by_hash(dir, &flags.wasm)?;
    let envoy_dir = match &flags.envoy_dir {
        Some(envoy_dir) => envoy_dir.clone(),
        None => dir.canonicalize().map_err(cannot)?,
    };
    let options = flags.options(envoy_dir.clone(), envoy_dir.join(wasm), internal_secret.to_owned());
    let mut files = envoy(catalog, &options)?;
    let retired = carry_over(catalog, dir, &mut files)?;
    write(dir, &files).and_then(|()| write(dir, &[retired])).map_err(cannot)
}

/// Keeps clusters that the catalog no longer names as long as a call may be on them.
fn carry_over(catalog: &Catalog, dir: &Path, files: &mut [File]) -> Result<File, String> {
    let read = |name| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    let mut retired: Retired = serde_json::from_str(&read(RETIRED)).unwrap_or_default();
    let now_s = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    // The latest deadline, and the time until the last filter has heard of the new catalog and settled.
    let keep_s = catalog.limits.max_timeout_ms / 1000 + 60;
    if let Some(cds) = files.iter_mut().find(|file| file.path == "cds.yaml") {
        cds.text = retired.carry_over(&read("cds.yaml"), std::mem::take(&mut cds.text), now_s, keep_s);
    }
    let text = serde_json::to_string(&retired).map_err(|error| error.to_string())?;
    Ok(File { path: RETIRED.to_owned(), text, secret: false })
}

/// Writes each file whose content is new, in order, by a temporary file and a rename: Envoy watches for renames and never sees a half.
///
/// # Errors
/// A file cannot be written.
pub fn write(dir: &Path, files: &[File]) -> io::Result<()> {
    for file in files {
        let path = dir.join(&file.path);
        if std::fs::read(&path).is_ok_and(|old| old == file.text.as_bytes()) {
            continue;
        }
        replace(&path, file.text.as_bytes(), if file.secret { 0o600 } else { 0o644 })?;
    }
    Ok(())
}

/// Copies the filter into `dir` as `proxium-<hash of its content>.wasm` and returns that name: Envoy loads new code only under a new
/// name. A copy, not a link: a build overwrites its output in place.
///
/// # Errors
/// The filter is absent or no wasm, or cannot be copied.
pub fn wasm_by_hash(dir: &Path, wasm: &Path) -> Result<PathBuf, String> {
    let code = std::fs::read(wasm)
        .map_err(|error| format!("cannot read the filter {}: {error}; build it, or name it with --wasm", wasm.display()))?;
    if !code.starts_with(b"\0asm") {
        return Err(format!("{} is no wasm module", wasm.display()));
    }
    let hash = hex::encode(Sha256::digest(&code));
    let name = PathBuf::from(format!("proxium-{}.wasm", hash.get(..16).unwrap_or(&hash)));
    let path = dir.join(&name);
    if !path.exists() {
        replace(&path, &code, 0o644).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(name)
}

fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.new", std::process::id()));
    let temporary = PathBuf::from(temporary);
    // A left-over of a process that had this id and died would keep its mode.
    let _ = std::fs::remove_file(&temporary);
    let written = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary);
    written.and_then(|mut file| file.write_all(content))?;
    std::fs::rename(&temporary, path)
}
