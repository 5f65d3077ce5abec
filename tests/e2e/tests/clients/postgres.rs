//! The real clients of `main.rs` on PostgreSQL.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "test code"
)]

mod conformance;
mod curl;
mod flow;
mod inspector;
mod sdks;
mod seed_004;

use counterfoil_e2e::Store;

const STORE: Store = Store::Postgres;
