//! The Lua scripts of the money: each one step that no other step can come between. They are one library of Redis functions, which Redis
//! keeps as it keeps data, and which costs a run nothing to make.
//!
//! What calls of one project ask of a function at the same time shares a run, which reads and writes what they have in common once: it costs
//! Redis half of what as many runs would. One run of a function is on its way at a time for a project; what comes meanwhile is the next.

use super::args::Args;
use super::{StoreError, name};
use fred::error::{Error, ErrorKind};
use fred::prelude::*;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// What all functions share.
const COMMON: &str = concat!(
    include_str!("lua/run.lua"),
    include_str!("lua/calendar.lua"),
    include_str!("lua/sums.lua"),
    include_str!("lua/common.lua"),
    include_str!("lua/books.lua"),
    include_str!("lua/each.lua")
);

/// So many calls share a run at most: Redis serves nobody else meanwhile.
const MOST: usize = 64;

/// A call that waits for a run: its arguments, and who wants the answer.
type Call = (Args, oneshot::Sender<Result<Value, StoreError>>);

/// One function of the library.
#[derive(Clone)]
pub(super) struct Script {
    library: Arc<Library>,
    /// As Redis knows it.
    function: String,
    /// Of the projects that have a run on its way, what waits for the next.
    waiting: Arc<Mutex<HashMap<String, Vec<Call>>>>,
}

/// All functions. Names in Redis are made of the code's hash, so that control planes of several versions share a Redis.
struct Library {
    code: String,
    is_loaded: AtomicBool,
}

/// The functions. They need Redis 7.
pub(super) struct Scripts {
    library: Arc<Library>,
    pub reserve: Script,
    pub settle: Script,
    pub release: Script,
    pub expire: Script,
    pub hits: Script,
    pub rebuild: Script,
    pub rewindow: Script,
    pub reset: Script,
    pub correct: Script,
}

// A Redis without room admits no call, but every call it has admitted can end: holds become records, so they are few.
const ADMITS: &str = "";
const ENDS: &str = "'allow-oom'";

/// A function by its file's name: its flags and its code.
macro_rules! functions {
    ($($name:ident $flags:ident),*) => { [$((stringify!($name), $flags, include_str!(concat!("lua/", stringify!($name), ".lua")))),*] };
}

const FUNCTIONS: [(&str, &str, &str); 9] = functions! {
    reserve ADMITS, settle ENDS, release ENDS, expire ENDS, hits ADMITS, rebuild ENDS, rewindow ENDS, reset ENDS, correct ENDS
};

impl Scripts {
    pub fn new() -> Self {
        let version = hex::encode(Sha256::digest(code("")));
        let version = version.get(..16).unwrap_or_default();
        let library = Arc::new(Library { code: code(version), is_loaded: AtomicBool::new(false) });
        let script =
            |name: &str| Script { library: Arc::clone(&library), function: format!("proxium_{name}_{version}"), waiting: Arc::default() };
        Self {
            reserve: script("reserve"),
            settle: script("settle"),
            release: script("release"),
            expire: script("expire"),
            hits: script("hits"),
            rebuild: script("rebuild"),
            rewindow: script("rewindow"),
            reset: script("reset"),
            correct: script("correct"),
            library,
        }
    }

    /// Sees to it that Redis has the library before the first call. A Redis without room takes no new one.
    pub async fn load(&self, redis: &Client) -> Result<(), Error> {
        if self.library.is_loaded.load(Ordering::Relaxed) { Ok(()) } else { self.library.load(redis).await }
    }
}

impl Library {
    /// Where some master has it already, it stays as it is.
    async fn load(&self, redis: &Client) -> Result<(), Error> {
        match redis.function_load_cluster::<(), _>(false, self.code.as_str()).await {
            Err(error) if !error.details().contains("already exists") => Err(error),
            _ => {
                self.is_loaded.store(true, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

impl Script {
    /// Runs it on a project. Its first key is what all names of the project begin with: it has their hash slot. No key has that very name,
    /// and the state nearly always is there: of two such keys a cluster that moves the slot from one master to another key by key answers
    /// neither here nor there (`TRYAGAIN`), so that no script ever sees half a project.
    ///
    /// A caller that is dropped before its run begins asked for nothing; later it takes nothing back.
    pub async fn run<R: FromValue>(&self, redis: &Client, project: &str, args: Args) -> Result<R, StoreError> {
        let (answer, answered) = oneshot::channel();
        let is_first = match self.waiting().entry(project.to_owned()) {
            Entry::Occupied(mut others) => {
                others.get_mut().push((args, answer));
                false
            }
            Entry::Vacant(none) => {
                none.insert(vec![(args, answer)]);
                true
            }
        };
        if is_first {
            let (script, redis, project) = (self.clone(), redis.clone(), project.to_owned());
            tokio::spawn(async move { script.work(&redis, &project).await });
        }
        let answer = answered.await.unwrap_or_else(|_| Err(failed("the control plane ends".to_owned())))?;
        match &answer {
            Value::Array(parts) if parts.first().and_then(Value::as_str).is_some_and(|part| part == "error") => {
                Err(failed(parts.get(1).and_then(Value::as_string).unwrap_or_default()))
            }
            _ => Ok(answer.convert()?),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, Vec<Call>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs it for those that wait until there is none.
    async fn work(&self, redis: &Client, project: &str) {
        loop {
            // Who is ready in this turn comes along.
            tokio::task::yield_now().await;
            let Some(calls) = self.next(project) else { return };
            let count = calls.len();
            let (args, callers): (Vec<Value>, Vec<_>) = calls.into_iter().map(|(args, caller)| (args.into(), caller)).unzip();
            let answers = match self.call(redis, project, args).await {
                Ok(answers) if answers.len() == count => answers.into_iter().map(Ok).collect(),
                Ok(answers) => vec![Err(StoreError::Corrupt(format!("{count} calls got {} answers", answers.len()))); count],
                Err(error) => vec![Err(error.into()); count],
            };
            for (caller, answer) in callers.into_iter().zip(answers) {
                // Who is gone needs none.
                let _ = caller.send(answer);
            }
        }
    }

    /// Where Redis does not know the function (yet, or a master is new) the library is loaded on the way.
    async fn call(&self, redis: &Client, project: &str, args: Vec<Value>) -> Result<Vec<Value>, Error> {
        let keys = vec![name::prefix(project), name::state(project)];
        // Boxed, or each of these would be 7 KiB of the task's own.
        match Box::pin(redis.fcall(self.function.as_str(), keys.clone(), args.clone())).await {
            Err(error) if error.details().contains("Function not found") => {
                if let Err(error) = Box::pin(self.library.load(redis)).await {
                    // Another master may be the one that refuses it.
                    tracing::warn!(%error, "Redis does not take the library of functions");
                }
                Box::pin(redis.fcall(self.function.as_str(), keys, args)).await
            }
            answers => answers,
        }
    }

    /// Takes out the calls of the next run, but whose callers gave up; none: the project has none any more.
    fn next(&self, project: &str) -> Option<Vec<Call>> {
        let mut waiting = self.waiting();
        let calls = waiting.get_mut(project)?;
        calls.retain(|(_, caller)| !caller.is_closed());
        if calls.is_empty() {
            waiting.remove(project);
            return None;
        }
        Some(calls.drain(..calls.len().min(MOST)).collect())
    }
}

/// The library's code, with this in its name and in those of its functions.
fn code(version: &str) -> String {
    let function = |(name, flags, code): (&str, &str, &str)| {
        format!(
            "redis.register_function{{ function_name = 'proxium_{name}_{version}', flags = {{ {flags} }}, callback = (function()\n{code}\nend)() }}\n"
        )
    };
    let functions: String = FUNCTIONS.map(function).concat();
    format!("#!lua name=proxium_{version}\n{}\n{COMMON}{functions}", names())
}

/// As Redis itself would say it.
fn failed(why: String) -> StoreError {
    StoreError::Unavailable(Error::new(ErrorKind::Unknown, why))
}

/// The Lua table of what follows the prefix in the project's names, so that [`name`] alone spells them.
fn names() -> String {
    let of = [
        ("project", name::project("")),
        ("keys", name::keys("")),
        ("key", name::key("", "")),
        ("senders", name::senders("")),
        ("sender", name::sender("", "")),
        ("credentials", name::credentials("")),
        ("state", name::state("")),
        ("key_window", name::key_window("", "")),
        ("sender_window", name::sender_window("", "")),
        ("reservation", name::reservation("", "")),
        ("hits", name::hits("", "")),
        ("due", name::due("")),
        ("held_by_key", name::held_by_key("", "")),
        ("held_by_sender", name::held_by_sender("", "")),
        ("ledger", name::ledger("")),
        ("spend_day", name::spend_day("", "")),
        ("spend_month", name::spend_month("", "")),
    ];
    let prefix = name::prefix("");
    let rows: Vec<String> = of.iter().map(|(kind, full)| format!("{kind} = '{}'", full.strip_prefix(&prefix).unwrap_or(full))).collect();
    format!("local NAMES = {{ {} }}", rows.join(", "))
}
