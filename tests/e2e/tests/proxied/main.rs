//! `counterfoil proxy` between servers and clients that other people wrote, all unmodified: what
//! passes is the same as without it, what is retried has one effect, what is meant twice has two.
//! `cargo xtask test` installs them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "test code"
)]

mod answer;
mod command_lines;
mod everything_http;
mod front;
mod host;
mod relay;
mod rust_sdk;
mod scripts;
mod servers;
mod subject;
mod transparent;
mod twice;
