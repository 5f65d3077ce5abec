//! `counterfoil proxy` in front of an upstream that fails on demand: the real binary, as a host
//! starts it, with a raw client that loses answers and asks again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "test code"
)]

mod client;
mod direct;
mod evidence;
mod field;
mod keyless;
mod kill;
mod passing;
mod pipe;
mod said;
mod setup;
mod shared;
mod table;
mod web;
