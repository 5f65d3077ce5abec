//! PostgreSQL for tests: a private [`Server`] that never outlives the process that started it, a
//! [`Database`] for each test, a [`Proxy`] that cuts connections where it hurts, and PgBouncer as
//! a [`Pooler`].
//!
//! For Linux: processes are found under `/proc`. Everything here panics with the reason where a
//! test would otherwise have to unwrap; [`Server::try_start`] is for callers that would rather
//! report it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "test code: it panics with the reason, and reads the environment as a binary does"
)]

mod connection;
mod database;
mod plan;
mod pooler;
mod programs;
mod proxy;
mod server;
mod watchdog;
mod wire;

pub use database::{Database, VARIABLE};
pub use plan::{Applied, Plan};
pub use pooler::Pooler;
pub use programs::{Failure, folder_of_programs, program};
pub use proxy::{Counts, Proxy};
pub use server::{Mode, Server};
