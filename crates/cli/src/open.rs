use std::{net::IpAddr, path::Path, sync::Arc, time::Duration};

use counterfoil_engine::KeyRing;
use counterfoil_server::{Application, Rate, Settings};
use counterfoil_sqlite::{OpenError, Options, SqliteStore};
use counterfoil_store::Store;

use crate::{
    config::Config,
    exit::{Exit, Failure},
    folder::{Folder, warn_if_open},
};

/// Opens the database of a data folder and starts the application on it.
///
/// Close the store when the application is done.
pub(crate) async fn application(
    config: &Config,
    folder: &Folder,
) -> Result<(Application, SqliteStore), Failure> {
    let settings = settings(config)?;
    let store = open(config, folder, Mode::Writing)?;
    let shared: Arc<dyn Store> = Arc::new(store.clone());
    Ok((Application::start(shared, settings).await?, store))
}

/// Before a process takes calls: one whose clock is not that of the ones before it would expire
/// receipts too early, or leave ones that are over at once when the clock is set right.
pub(crate) async fn check_clock(application: &Application, accept: bool) -> Result<(), Failure> {
    match application.engine().check_clock(accept).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(moved)) => Err(Failure::new(Exit::Store, moved.to_string()).hint(
            "set the machine's clock right; if it is right now, say `serve --accept-clock` once",
        )),
        Err(error) => Err(counterfoil_server::Error::from(error).into()),
    }
}

/// What the database is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Reading,
    Writing,
}

#[allow(
    clippy::field_reassign_with_default,
    reason = "the options have a private field"
)]
fn open(config: &Config, folder: &Folder, mode: Mode) -> Result<SqliteStore, Failure> {
    let mut options = Options::default();
    options.queue_max = config.queue_max;
    options.lock_patience = config.lock_patience;
    options.read_only = mode == Mode::Reading;
    options.must_exist = folder.knows_receipts();
    let opened = SqliteStore::open(folder.database(), options);
    if let Err(OpenError::Lost(path)) = &opened {
        let path = path.display();
        return Err(folder.receipts_lost(&format!("{path} is missing or holds nothing any more")));
    }
    Ok(opened?)
}

/// What the application gets, checked as far as it can be without a store.
pub(crate) fn settings(config: &Config) -> Result<Settings, Failure> {
    let mut settings = Settings::default();
    settings.retention.replay_for = config.replay_for;
    settings.retention.tombstone_for = config.tombstone_for;
    settings.meta_prefix.clone_from(&config.meta_prefix);
    settings.allowed_hosts.clone_from(&config.allowed_hosts);
    // An address is nobody's name: it cannot be turned against us by DNS.
    settings.allowed_hosts.push(match config.listen.ip() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    });
    settings.allowed_origins.clone_from(&config.allowed_origins);
    settings.body_bytes_max = config.body_bytes_max;
    settings.limits.patience = config.lock_patience;
    settings.drain_for = config.drain;
    settings.rate = Rate {
        per_second: config.rate_per_second,
        burst: config.rate_burst,
    };
    settings.seal_notes = config.seal_notes;
    settings.key_ring = config.key_file.as_deref().map(key_ring).transpose()?;
    settings.check()?;
    Ok(settings)
}

fn key_ring(path: &Path) -> Result<Arc<KeyRing>, Failure> {
    warn_if_open(path);
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::new(
            Exit::Config,
            format!(
                "sealing.key_file {} cannot be read: {error}",
                path.display()
            ),
        )
        .hint("check the path and its permissions")
    })?;
    let ring = KeyRing::parse(&text).map_err(|error| {
        Failure::split(
            Exit::Config,
            &format!("sealing.key_file {}: {error}", path.display()),
        )
    })?;
    Ok(Arc::new(ring))
}

/// Runs a command that only looks: the database is opened for reading, so that it works on a full
/// disk and on a folder that cannot be written to, and never holds a server up.
pub(crate) fn with_reading<T, F>(config: &Config, body: F) -> Result<T, Failure>
where
    F: AsyncFnOnce(Application) -> Result<T, Failure>,
{
    let folder = Folder::existing(&config.data)?;
    let settings = settings(config)?;
    let store = open(config, &folder, Mode::Reading)?;
    let shared: Arc<dyn Store> = Arc::new(store.clone());
    runtime()?.block_on(async {
        let done = body(Application::attach(shared, settings)?).await;
        store.close().await;
        done
    })
}

/// Runs a short command: a runtime, the application, no background work.
pub(crate) fn with_application<T, F>(config: &Config, body: F) -> Result<T, Failure>
where
    F: AsyncFnOnce(Application) -> Result<T, Failure>,
{
    let folder = Folder::existing(&config.data)?;
    runtime()?.block_on(async {
        let (application, store) = application(config, &folder).await?;
        let done = body(application).await;
        store.close().await;
        done
    })
}

/// The runtime of every command.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_keep_alive(Duration::from_secs(10))
        .build()
        .map_err(|error| Failure::new(Exit::Failure, format!("no runtime: {error}")))
}
