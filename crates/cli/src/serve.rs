use std::net::SocketAddr;

use counterfoil_http::{Bounds, Drained};
use counterfoil_server::Application;
use tokio::{
    net::TcpListener,
    sync::oneshot,
    time::{Instant, timeout_at},
};

use crate::{
    args::Serve,
    config::Config,
    exit::{Exit, Failure},
    folder::{FirstKey, Folder, read_secret},
    open::{Mode, application, check_clock, folder, runtime},
    output::print,
    telemetry::Telemetry,
    welcome,
};

/// A stop that takes longer than its bound ends the process all the same.
pub(crate) const EXIT_KILLED: i32 = 130;

pub(crate) fn run(serve: &Serve) -> Result<(), Failure> {
    let config = Config::load(&serve.flags())?;
    config.check_address()?;
    let telemetry = Telemetry::start(&config)?;
    let folder = folder(&config, Mode::Serving)?;
    let runtime = runtime()?;
    let done = runtime.block_on(listen(&config, &folder, serve.accept_clock));
    // What still runs has had its time; its rows say unknown after their leases.
    runtime.shutdown_background();
    telemetry.finish();
    done
}

async fn listen(config: &Config, folder: &Folder, accept_clock: bool) -> Result<(), Failure> {
    // Before anything is said: whoever reads it may stop us at once.
    let signals = Signals::new()?;
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|error| cannot_listen(config.listen, &error))?;
    let address = listener
        .local_addr()
        .map_err(|error| cannot_listen(config.listen, &error))?;
    let (application, store) = application(config, folder, Mode::Serving).await?;
    check_clock(application.engine(), accept_clock, "serve --accept-clock").await?;
    let first = folder
        .first_key(config, application.engine(), &application.agent_keys())
        .await?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "other machines reach this address, and credentials cross the network unencrypted unless a proxy in front ends TLS");
    }
    greet(address, config, folder, &first)?;
    let background = tokio::spawn({
        let application = application.clone();
        async move { application.maintain().await }
    });
    until_stopped(listener, &application, config, signals).await;
    background.abort();
    let _ = background.await;
    store.close().await;
    Ok(())
}

fn greet(
    address: SocketAddr,
    config: &Config,
    folder: &Folder,
    first: &FirstKey,
) -> Result<(), Failure> {
    let key = match first {
        FirstKey::New => read_secret(&folder.agent_key())?,
        FirstKey::Old | FirstKey::Stale | FirstKey::Elsewhere(_) => String::new(),
    };
    print(&welcome::text(address, config, folder, first, &key))
}

async fn until_stopped(
    listener: TcpListener,
    application: &Application,
    config: &Config,
    mut signals: Signals,
) {
    let bounds = Bounds {
        connections_max: config.connections_max,
        headers_max: config.headers_max,
        drain_for: config.drain,
        ..Bounds::default()
    };
    let (stopped, stop) = oneshot::channel();
    let told = application.clone();
    // Until the process ends: a second signal also cuts the closing of the store short.
    tokio::spawn(async move {
        signals.next().await;
        tracing::info!(
            "stopping; what is in flight is finished first, a second signal ends at once"
        );
        told.start_draining();
        let _ = stopped.send(Instant::now());
        signals.next().await;
        tracing::warn!("ended at once; what was in flight is unknown");
        std::process::exit(EXIT_KILLED);
    });
    let (at, asked) = oneshot::channel();
    let shutdown = async move {
        let _ = at.send(stop.await.unwrap_or_else(|_| Instant::now()));
    };
    let Drained { cut } =
        counterfoil_http::serve(listener, application.router(), bounds, shutdown).await;
    let deadline = asked.await.unwrap_or_else(|_| Instant::now()) + config.drain;
    let all = timeout_at(deadline, application.drain(config.drain)).await;
    if cut > 0 || !matches!(all, Ok(true)) {
        tracing::warn!(
            connections_cut = cut,
            "stopped with something still in flight; its operations tell what became of it"
        );
    } else {
        tracing::info!("stopped");
    }
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "the enum is non-exhaustive, and every kind has a hint"
)]
pub(crate) fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "another process has this port; stop it, or name another port with --listen"
        }
        std::io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege; name another",
        std::io::ErrorKind::AddrNotAvailable => "this machine does not have that address",
        _ => "name another address with --listen",
    };
    Failure::new(Exit::Listen, format!("cannot listen on {address}: {error}")).hint(hint)
}

/// Ctrl-C and SIGTERM.
pub(crate) struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    pub(crate) fn new() -> Result<Self, Failure> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |error| {
            Failure::new(
                Exit::Failure,
                format!("no signals can be received: {error}"),
            )
        };
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
        })
    }

    #[cfg(not(unix))]
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self {})
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        #[cfg(not(unix))]
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
