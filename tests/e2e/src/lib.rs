//! Harness of the whole-process tests: starts the real binary on a data folder, speaks HTTP and
//! MCP to it byte by byte, kills it and starts it again.
//!
//! A test fails by panicking here, with what the server printed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "test code"
)]

mod binary;
mod folder;
mod http;
pub mod installed;
mod mcp;
mod outside;
mod random;
mod server;
mod wait;

pub use binary::{built, clients, fixture};
pub use folder::{Base, Folder, Store};
pub use http::{Http, Reply, Request};
pub use mcp::{Mcp, Said};
pub use outside::{Lock, Outside};
pub use random::Random;
pub use server::{Fixture, Server};
pub use wait::until;
