//! Money on a real Redis: limits, reservations, settlements, stored answers.

#[path = "../common/redis.rs"]
mod redis;
mod world;

mod answers;
mod ends;
mod limits;
mod months;
mod races;
