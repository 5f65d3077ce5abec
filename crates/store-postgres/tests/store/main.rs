//! The PostgreSQL store, on a private server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conformance;
