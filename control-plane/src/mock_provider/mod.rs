//! A provider that costs nothing and does as it is told: for the demo (`proxium mock-provider`) and, in-process, for the tests.
//!
//! It speaks both dialects under any path prefix: `…/chat/completions`, `…/responses`, `…/embeddings`, `…/moderations`, `…/rerank`,
//! `…/models` (OpenAI) and `…/messages`, `…/messages/count_tokens` (Anthropic), unary and as SSE. It asks for no credential. An answer is `You said: ` and the text of the
//! last user message, up to a stop sequence. Usage is counted in whitespace-separated words: input over all message texts, output over the answer, times `n`.
//!
//! A model whose name contains `mock-` and one of these words (or a request header `x-mock: mock-…`, which wins) asks for it:
//!
//! | name | what happens |
//! |---|---|
//! | `mock-error-<status>` | this status with an error of the dialect; 429 with `retry-after: 1` |
//! | `mock-hang` | the request is read, nothing is sent |
//! | `mock-slow-<ms>` | an answer, after this long |
//! | `mock-paced-<ms>` | a stream with an event each so often |
//! | `mock-cut`, `mock-close` | a stream of three events, then RST; or the end of the body |
//! | `mock-reset` | RST before any byte |
//! | `mock-reset-mid-body` | headers of a 200, half a body, RST |
//! | `mock-empty` | 200 without a body |
//! | `mock-html` | 200 with a page for people |
//! | `mock-200-error` | 200 whose body is an error |
//! | `mock-not-json`, `mock-not-object` | 200 with a cut JSON text, with `[]` |
//! | `mock-no-choices` | 200 with an empty list of choices |
//! | `mock-no-usage` | an answer without `usage` |
//! | `mock-cached-<n>` | an answer whose usage says that `n` input tokens came from the provider's cache |
//! | `mock-length` | an answer cut at the token limit |
//! | `mock-huge-<bytes>` | an answer of at least this size, at most 64 MiB |
//! | `mock-mirror` | the answer's text is the body of the request |
//! | `mock-tools` | each line `call NAME {…}` of the user becomes a tool call; to their results the answer is `Results: …` |
//! | `mock-thinking` | thinking, then an answer |
//! | `mock-gzip` | an answer, compressed if the request accepts it |
//!
//! In-process, [`Mock`] also takes scripts by model, holds calls at a gate and tells what it got.

mod anthropic;
mod behaviour;
mod call;
mod endpoints;
mod openai;
mod respond;
mod responses;
mod script;
mod socket;
mod sse;
#[cfg(test)]
mod tests;

pub use behaviour::Behaviour;
pub use sse::{End, Steps};

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use serde_json::Value;
use socket::{Counts, Reset, Sockets};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// As the model of a script: any model.
pub const ANY: &str = "*";

/// `proxium mock-provider`
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where to listen.
    #[arg(long, env = "PROXIUM_MOCK_LISTEN", default_value = "127.0.0.1:10002")]
    pub listen: SocketAddr,
}

/// Serves until the process ends.
///
/// # Errors
/// The address cannot be listened on.
pub async fn command(args: Args) -> io::Result<()> {
    let listener = tokio::net::TcpListener::bind(args.listen).await?;
    tracing::info!(listen = %listener.local_addr()?, "mock provider is ready");
    serve(listener, Arc::new(Shared::new(false))).await
}

async fn serve(listener: tokio::net::TcpListener, shared: Arc<Shared>) -> io::Result<()> {
    let sockets = Sockets { listener, counts: shared.counts.clone() };
    let router = Router::new().fallback(respond::respond).with_state(shared);
    axum::serve(sockets, router.into_make_service_with_connect_info::<Reset>()).await
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Captured {
    /// Path and query.
    pub path: String,
    /// All headers.
    pub headers: HeaderMap,
    /// The body as it came.
    pub body: Bytes,
    /// The body's `model`; empty: none.
    pub model: String,
    /// When its headers were read.
    pub at: Instant,
}

impl Captured {
    /// The body, `null` if it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// A header's value as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

#[derive(Default)]
struct Scripts {
    next: HashMap<String, VecDeque<Behaviour>>,
    always: HashMap<String, Behaviour>,
}

struct Shared {
    /// A long-lived mock must not keep every request.
    captures: bool,
    calls: AtomicU64,
    requests: Mutex<Vec<Captured>>,
    scripts: Mutex<Scripts>,
    gate: watch::Sender<bool>,
    waiting: AtomicU64,
    counts: Arc<Counts>,
}

/// A panic elsewhere does not make the data wrong.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn new(captures: bool) -> Self {
        Self {
            captures,
            calls: AtomicU64::new(0),
            requests: Mutex::default(),
            scripts: Mutex::default(),
            gate: watch::Sender::new(true),
            waiting: AtomicU64::new(0),
            counts: Arc::default(),
        }
    }

    /// The number of the call, from 1.
    fn capture(&self, request: Captured) -> u64 {
        if self.captures {
            locked(&self.requests).push(request);
        }
        self.calls.fetch_add(1, SeqCst) + 1
    }

    /// Scripts beat the header, the header beats the model's name.
    fn behaviour(&self, model: &str, by_header: Option<&str>) -> Behaviour {
        let mut scripts = locked(&self.scripts);
        for name in [model, ANY] {
            if let Some(next) = scripts.next.get_mut(name).and_then(VecDeque::pop_front) {
                return next;
            }
        }
        let always = [model, ANY].into_iter().find_map(|name| scripts.always.get(name));
        always.cloned().unwrap_or_else(|| Behaviour::by_name(by_header.unwrap_or(model)))
    }

    async fn wait_at_the_gate(&self) {
        /// Counts down even if the client leaves and the call is dropped.
        struct Waiting<'a>(&'a AtomicU64);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
            }
        }
        self.waiting.fetch_add(1, SeqCst);
        let _waiting = Waiting(&self.waiting);
        // Fails only when the sender is gone; it lives beside us.
        self.gate.subscribe().wait_for(|open| *open).await.ok();
    }
}

/// A mock provider in this process, on a thread of its own; gone, with all its connections, when dropped.
pub struct Mock {
    addr: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

impl Mock {
    /// Listens; port 0 picks a free one.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn start(addr: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("mock-provider").enable_all().build()?;
        let shared = Arc::new(Shared::new(true));
        let served = shared.clone();
        let in_runtime = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        runtime.spawn(serve(listener, served));
        drop(in_runtime);
        Ok(Self { addr, shared, runtime: Some(runtime) })
    }

    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Treats the next calls of a model ([`ANY`]: of every model) like this, one after the other, before any [`Mock::always`].
    pub fn next(&self, model: &str, behaviours: impl IntoIterator<Item = Behaviour>) {
        locked(&self.shared.scripts).next.entry(model.into()).or_default().extend(behaviours);
    }

    /// Treats all calls of a model ([`ANY`]: of every model) like this, until told otherwise.
    pub fn always(&self, model: &str, behaviour: Behaviour) {
        locked(&self.shared.scripts).always.insert(model.into(), behaviour);
    }

    /// Forgets all scripts.
    pub fn behave(&self) {
        *locked(&self.shared.scripts) = Scripts::default();
    }

    /// Closes the gate: from now on calls are read and then wait until it is opened or dropped.
    pub fn gate(&self) -> Gate {
        self.shared.gate.send_replace(false);
        Gate { shared: self.shared.clone() }
    }

    /// All requests so far, oldest first.
    #[must_use]
    pub fn requests(&self) -> Vec<Captured> {
        locked(&self.shared.requests).clone()
    }

    /// How many requests named this model ([`ANY`]: how many there were).
    #[must_use]
    pub fn calls(&self, model: &str) -> usize {
        locked(&self.shared.requests).iter().filter(|request| model == ANY || request.model == model).count()
    }

    /// Forgets the requests so far.
    pub fn forget(&self) {
        locked(&self.shared.requests).clear();
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn accepted_connections(&self) -> u64 {
        self.shared.counts.accepted.load(SeqCst)
    }

    /// Connections open now.
    #[must_use]
    pub fn open_connections(&self) -> u64 {
        self.shared.counts.open.load(SeqCst)
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        // Dropping a runtime inside another one would panic; this does not wait.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Holds a mock's answers back; dropping it opens it.
#[must_use]
pub struct Gate {
    shared: Arc<Shared>,
}

impl Gate {
    /// How many calls wait now.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.shared.waiting.load(SeqCst)
    }

    /// Lets all calls go on, those that wait and those to come.
    pub fn open(self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.gate.send_replace(true);
    }
}
