//! The Proxy-Wasm filter of proxium: a thin host shell around [`proxium_flow`].
//!
//! | file | what |
//! |---|---|
//! | `root.rs` | plugin configuration, snapshot poll, outbox drain |
//! | `downstream.rs` | one request as Envoy knows it |
//! | `request.rs` | one request: host callback to event, step, effects |
//! | `group.rs` | calls of the control plane that travel together |
//! | `upstream.rs` | one attempt of Envoy's router: rewritten, held until its first event, reported |
//! | `vm.rs` | what all requests of a VM share: catalog, key records, answers, byte budget |
//! | `outbox.rs` | settlements that must outlive their stream, retried until acknowledged |
//! | `handover.rs` | what a VM leaves to its successors when it ends |
//! | `breakers.rs` | breakers and rests, shared by all workers of an Envoy |
//! | `metrics.rs` | counters and histograms in Envoy's statistics |
//! | `observed.rs` | what the operator is told of one call: metrics, fields of the access log |
//! | `host.rs` | the only user of host calls |

// The macro's exported entry point cannot carry a doc comment.
#![allow(missing_docs)]

mod breakers;
mod downstream;
mod group;
mod handover;
mod host;
mod metrics;
mod observed;
mod outbox;
mod request;
mod root;
mod upstream;
mod vm;

use proxy_wasm::types::LogLevel;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(root::Root::default()));
}}
