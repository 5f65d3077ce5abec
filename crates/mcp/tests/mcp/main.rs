//! The endpoint from outside: over HTTP as a router, and over a pair of streams.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    unreachable_pub
)]

mod calls;
mod eras;
mod framing;
mod golden;
mod keys;
mod protection;
mod refusals;
mod stdio;
mod support;
