//! The real binary, from the outside.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod configuration;
mod lost;
mod process;
mod serve;
mod stdio;
#[cfg(feature = "otlp")]
mod telemetry;
