//! The real binary as a user meets it: started, called, killed, started again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code"
)]

mod bad_input;
mod disk;
mod doubt;
mod field;
mod secrets;
mod seed_000;
mod seed_002;
mod start;
mod two_processes;
