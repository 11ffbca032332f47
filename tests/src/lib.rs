//! End-to-end tests of proxium: real processes on loopback, one stack a test, gone when the test ends.
//!
//! [`Stack`] starts a Redis, control planes, Envoys with the filter, and three mock providers (in this process), and a project with a
//! key is two lines away. Everything is on free ports, so tests run side by side. Logs lie in a temporary directory and are printed only
//! when the test fails.
//!
//! ```no_run
//! use proxium_e2e::{Stack, chat};
//! use proxium::mock_provider::Behaviour;
//!
//! # async fn test() {
//! let stack = Stack::start().await;                        // the catalog of `catalog::three_providers`
//! let key = stack.key().await;                             // of a new project, without ceilings
//! stack.mocks.first.next("m1", [Behaviour::status(500)]);
//! let answer = stack.chat(&key, &chat("fast", "hello")).await;
//! assert_eq!(answer.status, 200);
//! assert_eq!(answer.header("x-proxium-model"), Some("m2"));
//! assert_eq!(stack.mocks.second.calls("m2"), 1);
//! # }
//! ```
//!
//! Tests are `#[tokio::test(flavor = "multi_thread")]`. What else there is:
//!
//! | wanted | have |
//! |---|---|
//! | another catalog, more of everything | [`Stack::builder`]: `.catalog(…)`, `.control_planes(2)`, `.envoys(2)`, `.concurrency(2)` |
//! | projects, keys, ceilings | [`Stack::admin`]: [`Admin`] (`post`, `patch`, …, and `project`, `key_of`) |
//! | a call with headers | [`Stack::call`], on one Envoy of several: [`Envoy::call`] |
//! | many calls, calls in the background | [`Stack::all_at_once`], [`Envoy::spawn`]; [`proxium::mock_provider::Mock::gate`] holds the answers |
//! | a stream, event by event | [`Stack::stream`], [`Stack::streamed`]; the provider's: [`proxium::mock_provider::Steps`] |
//! | bad bytes | [`Envoy::raw`] |
//! | kill, restart, pause | `stack.control_planes[0].kill()`, `stack.envoys[0].restart().await`, `stack.redis.restart().await`, `.pause()` |
//! | edit the catalog | [`Stack::edit_catalog`] |
//! | what Redis holds | [`Stack::redis_client`], [`Stack::ledger`], [`Stack::windows`] |
//! | ledger, windows and spend agree | [`Stack::books`] |
//! | the official SDKs as clients | [`Sdk`] and the scripts in `tests/tests/sdk` |
//! | a client script against any stack | [`run_client`] |
//! | an embedding provider with real sentence vectors | [`MiniLm`] |
//! | wait | [`eventually`]: a condition with a bound, never a sleep |
//!
//! When a process ends, its whole log is searched for keys, secrets, prompts and answers: none may be there.
//!
//! `PROXIUM_KEEP=1` keeps the directories (logs, Redis data, Envoy's files), `PROXIUM_ENVOY_LOG=debug` makes Envoy talk.
//! Binaries come from `make test-e2e`; by hand: `make build`, then `cargo test -p proxium-e2e` (see [`binaries`] for the variables).

// A test library: a panic is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod admin;
pub mod binaries;
mod books;
pub mod catalog;
mod client;
mod control_plane;
mod dir;
mod envoy;
mod minilm;
mod orphans;
mod ports;
mod private;
mod process;
mod redis;
mod sdk;
mod stack;
mod stream;
mod wait;

pub use admin::{Admin, Key};
pub use books::Books;
pub use client::{Call, Response, chat};
pub use control_plane::{ControlPlane, INTERNAL_SECRET};
pub use dir::Dir;
pub use envoy::{Caller, Envoy};
pub use minilm::MiniLm;
pub use ports::Port;
pub use process::Process;
pub use redis::Redis;
pub use sdk::{Sdk, run_client};
pub use stack::{Builder, Mocks, Stack};
pub use stream::{Ask, BOTH, End, Stream, Streamed, streamed, text_of};
pub use wait::{BOUND, eventually};
