//! An MCP server for tests: it does what it is told to, counts what it did in a file, and fails in
//! every way on demand.
//!
//! The messages are put together by hand, without an SDK and without this project's own MCP
//! endpoint: it must be able to lie. Both eras are served, over pipes and over Streamable HTTP.
//! It is a process of its own, so that it can be killed, and so that it can die by itself:
//!
//! ```text
//! faulty-upstream --effects FILE [--http ADDRESS:PORT] [--control FILE] [--era both|legacy|modern|lock]
//!                 [--no-sessions] [--sse] [--page N]
//! ```
//!
//! Each call may carry its own fault, `arguments.fault` ([`Fault`] lists them), with
//! `arguments.once` only the first time for its `id`; or a control file names faults by tool. With
//! `arguments.hold` so many milliseconds pass between the effect and what is said of it, whoever has
//! gone meanwhile. What was received and what was done is in the file of [`Ledger`] before any answer
//! is written.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "test code"
)]

mod call;
mod exchange;
mod fault;
mod http;
mod ledger;
mod message;
mod options;
mod server;
mod started;
mod stdio;
mod tasks;
mod tools;

pub use fault::Fault;
pub use ledger::{Entry, Ledger};
pub use options::{Era, Options};
pub use server::run;
pub use started::{Listening, program, words};
