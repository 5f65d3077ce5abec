//! What the other tests stand on: the server, its end, its databases, and the proxy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod pooler;
mod proxy;
mod server;
