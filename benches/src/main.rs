//! Measures Counterfoil against what it is compared with, all in one run on one machine: a bare
//! echo, a transaction for each request, a bare MCP server, plain tables in PostgreSQL, and itself
//! at another size. Ratios are what counts; the absolutes are the machine's. `cargo xtask bench` builds and runs it.

mod callers;
mod child;
mod drive;
mod error;
mod keys;
mod load;
mod parts;
mod piped;
mod plain;
mod processor;
mod report;
mod request;
mod scale;
mod servers;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use clap::{Parser, Subcommand, ValueEnum};
use counterfoil_engine::{Clock as _, SystemClock};

pub(crate) use error::Error;
use parts::Bench;
use report::Report;
use scale::Scale;
use servers::Which;

/// Measures Counterfoil and prints the targets that are met and those that are not.
#[derive(Debug, Parser)]
struct Arguments {
    /// Short rounds and small databases: shows that everything works.
    #[arg(long)]
    quick: bool,
    /// Only these parts.
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Receipts of the large database, other than 1,000,000 (100,000 if quick).
    #[arg(long)]
    receipts: Option<u64>,
    /// Connections of the PostgreSQL store that write, other than its default.
    #[arg(long)]
    lanes: Option<usize>,
    /// Connections of the PostgreSQL store that look up, other than its default.
    #[arg(long)]
    readers: Option<usize>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One of the servers that are measured; ends when standard input closes.
    #[command(hide = true)]
    Serve {
        /// Which one.
        which: Which,
        /// Where its data lies.
        #[arg(long)]
        data: PathBuf,
    },
    /// Loads one server that is already running, to profile it.
    Load(parts::single::Single),
    /// Loads one command that speaks MCP on its standard streams, to profile it.
    Pipe(parts::proxy::Single),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Starts and idle memory.
    Start,
    /// REST against a bare echo and a transaction for each request.
    Rest,
    /// The MCP endpoint against a bare server.
    Tools,
    /// The store without a front end.
    Store,
    /// `counterfoil proxy` against the server behind it and against other proxies.
    Proxy,
    /// A small and a large database.
    Growth,
    /// The PostgreSQL store: first calls against a plain INSERT.
    PostgresFirst,
    /// The PostgreSQL store: replays against a bare look-up.
    PostgresReplays,
    /// The PostgreSQL store: one hot workspace against a thousand.
    PostgresWorkspaces,
    /// Three nodes of the application against one, on one PostgreSQL database.
    PostgresNodes,
    /// The PostgreSQL store: a small and a large database.
    PostgresGrowth,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.command {
        Some(Command::Serve { which, data }) => servers::serve(*which, data),
        Some(Command::Load(single)) => single.run(),
        Some(Command::Pipe(single)) => single.run(),
        None => run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    let begun = Instant::now();
    let program = std::env::current_exe().map_err(Error::io("finding this program"))?;
    let release = program.parent().unwrap_or(Path::new("."));
    let target = release.parent().unwrap_or(release);
    // Beside the build, because a folder for temporary files may lie in memory.
    let folder = tempfile::Builder::new()
        .prefix("bench-")
        .tempdir_in(target)
        .map_err(Error::io("creating a folder"))?;
    let mut scale = if arguments.quick {
        Scale::quick()
    } else {
        Scale::full()
    };
    scale.large = arguments.receipts.unwrap_or(scale.large);
    let mut postgres = counterfoil_postgres::Options::default();
    postgres.lanes = arguments.lanes.unwrap_or(postgres.lanes);
    postgres.readers = arguments.readers.unwrap_or(postgres.readers);
    let bench = Bench {
        scale,
        postgres,
        binary: release.join(format!("counterfoil{}", std::env::consts::EXE_SUFFIX)),
        folder: folder.path().to_owned(),
        target: target.to_owned(),
    };
    let mut report = Report {
        at: u64::try_from(SystemClock::new().now().as_millis() / 1000).unwrap_or(0),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        quick: arguments.quick,
        ..Report::default()
    };
    println!(
        "{} cores; every figure is the median of {} rounds of {:.0} s; the generator shares the cores",
        report.cores,
        scale.rounds,
        scale.round.as_secs_f64()
    );
    for part in Part::value_variants() {
        if !arguments.only.is_empty() && !arguments.only.contains(part) {
            continue;
        }
        match part {
            Part::Start => parts::start::measure(&bench, &mut report)?,
            Part::Rest => parts::rest::measure(&bench, &mut report)?,
            Part::Tools => parts::tools::measure(&bench, &mut report)?,
            Part::Store => parts::store::measure(&bench, &mut report)?,
            Part::Proxy => parts::proxy::measure(&bench, &mut report)?,
            Part::Growth => parts::growth::measure(&bench, &mut report)?,
            Part::PostgresFirst => parts::postgres::first::measure(&bench, &mut report)?,
            Part::PostgresReplays => parts::postgres::replays::measure(&bench, &mut report)?,
            Part::PostgresWorkspaces => parts::postgres::workspaces::measure(&bench, &mut report)?,
            Part::PostgresNodes => parts::postgres::nodes::measure(&bench, &mut report)?,
            Part::PostgresGrowth => parts::postgres::growth::measure(&bench, &mut report)?,
        }
    }
    report.seconds = begun.elapsed().as_secs_f64();
    report.print_targets();
    println!("\n{:.0} s", report.seconds);
    report.append_to(&target.join("bench.jsonl"))
}
