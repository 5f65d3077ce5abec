//! The real binary, from the outside.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod configuration;
mod lost;
mod postgres;
mod process;
#[cfg(unix)]
mod proxy;
mod serve;
mod stdio;
mod store;
#[cfg(feature = "otlp")]
mod telemetry;
