//! A directory that is gone afterwards.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A fresh directory under the system's temporary one, removed when dropped; `PROXIUM_KEEP=1` keeps it.
#[derive(Debug)]
pub struct Dir(PathBuf);

impl Dir {
    /// Makes one.
    ///
    /// # Panics
    /// It cannot be made.
    #[must_use]
    pub fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let dir = std::env::temp_dir().join(format!("proxium-e2e-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)));
        // Left over by a killed process of the same id.
        std::fs::remove_dir_all(&dir).ok();
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        Self(dir)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if std::env::var_os("PROXIUM_KEEP").is_some() {
            eprintln!("kept: {}", self.0.display());
        } else {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }
}
