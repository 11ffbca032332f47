//! The Lua scripts: each one step that no other step can come between.

use super::{StoreError, name};
use fred::prelude::*;
use fred::types::scripts::Script;

/// What stands before each.
const COMMON: &str = concat!(include_str!("lua/calendar.lua"), include_str!("lua/common.lua"), include_str!("lua/books.lua"));

/// The scripts, ready to be called by their hash; one that Redis does not know (yet, or after a restart) is loaded on the way.
/// They need Redis 7 (flags of scripts).
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
        let script = |flags: &str, body: &str| Script::from_lua(format!("#!lua flags={flags}\n{names}\n{COMMON}\n{body}"));
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

/// Runs a script on a project. Its first key is what all names of the project begin with: it has their hash slot. No key has that very name,
/// and the state nearly always is there: of two such keys a cluster that moves the slot from one master to another key by key answers
/// neither here nor there (`TRYAGAIN`), so that no script ever sees half a project.
pub(super) async fn run<R: FromValue>(redis: &Client, script: &Script, project: &str, args: Vec<Value>) -> Result<R, StoreError> {
    Ok(script.evalsha_with_reload(redis, vec![name::prefix(project), name::state(project)], args).await?)
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
