//! `cargo xtask test`: the steps, in the order in which a fault is cheapest to see.

use std::process::ExitCode;
use std::time::Duration;

use crate::processes::Run;
use crate::steps::Steps;
use crate::{dependencies, files, install};

/// Longest a single step may take.
const LIMIT: Duration = Duration::from_secs(1200);
/// The end-to-end package.
const E2E: &str = "counterfoil-e2e";

/// How much to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Everything.
    Whole,
    /// What takes seconds once things are compiled.
    Fast,
}

/// Runs the steps and says how they went.
pub(crate) fn run(extent: Extent) -> ExitCode {
    let run = match Run::new() {
        Ok(run) => run,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    let mut steps = Steps::default();
    match extent {
        Extent::Whole => whole(&run, &mut steps),
        Extent::Fast => fast(&run, &mut steps),
    }
    if steps.summary() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn fast(run: &Run, steps: &mut Steps) {
    written(run, steps);
    steps.step("binaries", || binaries(run));
    steps.step("a PostgreSQL server", || run.start_postgres());
    steps.step("tests", || tests(run, &[]));
}

fn whole(run: &Run, steps: &mut Steps) {
    steps.step("install: system", || install::system(run));
    steps.step("install: python", || install::python(run));
    steps.step("install: node", || install::node(run));
    written(run, steps);
    steps.step("lints of what is behind a feature", || {
        for (package, features) in [(E2E, "clients,kill"), ("counterfoil", "otlp")] {
            let words = ["clippy", "--locked", "-p", package, "--all-targets"];
            let more = ["--features", features, "--", "-D", "warnings"];
            cargo(run, &[words.as_slice(), &more].concat())?;
        }
        Ok(())
    });
    steps.step("documentation", || {
        let mut command = run.command("cargo");
        command
            .args(["doc", "--locked", "--workspace", "--no-deps", "--quiet"])
            .env("RUSTDOCFLAGS", "-D warnings");
        run.show(&mut command, LIMIT)
    });
    steps.step("licences, bans and sources", || {
        let mut command = run.command(install::cargo_deny(run));
        command.args(["--locked", "check", "bans", "licenses", "sources"]);
        run.show(&mut command, LIMIT)
    });
    steps.step("dependency directions", || dependencies::check(run));
    steps.step("binaries and examples", || binaries(run));
    steps.step("a PostgreSQL server", || run.start_postgres());
    steps.step("tests", || tests(run, &[]));
    steps.step("documentation tests", || {
        cargo(
            run,
            &["test", "--locked", "--workspace", "--doc", "--quiet"],
        )
    });
    steps.step("real clients", || {
        let suites = ["clients", "clients_postgres", "clients_memory"];
        behind_feature(run, "clients", &suites)
    });
    steps.step("real servers and clients through the proxy", || {
        behind_feature(run, "clients", &["proxied", "conformance_proxy"])
    });
    steps.step("kill -9 under load", || {
        behind_feature(run, "kill", &["kill", "kill_postgres"])
    });
    steps.step("three nodes under load", || {
        behind_feature(run, "kill", &["cluster_kill"])
    });
    steps.step("planted mutants", || {
        let words = ["run", "--locked", "--quiet", "-p", "counterfoil-testkit"];
        cargo(run, &[words.as_slice(), &["--bin", "mutants"]].concat())
    });
}

/// End-to-end suites that a feature keeps out of the ordinary tests.
fn behind_feature(run: &Run, feature: &str, suites: &[&str]) -> Result<(), String> {
    let feature = format!("{E2E}/{feature}");
    let mut words = vec!["--features", feature.as_str()];
    for suite in suites {
        words.extend(["--test", suite]);
    }
    tests(run, &words)
}

/// What the end-to-end tests start, and every example.
fn binaries(run: &Run) -> Result<(), String> {
    let words = ["build", "--locked", "--workspace"];
    cargo(run, &[words.as_slice(), &["--bins", "--examples"]].concat())
}

/// The checks that read what was written.
fn written(run: &Run, steps: &mut Steps) {
    steps.step("formatting", || cargo(run, &["fmt", "--all", "--check"]));
    steps.step("file lengths", files::lengths);
    steps.step("words", files::words);
    steps.step("table of faults from the field", files::field_table);
    steps.step("lints", || {
        let words = ["clippy", "--locked", "--workspace", "--all-targets"];
        cargo(run, &[words.as_slice(), &["--", "-D", "warnings"]].concat())
    });
}

fn cargo(run: &Run, words: &[&str]) -> Result<(), String> {
    run.show(run.command("cargo").args(words), LIMIT)
}

/// Test programs, with nextest where it is installed; told where binaries and clients are.
///
/// Always of the whole workspace, so that each dependency is compiled with one set of features.
fn tests(run: &Run, which: &[&str]) -> Result<(), String> {
    let mut command = run.command("cargo");
    if install::works(run, &["cargo", "nextest", "--version"]) {
        command
            .args(["nextest", "run", "--locked", "--workspace"])
            .args(which)
            .args(["--no-fail-fast", "--status-level", "fail"])
            .args(["--final-status-level", "slow", "--show-progress", "none"]);
    } else {
        command
            .args(["test", "--locked", "--workspace"])
            .args(which);
        if which.is_empty() {
            command.args(["--lib", "--bins", "--tests"]);
        }
    }
    let built = crate::target().join("debug");
    command
        .env("E2E_BINARY", built.join("counterfoil"))
        .env("E2E_FIXTURE", built.join("examples/fixture"))
        .env("E2E_UPSTREAM", built.join("faulty-upstream"))
        .env("E2E_UPSTREAM", built.join("faulty-upstream"))
        .env("E2E_CLIENTS", install::clients());
    run.show(&mut command, LIMIT)
}
