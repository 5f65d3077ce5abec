//! The real clients of the fixture server, on the memory store of the test kit: the suites of
//! `main.rs` that need neither the notes application, whose tables are a database's, nor a restart.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "test code"
)]

mod conformance;
mod seed_004;

use counterfoil_e2e::Store;

const STORE: Store = Store::Memory;
