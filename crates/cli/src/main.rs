//! The binary `counterfoil`: arguments, configuration, wiring and exit codes. Nothing else.

mod address;
mod args;
mod check;
mod claim;
mod config;
mod environment;
mod exit;
mod folder;
mod keys;
mod mcp;
mod migrate;
mod open;
mod operations;
#[cfg(feature = "otlp")]
mod otlp;
mod output;
mod postgres;
mod proxy;
mod serve;
mod sqlite;
mod store_check;
mod store_copy;
mod sweep;
mod telemetry;
mod welcome;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use args::{Cli, Command, Config, StoreCommand};
use exit::Failure;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::say(&failure.to_string());
            failure.exit.into()
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Serve(serve) => serve::run(&serve),
        Command::Mcp(mcp) => mcp::run(&mcp),
        Command::Proxy(proxy) => proxy::run(&proxy),
        Command::Keys(keys) => keys::run(keys),
        Command::Operations(operations) => operations::run(operations),
        Command::Migrate(reading) => migrate::run(&reading),
        Command::Sweep(receipts) => sweep::run(&receipts),
        Command::Store(StoreCommand::Check(receipts)) => store_check::run(&receipts),
        Command::Store(StoreCommand::Copy(copy)) => store_copy::run(&copy),
        Command::Config(Config::Check(reading)) => check::run(&reading),
        Command::Completions { shell } => completions(shell),
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "counterfoil", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
