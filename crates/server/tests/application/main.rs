//! The application over its own router, on SQLite in a folder of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad_input;
mod fixture;
mod mcp;
mod notes;
mod observability;
mod operations;
mod principals;
mod probes;
mod sealing;
