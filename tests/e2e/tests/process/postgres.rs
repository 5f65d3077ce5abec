//! The real binary on PostgreSQL: every test of `main.rs` but those of SQLite's file and its disk,
//! in whose place are those of a database that is not there, or not fit.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code"
)]

mod bad_input;
mod database;
mod doubt;
mod field;
mod secrets;
mod seed_000;
mod seed_002;
mod start;
mod two_processes;

use counterfoil_e2e::{Base, Folder, Store};

const STORE: Store = Store::Postgres;

/// A folder of which every byte that is stored can be read: its database has a server of its own.
fn readable() -> Folder {
    Folder::on(&Base::with_server())
}
