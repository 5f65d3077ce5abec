//! The program; `counterfoil_test_upstream` says what it does.
#![allow(clippy::disallowed_methods, reason = "test code")]

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let run = counterfoil_test_upstream::Options::read(&words)
        .and_then(|options| counterfoil_test_upstream::run(options).map_err(|why| why.to_string()));
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("faulty-upstream: {why}");
            ExitCode::from(2)
        }
    }
}
