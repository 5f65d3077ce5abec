//! Tasks of this repository. `cargo xtask test` installs what the tests need and runs every check;
//! `cargo xtask test --fast` runs what is worth running after each edit.
//!
//! Only the standard library, and the tests' PostgreSQL server, which needs no more: this is the first thing a fresh clone compiles.
#![allow(
    clippy::disallowed_methods,
    reason = "a development tool: it reads the environment as a binary does"
)]

mod bench;
mod dependencies;
mod files;
mod install;
mod processes;
mod steps;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask test [--fast]
       cargo xtask bench [--quick]

  test          installs what is missing, then runs every check and every test; on two cores
                some 20 minutes once things are compiled, a few more and some GB of disk the first time
  test --fast   formatting, lints, unit and integration tests; no real clients, no kill rounds
  bench         builds in release mode, then measures for some 12 minutes against a bare echo, a transaction per request, a bare MCP server and other proxies (installed into the build folder)
  bench --quick the same with short rounds and small databases";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test"] => test::run(test::Extent::Whole),
        ["test", "--fast"] => test::run(test::Extent::Fast),
        ["guard", mark] => processes::guard(mark),
        words
            if words
                .iter()
                .any(|word| matches!(*word, "help" | "--help" | "-h")) =>
        {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        ["bench", rest @ ..] => bench::run(rest),
        words => {
            eprintln!("xtask does not know: {}\n", words.join(" "));
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The root of the work tree.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(PathBuf::from).unwrap_or(here)
}

/// The folder that cargo builds into.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
