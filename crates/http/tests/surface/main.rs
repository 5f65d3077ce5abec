//! The HTTP surface from the caller's side: real routers, and real sockets where they matter.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod app;
mod identity;
mod mutation;
mod outcomes;
mod pages;
mod problems;
mod served;
