//! The catalog, kept current while the process runs.

use super::load::Inputs;
use super::{Catalog, Faults};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

const POLL: Duration = Duration::from_millis(500);
/// An editor may write a file in several steps, and half a file can be a valid catalog: a change counts when it has held this long.
const SETTLE: Duration = Duration::from_millis(50);

type OnSwap = dyn Fn(&Catalog) -> Result<(), String> + Send;

/// A catalog that follows its file and its credential files. A bad edit is refused and the last good catalog kept. Cheap to clone; the
/// watch ends with the last clone.
#[derive(Clone)]
pub struct Watched(Arc<RwLock<State>>);

struct State {
    catalog: Arc<Catalog>,
    fault: Option<String>,
}

impl Watched {
    /// Loads the catalog and watches it: its content, and that of the credential files, each half second.
    ///
    /// `on_swap` runs for the first catalog and before each later one is shown, for example to render Envoy's files. If it fails, the old
    /// catalog stays and the swap is tried again at each poll. It runs on a thread of its own and may block.
    ///
    /// # Errors
    /// The first catalog is not good, or `on_swap` failed for it.
    pub fn start(path: PathBuf, on_swap: impl Fn(&Catalog) -> Result<(), String> + Send + 'static) -> Result<Self, Faults> {
        Self::start_polling(path, POLL, Box::new(on_swap))
    }

    pub(super) fn start_polling(path: PathBuf, poll: Duration, on_swap: Box<OnSwap>) -> Result<Self, Faults> {
        let (inputs, catalog) = Inputs::read(&path);
        let catalog = catalog?;
        on_swap(&catalog).map_err(Faults::whole)?;
        let state = Arc::new(RwLock::new(State { catalog: Arc::new(catalog), fault: None }));
        let watch = Watch { path, poll, on_swap, inputs, retry: false, state: Arc::downgrade(&state) };
        // A thread, not a task: reading files and `on_swap` block.
        std::thread::Builder::new()
            .name("catalog".to_owned())
            .spawn(move || watch.run())
            .map_err(|error| Faults::whole(format!("cannot watch the catalog: {error}")))?;
        Ok(Self(state))
    }

    /// The last good catalog.
    #[must_use]
    pub fn current(&self) -> Arc<Catalog> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).catalog.clone()
    }

    /// Why the file as it is now is not the current catalog; `None` when it is.
    #[must_use]
    pub fn last_fault(&self) -> Option<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).fault.clone()
    }
}

struct Watch {
    path: PathBuf,
    poll: Duration,
    on_swap: Box<OnSwap>,
    inputs: Inputs,
    /// `on_swap` failed for these inputs.
    retry: bool,
    state: Weak<RwLock<State>>,
}

impl Watch {
    fn run(mut self) {
        loop {
            std::thread::sleep(self.poll);
            if self.state.strong_count() == 0 {
                return;
            }
            if self.retry || !self.inputs.unchanged(&self.path) {
                self.take();
            }
        }
    }

    fn take(&mut self) {
        let (inputs, catalog) = read_settled(&self.path);
        let Some(state) = self.state.upgrade() else { return };
        let current = state.read().unwrap_or_else(PoisonError::into_inner).catalog.clone();
        (self.inputs, self.retry) = (inputs, false);
        let outcome = match catalog {
            Ok(catalog) if catalog == *current => Ok(None),
            Ok(catalog) => (self.on_swap)(&catalog).map(|()| Some(catalog)).inspect_err(|_| self.retry = true),
            Err(faults) => Err(faults.to_string()),
        };
        match outcome {
            Ok(new) => {
                let mut state = state.write().unwrap_or_else(PoisonError::into_inner);
                state.fault = None;
                if let Some(catalog) = new {
                    tracing::info!(revision = catalog.revision(), "the catalog changed");
                    state.catalog = Arc::new(catalog);
                }
            }
            Err(fault) => refuse(&state, fault),
        }
    }
}

/// Logged once: the same fault again is silent.
fn refuse(state: &RwLock<State>, fault: String) {
    let mut state = state.write().unwrap_or_else(PoisonError::into_inner);
    if state.fault.as_ref() != Some(&fault) {
        tracing::error!("the catalog's last edit is refused, the one before stays in use:\n{fault}");
        state.fault = Some(fault);
    }
}

fn read_settled(path: &Path) -> (Inputs, Result<Catalog, Faults>) {
    let mut last = Inputs::read(path);
    // A file that never rests is read as it is after a while, rather than never.
    for _ in 0..10 {
        std::thread::sleep(SETTLE);
        if last.0.unchanged(path) {
            break;
        }
        last = Inputs::read(path);
    }
    last
}
