//! A proxy from its start to its end.

use std::{future::Future, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use counterfoil_engine::{Engine, Limits};
use counterfoil_http::{Bounds, Drained};
use counterfoil_proxy::{Proxy, ServeError, Settings, StartError, Target};
use tokio::{net::TcpListener, sync::watch};

use super::{
    args::Proxy as Args,
    clients::quoted,
    label,
    plan::{Plan, absolute, plan},
};
use crate::{
    address::Address,
    config::Config,
    environment,
    exit::{Exit, Failure},
    folder::Folder,
    open::{Mode, check_clock, open_receipts, runtime, runtime_for_one},
    output::say,
    serve::{EXIT_KILLED, Signals, cannot_listen},
    telemetry::Telemetry,
};

/// Headers of a request: the client's own, and one `Mcp-Param-*` for each marked argument.
const HEADERS_MAX: usize = 200;
/// What is still to be recorded once everything was answered or given up.
const RECORD_FOR: Duration = Duration::from_secs(5);

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let Plan {
        settings,
        config,
        listen,
    } = plan(args)?;
    check_program(&settings)?;
    let telemetry = Telemetry::start(&config)?;
    let folder = Folder::of_proxy(&config);
    if matches!(config.store, Address::Sqlite(_)) {
        folder.create()?;
    }
    let runtime = match listen {
        None => runtime_for_one()?,
        Some(_) => runtime()?,
    };
    let start = Start {
        settings,
        config: &config,
        folder: &folder,
        accept_clock: args.accept_clock,
    };
    let done = runtime.block_on(start.run(listen));
    // A read of standard input may still be waiting on a thread: it is not waited for.
    runtime.shutdown_background();
    telemetry.finish();
    done
}

/// Before anything is made: whether there is such a program at all.
fn check_program(settings: &Settings) -> Result<(), Failure> {
    let Target::Command {
        program,
        environment,
        ..
    } = &settings.target
    else {
        return Ok(());
    };
    let own = environment.iter().find(|(name, _)| name == "PATH");
    let search = match own {
        Some((_, value)) => value.clone(),
        None => environment::variable("PATH").unwrap_or_default(),
    };
    if environment::is_program(program, &search) {
        return Ok(());
    }
    let hint = if program.contains(' ') {
        "write the program and its arguments as separate words"
    } else if program.contains('/') {
        "check the path, and that it may be executed"
    } else {
        "install it, or give its full path: a client may start programs with a shorter PATH than your shell"
    };
    let text = format!("there is no program `{program}`");
    Err(Failure::new(Exit::NotFound, text).hint(hint))
}

struct Start<'a> {
    settings: Settings,
    config: &'a Config,
    folder: &'a Folder,
    accept_clock: bool,
}

impl Start<'_> {
    async fn run(self, listen: Option<SocketAddr>) -> Result<(), Failure> {
        // First of all: whoever started this may stop it at once.
        let signals = Signals::new()?;
        let listener = match listen {
            None => None,
            Some(address) => {
                let bound = TcpListener::bind(address).await;
                Some(bound.map_err(|error| cannot_listen(address, &error))?)
            }
        };
        let store = open_receipts(self.config, self.folder, Mode::Serving).await?;
        let shared = store.shared();
        let limits = Limits {
            patience: self.config.lock_patience,
            ..Limits::default()
        };
        let engine = Engine::builder(Arc::clone(&shared)).limits(limits).build();
        let drain_for = self.settings.drain_for;
        let done = async {
            check_clock(&engine, self.accept_clock, "proxy --accept-clock").await?;
            label::keep(shared.as_ref(), &self.settings).await?;
            let proxy = Proxy::start(engine.clone(), self.settings).await?;
            let receipts = receipts(self.config);
            work(proxy, listener, signals, drain_for, &receipts).await
        };
        let done = done.await;
        // What was answered is recorded; what hangs is recorded as unknown by whoever comes next.
        let _ = engine.drain(RECORD_FOR).await;
        store.close().await;
        done
    }
}

/// Serves until the client goes, or a signal comes; then ends what is behind the proxy.
async fn work(
    proxy: Proxy,
    listener: Option<TcpListener>,
    signals: Signals,
    drain_for: Duration,
    receipts: &str,
) -> Result<(), Failure> {
    let background = tokio::spawn({
        let proxy = proxy.clone();
        async move { proxy.maintain().await }
    });
    let stop = stop(signals);
    let done = match listener {
        None => {
            let done = proxy.serve_standard(stop).await;
            done.map_err(|error| not_served(&error, receipts))
        }
        Some(listener) => serve(&proxy, listener, stop, drain_for).await,
    };
    background.abort();
    let _ = background.await;
    proxy.finish().await;
    done
}

/// Completes at the first signal. The second one ends the process, whatever it does.
fn stop(mut signals: Signals) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let (stopped, mut stop) = watch::channel(false);
    tokio::spawn(async move {
        signals.next().await;
        tracing::info!(
            "stopping; what is under way is finished first, a second signal ends at once"
        );
        let _ = stopped.send(true);
        signals.next().await;
        tracing::warn!("ended at once; what was under way is unknown");
        std::process::exit(EXIT_KILLED);
    });
    Box::pin(async move {
        let _ = stop.wait_for(|stopped| *stopped).await;
    })
}

async fn serve(
    proxy: &Proxy,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
    drain_for: Duration,
) -> Result<(), Failure> {
    let router = proxy.router()?;
    let address = listener
        .local_addr()
        .map_err(|error| Failure::new(Exit::Listen, error.to_string()))?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "other machines reach this address, and tokens cross the network unencrypted unless a proxy in front ends TLS");
    }
    say(&format!(
        "Counterfoil proxy listens on http://{address}/mcp"
    ));
    let bounds = Bounds {
        headers_max: HEADERS_MAX,
        drain_for,
        half_close: false,
        ..Bounds::default()
    };
    let stop = async {
        stop.await;
        proxy.stop_listening();
    };
    let Drained { cut } = counterfoil_http::serve(listener, router, bounds, stop).await;
    if cut > 0 {
        tracing::warn!(
            connections_cut = cut,
            "stopped with something still under way; its operations tell what became of it"
        );
    }
    Ok(())
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Settings(error) => Self::split(Exit::Config, &error.to_string()),
            StartError::Front(error) => Self::split(Exit::Config, &error.to_string()),
            StartError::Store(error) => error.into(),
            StartError::NoRandomness => Self::new(Exit::Failure, error.to_string()),
        }
    }
}

fn not_served(error: &ServeError, receipts: &str) -> Failure {
    let failure = Failure::new(Exit::Failure, error.to_string());
    match error {
        ServeError::Upstream(_) => failure,
        ServeError::Ended(_) => failure.hint(format!(
            "what was under way is unknown: `counterfoil operations list {receipts}` shows it"
        )),
    }
}

/// How other commands are told where the receipts of this proxy are. Their own default is the
/// server's folder. A password of a database is not shown.
fn receipts(config: &Config) -> String {
    match &config.store {
        Address::Sqlite(None) => {
            format!(
                "--state {}",
                quoted(&absolute(&config.data).display().to_string())
            )
        }
        Address::Sqlite(Some(_)) | Address::Postgres(_) => {
            format!("--store {}", quoted(&config.store.to_string()))
        }
    }
}
