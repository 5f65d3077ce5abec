//! `cargo xtask test`: the steps, in the order in which a fault is cheapest to see.

use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::processes::Run;
use crate::steps::Steps;
use crate::{dependencies, files, install};

/// Longest a single step may take.
const LIMIT: Duration = Duration::from_secs(1200);
/// The end-to-end package, and its test programs that want real clients or minutes of time.
const E2E: &str = "counterfoil-e2e";
const E2E_FEATURES: &str = "clients,kill";

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
    steps.step("tests", || tests(run, &["--workspace"]));
}

fn whole(run: &Run, steps: &mut Steps) {
    steps.step("install: system", || install::system(run));
    steps.step("install: python", || install::python(run));
    steps.step("install: node", || install::node(run));
    written(run, steps);
    steps.step("lints of the long tests", || {
        let words = ["clippy", "--locked", "-p", E2E, "--all-targets"];
        let features = ["--features", E2E_FEATURES, "--", "-D", "warnings"];
        cargo(run, &[words.as_slice(), &features].concat())
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
    steps.step("unit and integration tests", || {
        tests(run, &["--workspace", "--exclude", E2E])
    });
    steps.step("documentation tests", || {
        cargo(
            run,
            &["test", "--locked", "--workspace", "--doc", "--quiet"],
        )
    });
    steps.step("examples", || {
        cargo(run, &["build", "--locked", "--workspace", "--examples"])
    });
    steps.step("binary", || {
        cargo(run, &["build", "--locked", "-p", "counterfoil"])
    });
    steps.step("end to end: the real process", || {
        end_to_end(run, "process", &[])
    });
    steps.step("end to end: real clients", || {
        end_to_end(run, "clients", &["--features", "clients"])
    });
    steps.step("end to end: kill -9", || {
        end_to_end(run, "kill", &["--features", "kill"])
    });
    steps.step("planted mutants", || {
        let words = ["run", "--locked", "--quiet", "-p", "counterfoil-testkit"];
        cargo(run, &[words.as_slice(), &["--bin", "mutants"]].concat())
    });
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

/// The test programs of some packages, with nextest where it is installed.
fn tests(run: &Run, which: &[&str]) -> Result<(), String> {
    run.show(&mut runner(run, which), LIMIT)
}

fn runner(run: &Run, which: &[&str]) -> Command {
    let mut command = run.command("cargo");
    if install::works(run, &["cargo", "nextest", "--version"]) {
        command
            .args(["nextest", "run", "--locked"])
            .args(which)
            .args(["--no-fail-fast", "--status-level", "fail"])
            .args(["--final-status-level", "slow", "--show-progress", "none"]);
    } else {
        let targets = ["--lib", "--bins", "--tests"];
        command.args(["test", "--locked"]).args(targets).args(which);
    }
    command
}

/// One program of the end-to-end package, told where the binaries and the clients are.
fn end_to_end(run: &Run, program: &str, more: &[&str]) -> Result<(), String> {
    let mut which = vec!["-p", E2E, "--test", program];
    which.extend(more);
    let mut command = runner(run, &which);
    let built = crate::target().join("debug");
    command
        .env("E2E_BINARY", built.join("counterfoil"))
        .env("E2E_FIXTURE", built.join("examples/fixture"))
        .env("E2E_CLIENTS", install::clients());
    run.show(&mut command, LIMIT)
}
