//! The request flow of proxium, as the specification has it, without a host.
//!
//! Every host callback becomes an [`Event`], every wish an [`Effect`]; what the flow must know at once it asks of a [`world::World`]. The stages
//! are one file each in [`stage`], and which endpoint passes which of them, in which order, is [`endpoint`]'s table:
//!
//! | stage | decides |
//! |---|---|
//! | [`stage::authenticate`] | whose key it is, and whether it may still call |
//! | [`stage::recall`] | what is remembered of the project and the end user, added to the messages |
//! | [`stage::classify`] | which tier `auto` is |
//! | [`stage::resolve`] | which models, in which order |
//! | [`stage::lookup`] | the exact key of the answer |
//! | [`stage::near`] | an answer to a question near enough, where the project wants it |
//! | [`stage::reserve`] | one round trip: the stored answer, or a reservation, or a refusal |
//! | [`stage::attempt`] | the calls to providers, with deadline, credential, breaker and failover |
//! | [`stage::route`] | the same for a stream through Envoy's router, planned ahead |
//! | [`stage::record`] | usage, cost, settlement, the answer |
//! | [`stage::stream`] | the same for a stream, as it passes |
//! | [`stage::list`] | the models that the key may use |

pub mod breaker;
pub mod cache_key;
pub mod config;
pub mod control_plane;
pub mod deadline;
pub mod dialect;
pub mod endpoint;
mod flow;
pub mod group;
pub mod hits;
pub mod hop;
pub mod json;
pub mod l1;
pub mod memory;
pub mod message;
mod object;
pub mod price;
pub mod question;
pub mod refusal;
pub mod request;
pub mod snapshot;
pub mod speaks;
pub mod sse;
pub mod stage;
pub mod stream;
pub mod told;
pub mod translate;
mod value;
pub mod world;

pub use flow::{Effect, Event, RawHead, Stage, Turn};
