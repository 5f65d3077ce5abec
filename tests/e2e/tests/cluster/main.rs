//! Several nodes and nothing between them but one PostgreSQL database. `kill.rs` is the same under
//! load, with power cuts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "test code"
)]

mod authority;
mod clock;
mod nodes;
mod one_key;
mod outage;
mod wait;
