//! The real binary under concurrent load with retries, killed at random moments and started
//! again. At the end every key has exactly one effect, every acknowledged result is replayed byte
//! for byte, and no acknowledged receipt is missing.
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

const STORE: Store = Store::Sqlite;
const ROUNDS: u64 = 200;
