//! The PostgreSQL store from the outside: a real server, rivals on connections of their own, nodes
//! beside each other, a proxy that cuts where it hurts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests panic with the reason, and compare with the clock of this machine"
)]

mod admission;
mod apart;
mod attempts;
mod away;
mod bounds;
mod clock;
mod conformance;
mod copying;
mod encryption;
mod failover;
mod handlers;
mod opening;
mod outages;
mod pooled;
mod reach;
mod scene;
mod sweeping;
mod unknown;
mod waiting;
mod workspaces;
