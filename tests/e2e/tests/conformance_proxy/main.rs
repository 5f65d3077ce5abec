//! The official conformance suite against servers by themselves and against the same servers
//! through `counterfoil proxy`: scenario by scenario and check by check the same. The suite speaks
//! HTTP only, so the proxy listens; behind it is a child on pipes, or a URL.
//!
//! The proxy runs with `--keyless mint`. The suite calls tools again with the same arguments from
//! new connections, in one scenario too, and means a new action each time. That is what `mint`
//! takes it for; by default the proxy would ask whether it is meant twice, as it should.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "test code"
)]

mod compare;
mod process;
mod suite;

use counterfoil_e2e::{Fixture, Folder, Store};
use tempfile::TempDir;

use crate::process::{Listening, fixture};
use crate::suite::{Outcomes, run};

/// A server on somebody else's SDK, which offers nearly all that the suite knows.
fn somebody_elses(revision: &str) {
    let folder = TempDir::new().unwrap();
    let fixture = fixture().display().to_string();
    let server = Listening::start(
        &[&fixture, "--http", "127.0.0.1:0"],
        folder.path(),
        "server",
    );
    let direct = run(&server.url(), revision);
    assert!(
        direct.passed() >= 80,
        "the server by itself passes most of it:\n{direct:?}"
    );
    let pipes = through(&folder, "pipes", &["--", &fixture, "--stdio"], revision);
    let url = through(&folder, "url", &["--url", &server.url()], revision);
    compare::same(
        "another-sdk",
        revision,
        &direct,
        &[("pipes", pipes), ("url", url)],
    );
}

/// The endpoint of this project, with tools only.
fn our_own(revision: &str) {
    let (folder, state) = (Folder::new(Store::Sqlite), TempDir::new().unwrap());
    let server = Fixture::start(&folder, &[]);
    let direct = run(&server.url(), revision);
    let url = through(&state, "url", &["--url", &server.url()], revision);
    compare::same("our-own", revision, &direct, &[("url", url)]);
}

fn through(folder: &TempDir, name: &str, target: &[&str], revision: &str) -> Outcomes {
    let proxy = Listening::proxy(target, folder.path(), name);
    run(&proxy.url(), revision)
}

#[test]
fn a_server_on_another_sdk_is_the_same_through_the_proxy_in_2025_11_25() {
    somebody_elses("2025-11-25");
}

#[test]
fn a_server_on_another_sdk_is_the_same_through_the_proxy_in_2026_07_28() {
    somebody_elses("2026-07-28");
}

#[test]
fn our_own_server_is_the_same_through_the_proxy_in_2025_11_25() {
    our_own("2025-11-25");
}

#[test]
fn our_own_server_is_the_same_through_the_proxy_in_2026_07_28() {
    our_own("2026-07-28");
}
