//! The two ports of a control plane on a real Redis: what people write, and what filters then hear.

#[path = "../common/redis.rs"]
mod redis;
mod world;

mod access;
mod changes;
mod keys;
mod outage;
mod projects;
mod secrets;
