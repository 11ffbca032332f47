//! The Lua scripts: each one step that no other step can come between.
//!
//! What calls of one project ask of a script at the same time shares a run, which reads and writes what they have in common once: it costs
//! Redis half of what as many runs would. One run of a script is on its way at a time for a project; what comes meanwhile is the next.

use super::{StoreError, name};
use fred::error::{Error, ErrorKind};
use fred::prelude::*;
use fred::types::scripts::Script as Lua;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// What stands before each.
const COMMON: &str = concat!(
    include_str!("lua/calendar.lua"),
    include_str!("lua/sums.lua"),
    include_str!("lua/common.lua"),
    include_str!("lua/books.lua"),
    include_str!("lua/each.lua")
);

/// So many calls share a run at most: Redis serves nobody else meanwhile.
const MOST: usize = 64;

/// A call that waits for a run: its arguments, and who wants the answer.
type Call = (Vec<Value>, oneshot::Sender<Result<Value, StoreError>>);

/// One script, ready to be called by its hash; where Redis does not know it (yet, or after a restart) it is loaded on the way.
#[derive(Clone)]
pub(super) struct Script {
    lua: Lua,
    /// Of the projects that have a run on its way, what waits for the next.
    waiting: Arc<Mutex<HashMap<String, Vec<Call>>>>,
}

/// The scripts. They need Redis 7 (flags of scripts).
pub(super) struct Scripts {
    pub reserve: Script,
    pub settle: Script,
    pub release: Script,
    pub expire: Script,
    pub hit: Script,
    pub hits: Script,
    pub rebuild: Script,
    pub rewindow: Script,
    pub reset: Script,
    pub correct: Script,
}

impl Scripts {
    pub fn new() -> Self {
        let names = names();
        let script = |flags: &str, body: &str| {
            let lua = format!("#!lua flags={flags}\n{names}\n{COMMON}\n{body}");
            Script { lua: Lua::from_lua(lua), waiting: Arc::default() }
        };
        // A Redis without room admits no call, but every call it has admitted can end: holds become records, so they are few.
        let (admits, ends) = ("", "allow-oom");
        Self {
            reserve: script(admits, include_str!("lua/reserve.lua")),
            settle: script(ends, include_str!("lua/settle.lua")),
            release: script(ends, include_str!("lua/release.lua")),
            expire: script(ends, include_str!("lua/expire.lua")),
            hit: script(admits, include_str!("lua/hit.lua")),
            hits: script(admits, include_str!("lua/hits.lua")),
            rebuild: script(ends, include_str!("lua/rebuild.lua")),
            rewindow: script(ends, include_str!("lua/rewindow.lua")),
            reset: script(ends, include_str!("lua/reset.lua")),
            correct: script(ends, include_str!("lua/correct.lua")),
        }
    }
}

impl Script {
    /// Runs it on a project. Its first key is what all names of the project begin with: it has their hash slot. No key has that very name,
    /// and the state nearly always is there: of two such keys a cluster that moves the slot from one master to another key by key answers
    /// neither here nor there (`TRYAGAIN`), so that no script ever sees half a project.
    ///
    /// A caller that is dropped meanwhile takes nothing back.
    pub async fn run<R: FromValue>(&self, redis: &Client, project: &str, args: Vec<Value>) -> Result<R, StoreError> {
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
            let (args, callers): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
            let count = args.len();
            let counted = |args: Vec<Value>| std::iter::once(Value::from(args.len().to_string())).chain(args);
            let args: Vec<Value> = args.into_iter().flat_map(counted).collect();
            let keys = vec![name::prefix(project), name::state(project)];
            let answers = match self.lua.evalsha_with_reload::<Vec<Value>, _, _>(redis, keys, args).await {
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

    /// Takes out the calls of the next run; none: the project has none any more.
    fn next(&self, project: &str) -> Option<Vec<Call>> {
        let mut waiting = self.waiting();
        let calls = waiting.get_mut(project)?;
        if calls.is_empty() {
            waiting.remove(project);
            return None;
        }
        Some(calls.drain(..calls.len().min(MOST)).collect())
    }
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
