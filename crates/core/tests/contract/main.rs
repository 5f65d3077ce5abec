//! The contract, tested from outside: golden samples, properties, and every reachable state.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod exploration;
mod golden;
mod json;
mod transitions;
