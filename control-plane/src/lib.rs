//! The control plane of proxium: everything that must outlive a call, in Redis; and the catalog, as YAML.
//!
//! | module | what |
//! |---|---|
//! | [`catalog`] | providers, models, prices, chains: one YAML file, validated whole, watched, swapped |
//! | [`render`] | catalog to Envoy's files |
//! | [`internal`] | the port that filters call: authenticate, admit, settle, snapshot |
//! | [`admin`] | the port that people call: projects, keys, senders, credentials; health and metrics |
//! | [`store`] | Redis: names, scripts, records |
//! | [`alike`] | whether two questions ask the same, by their words |
//! | [`seal`] | a project's own credentials, encrypted at rest |
//! | [`secret`], [`metrics`], [`trace`] | what both ports share |
//! | [`cli`] | the commands |
//! | [`mock_provider`] | a provider that costs nothing, for the demo and the tests |

pub mod admin;
pub mod alike;
pub mod catalog;
pub mod cli;
pub mod internal;
pub mod metrics;
pub mod mock_provider;
pub mod render;
pub mod seal;
pub mod secret;
pub mod store;
pub mod trace;
