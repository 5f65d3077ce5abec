//! `cargo xtask bench`: builds what is measured as it is shipped, then the measuring program, and
//! runs it.

use std::process::ExitCode;
use std::time::Duration;

use crate::processes::Run;

/// Longest a build or a whole run may take.
const LIMIT: Duration = Duration::from_secs(3600);

/// Builds and runs it with these arguments.
pub(crate) fn run(arguments: &[&str]) -> ExitCode {
    match build_and_measure(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn build_and_measure(arguments: &[&str]) -> Result<(), String> {
    let run = Run::new()?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Two builds, so that the features of the one do not reach into the other.
    let product = ["build", "--release", "--locked", "-p", "counterfoil"];
    run.show(run.command(&cargo).args(product), LIMIT)?;
    run.start_postgres()?;
    let bench = [
        "run",
        "--release",
        "--locked",
        "-p",
        "counterfoil-bench",
        "--",
    ];
    run.show(run.command(&cargo).args(bench).args(arguments), LIMIT)
}
