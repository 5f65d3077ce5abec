//! The real binary as a user meets it: started, called, killed, started again. On SQLite;
//! `postgres.rs` is the same on PostgreSQL.
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

use counterfoil_e2e::{Folder, Store};

const STORE: Store = Store::Sqlite;

/// A folder of which every byte that is stored can be read.
fn readable() -> Folder {
    Folder::new(STORE)
}
