//! Redis: the one home of everything that outlives a call.
//!
//! All keys of a project share one hash slot, by the `{project}` in their names, so that one script can touch them on a cluster.
//! [`name`] holds every name; nothing else spells one.

pub mod answers;
mod args;
pub mod audit;
pub mod breakers;
pub mod changes;
pub mod credentials;
pub mod keys;
pub mod ledger;
pub mod memories;
pub mod money;
pub mod projects;
pub mod record;
pub mod refusals;
mod reservations;
pub mod responses;
mod scripts;
pub mod senders;
pub mod sessions;
pub mod spend;
pub mod tokens;
pub mod vectors;

pub use money::Money;

use fred::prelude::*;
use fred::types::config::ClusterDiscoveryPolicy;
use std::time::Duration;

/// Redis could not answer, or what it holds cannot be read.
#[derive(Clone, Debug)]
pub enum StoreError {
    /// Not reachable, busy loading, or out of memory: try again.
    Unavailable(fred::error::Error),
    /// It is on fewer replicas than were asked for.
    NotReplicated {
        /// Those that have it.
        have: u8,
        /// Those that were asked for.
        want: u8,
    },
    /// A record that this version cannot read; the text names it.
    Corrupt(String),
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unavailable(error) => write!(f, "Redis cannot answer: {error}"),
            Self::NotReplicated { have, want } => {
                write!(f, "Redis has it on {have} replicas, and --redis-wait-replicas asks for {want}: look at its replicas")
            }
            Self::Corrupt(what) => write!(f, "unreadable record in Redis: {what}"),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<fred::error::Error> for StoreError {
    fn from(error: fred::error::Error) -> Self {
        Self::Unavailable(error)
    }
}

/// Between two attempts to connect.
const RECONNECT: Duration = Duration::from_millis(200);

/// A client that reconnects by itself for ever. `url`: `redis://`, `rediss://`, `redis-cluster://`, `redis-sentinel://`.
///
/// Returns at once; until Redis is there, commands fail with [`StoreError::Unavailable`] after two seconds.
///
/// # Errors
/// The URL is not one of these.
pub fn connect(url: &str) -> Result<Client, fred::error::Error> {
    let mut config = Config::from_url(url)?;
    // Otherwise a client that starts before Redis would never connect.
    config.fail_fast = false;
    // Whoever was named may be gone for good while the others have elected another.
    if let ServerConfig::Clustered { policy, .. } = &mut config.server {
        *policy = ClusterDiscoveryPolicy::UseCache;
    }
    // What was sent once is not sent again: who asked has given it up. On a cluster a redirection is an attempt, too, and fred's client
    // ends where there is none left for it; one redirection finds a slot that moved, a second one does not find one that moves.
    let attempts = if config.server.is_clustered() { 3 } else { 1 };
    let mut builder = Builder::from_config(config);
    builder
        .with_performance_config(|performance| performance.default_command_timeout = Duration::from_secs(2))
        .with_connection_config(|connection| {
            connection.connection_timeout = Duration::from_secs(2);
            connection.internal_command_timeout = Duration::from_secs(2);
            connection.max_command_attempts = attempts;
            connection.max_redirections = 1;
            // Else a command may wait for the answer of the one before it.
            connection.tcp.nodelay = Some(true);
        })
        .set_policy(ReconnectPolicy::new_constant(0, u32::try_from(RECONNECT.as_millis()).unwrap_or(u32::MAX)));
    let client = builder.build()?;
    let connected = client.clone();
    tokio::spawn(async move {
        while let Ok(Err(error)) = connected.connect().await {
            tracing::error!(%error, "the connection to Redis ended; it is made anew");
            tokio::time::sleep(RECONNECT).await;
        }
    });
    Ok(client)
}

/// The names of all keys in Redis.
pub mod name {
    /// Stream of changes that filters must hear of: field `key_hash` (hex), `project` (id), `purge` (a wire message, hex) or `answer` (exact key,
    /// hex).
    pub const CHANGES: &str = "px:changes";
    /// Stream of all changes made through the admin API, for people.
    pub const AUDIT: &str = "px:audit";
    /// Hash SHA-256 (lower-case hex) to record (JSON) of the admin API's tokens.
    pub const TOKENS: &str = "px:tokens";
    /// Hash `<Envoy>|<credential>` to `<open until, ms>|<told at, ms>`, of breakers that are not closed.
    pub const BREAKERS: &str = "px:breakers";
    /// Set of all project ids.
    pub const PROJECTS: &str = "px:projects";

    /// `<project>/<key id>` of the key with this SHA-256 (lower-case hex).
    #[must_use]
    pub fn key_hash(hash: &str) -> String {
        format!("px:keyhash:{hash}")
    }

    /// The console's session with this SHA-256 (lower-case hex) of its cookie.
    #[must_use]
    pub fn session(hash: &str) -> String {
        format!("px:session:{hash}")
    }

    /// What stands before every name of a project; scripts build the names of reservations from it.
    #[must_use]
    pub fn prefix(project: &str) -> String {
        format!("px:{{{project}}}:")
    }

    macro_rules! of_project {
        ($($(#[$doc:meta])* $fn:ident($($arg:ident),*) = $text:literal;)*) => {
            $($(#[$doc])* #[must_use] pub fn $fn(project: &str $(, $arg: &str)*) -> String {
                format!(concat!("px:{{{}}}:", $text), project $(, $arg)*)
            })*
        };
    }

    of_project! {
        /// Hash `record` (JSON), `monthly_cap` and `soft_cap` (nano-USD, absent: none), `reset_day` (1-31, absent: 1),
        /// `cached_answer_charge` (ppm, absent: 0).
        project() = "project";
        /// Set of key ids.
        keys() = "keys";
        /// Hash `record` (JSON), `hash` (hex), `revoked` (`1` or absent), `expires_at_ms` (absent: never) and the ceilings
        /// `calls_per_hour`, `requests_per_minute`, `tokens_per_minute`, `max_parallel_calls` (absent: none);
        /// `window_until` (an instant in ms: its windows are to be there until then).
        key(key_id) = "key:{}";
        /// Set of `x-proxium-source` values that have settings.
        senders() = "senders";
        /// Hash `record` (JSON) and the ceilings as in [`key`].
        sender(source) = "sender:{}";
        /// Hash provider to sealed secret.
        credentials() = "credentials";
        /// Hash `month`, `spend` and `held` (nano-USD), `clock_ms`, `ends_ms` and `ends_of` (when the month ends, by which reset day),
        /// `no_credentials` (until the project has its first); made with the project, without expiry.
        state() = "state";
        /// Hash of a key's sliding windows.
        key_window(key_id) = "window:key:{}";
        /// Hash of a sender's sliding windows.
        sender_window(source) = "window:sender:{}";
        /// One reservation: its record as `lua/books.lua` packs it, or once nothing can change it any more the word `settled` or `released`.
        reservation(id) = "reservation:{}";
        /// There while a hit, or a batch of them, of this id counts as told.
        hits(id) = "hits:{}";
        /// Sorted set of held reservations by due instant (ms).
        due() = "due";
        /// Set of the held reservations of a key that take a call slot, and an empty one; only of keys with such a ceiling.
        held_by_key(key_id) = "held:key:{}";
        /// The same of a sender.
        held_by_sender(source) = "held:sender:{}";
        /// Hash of an owner's memories by their ids.
        memories(owner) = "memories:{}";
        /// Vector set of an owner's memories by their ids, by the vectors of one model (cache Redis).
        memory_vectors(owner, model) = "memories:vectors:{}:{}";
        /// Set of the vector sets of memories there may be, `<owner>:<model>` (cache Redis).
        memory_vector_sets() = "memories:vectors";
        /// Hash of all memories' ids to their owners.
        memory_owners() = "memories";
        /// Hash of owners to how often memories of theirs were deleted.
        memory_deletions() = "memories:deletions";
        /// Who keeps a response of `/v1/responses`: a [`proxium_wire::ResponseOwner`].
        response(id) = "response:{}";
        /// Stream of ledger records.
        ledger() = "ledger";
        /// Hash of what a day (`20261130`) used, by metric, key, model and sender; months are sums of days.
        spend_day(day) = "spend:day:{}";
        /// Hash of a budget's month (`202611`): `spend`, what counts towards its caps.
        spend_month(month) = "spend:month:{}";
        /// Hash limit to how often it refused on a day (`20261130`).
        refused_day(day) = "refused:day:{}";
        /// A stored answer by the hex of its exact key (cache Redis).
        answer(cache_key) = "answer:{}";
        /// Sorted set of stored answers by expiry (cache Redis).
        answers() = "answers";
        /// Sorted set by expiry of the members of [`answers`] that came of an owner's memories (cache Redis).
        answers_of(owner) = "answers:of:{}";
        /// Vector set of questions that may be compared, by the exact keys of their answers (cache Redis).
        vector_set(set) = "vectors:{}";
        /// Sorted set by expiry of all vectors, `<set>|<exact key>` (cache Redis).
        vectors() = "vectors";
    }
}
