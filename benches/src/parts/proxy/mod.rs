//! The proxy: what it costs in front of a server that does nothing, over the server alone.

mod footprint;
mod guarded;
mod others;
mod reading;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    Error,
    keys::{Kind, Series},
    load::{Round, Until},
    parts::Bench,
    piped::{Call, Peer},
    report::{Figure, Report},
};

/// Reading calls, guarded calls, memory and starts.
pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result<(), Error> {
    println!("\nProxy, in front of a server of the Rust SDK whose tools do nothing");
    if !bench.binary.is_file() {
        return Err(Error::NoBinary(bench.binary.clone()));
    }
    reading::measure(bench, report)?;
    guarded::measure(bench, report)?;
    footprint::measure(bench, report)
}

/// The server on its standard streams: this very program again.
fn server(bench: &Bench) -> Result<Vec<OsString>, Error> {
    let program = std::env::current_exe().map_err(Error::io("finding this program"))?;
    Ok(vec![
        program.into(),
        "serve".into(),
        "piped".into(),
        "--data".into(),
        bench.folder.clone().into(),
    ])
}

fn command(words: &[OsString]) -> Result<Command, Error> {
    let [program, arguments @ ..] = words else {
        return Err(Error::Form("a command"));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// `counterfoil proxy` with a state folder of this name.
fn proxy(bench: &Bench, name: &str) -> Result<Command, Error> {
    let state = bench.new_folder(name)?;
    let mut command = Command::new(&bench.binary);
    command.args(["proxy", "--state"]).arg(state);
    Ok(command)
}

fn log(bench: &Bench, name: &str) -> PathBuf {
    bench.folder.join(format!("{name}.log"))
}

fn start(bench: &Bench, name: &str, mut command: Command) -> Result<(Peer, Duration), Error> {
    let log = log(bench, &name.replace(' ', "-"));
    Peer::start(name, &mut command, &log)
}

/// The server alone.
fn direct(bench: &Bench) -> Result<(Peer, Duration), Error> {
    start(bench, "direct", command(&server(bench)?)?)
}

/// The proxy in front of it.
fn proxied(bench: &Bench, state: &str) -> Result<(Peer, Duration), Error> {
    let mut command = proxy(bench, state)?;
    command.arg("--").args(server(bench)?);
    start(bench, state, command)
}

fn round(peer: &mut Peer, call: Call, in_flight: usize, bench: &Bench) -> Result<Round, Error> {
    let scale = bench.scale;
    peer.watched(scale.warm_up + scale.round, |peer| {
        peer.run(call, in_flight, scale.until())
    })
}

/// One load on one command.
#[derive(Debug, clap::Args)]
pub(crate) struct Single {
    /// Calls in flight.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// How long.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Which calls.
    #[arg(long, value_enum, default_value_t = Kinds::Reading)]
    call: Kinds,
    /// The command.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Kinds {
    Reading,
    Same,
    Different,
    Keyed,
}

impl Single {
    /// Runs it and prints the figure.
    pub(crate) fn run(&self) -> Result<(), Error> {
        let call = match self.call {
            Kinds::Reading => Call::Reading,
            Kinds::Same => Call::Same,
            Kinds::Different => Call::Different,
            Kinds::Keyed => Call::Keyed(Series::new(Kind::TimeOrdered)?),
        };
        let until = Until::Elapsed {
            warm_up: Duration::from_millis(500),
            measured: Duration::from_secs(self.seconds),
        };
        let log = Path::new("/dev/null");
        let (mut peer, _) = Peer::start("the command", &mut command(&self.command)?, log)?;
        let limit = Duration::from_secs(self.seconds);
        let round = peer.watched(limit, |peer| peer.run(call, self.in_flight, until))?;
        Report::default().figure(&Figure::new("calls", &[round])?);
        Ok(())
    }
}
