//! The rounds of `main.rs` on PostgreSQL. Fewer: `tests/cluster/kill.rs` has more of them, with
//! three nodes and a database that is restarted as well.
//!
//! `E2E_KILL_ROUNDS` sets the rounds, `E2E_SEED` the seed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "test code"
)]

mod model;
mod rounds;

use counterfoil_e2e::Store;

const STORE: Store = Store::Postgres;
const ROUNDS: u64 = 60;
