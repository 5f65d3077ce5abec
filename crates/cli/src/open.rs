use std::{net::IpAddr, path::Path, sync::Arc, time::Duration};

use counterfoil_engine::{Engine, KeyRing, Limits};
use counterfoil_postgres::PostgresStore;
use counterfoil_server::{Application, Rate, Settings};
use counterfoil_sqlite::SqliteStore;
use counterfoil_store::Store;

use crate::{
    address::Address,
    config::{Config, Migrate},
    exit::{Exit, Failure},
    folder::{Folder, warn_if_open},
    postgres, sqlite,
    store_copy::is_unfinished,
};

pub(crate) use postgres::database_address;

/// A store that is open.
pub(crate) enum Opened {
    Sqlite(SqliteStore),
    Postgres(PostgresStore),
}

impl Opened {
    /// The store, as everybody else knows it.
    pub(crate) fn shared(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(store) => Arc::new(store.clone()),
            Self::Postgres(store) => Arc::new(store.clone()),
        }
    }

    /// Ends it, after what waits is recorded.
    pub(crate) async fn close(&self) {
        match self {
            Self::Sqlite(store) => store.close().await,
            Self::Postgres(store) => store.close().await,
        }
    }

    /// The version of an application's tables; 0 for none.
    pub(crate) async fn component_version(&self, name: &str) -> Result<i64, Failure> {
        let found = match self {
            Self::Sqlite(store) => store.component_version(name).await,
            Self::Postgres(store) => store.component_version(name).await,
        };
        Ok(found?)
    }
}

/// What a store is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To look at receipts that are there.
    Reading,
    /// To change something in a store that is there.
    Changing,
    /// To take calls: a store that is not there is made, unless `migrate = "never"` says otherwise.
    Serving,
    /// To bring the tables up, whatever `migrate` says.
    Migrating,
}

/// The data folder as a command needs it: with SQLite it is there for good, with PostgreSQL only
/// once something has to be kept in it.
pub(crate) fn folder(config: &Config, mode: Mode) -> Result<Folder, Failure> {
    match (&config.store, mode) {
        (Address::Sqlite(_), Mode::Serving | Mode::Migrating) => {
            let folder = Folder::at(config);
            folder.create()?;
            Ok(folder)
        }
        (Address::Sqlite(_), Mode::Reading | Mode::Changing) => Folder::existing(config),
        (Address::Postgres(_), _) => Ok(Folder::at(config)),
    }
}

/// Opens the store that the configuration names, for the application. Close it when all is done.
pub(crate) async fn open(config: &Config, folder: &Folder, mode: Mode) -> Result<Opened, Failure> {
    let store = open_receipts(config, folder, mode).await?;
    match check_application(config, &store, mode).await {
        Ok(()) => Ok(store),
        Err(failure) => {
            store.close().await;
            Err(failure)
        }
    }
}

/// Refuses tables of the application that would have to be made or changed first.
async fn check_application(config: &Config, store: &Opened, mode: Mode) -> Result<(), Failure> {
    let must_be_there = match (&config.store, mode) {
        (_, Mode::Serving) => config.migrate == Migrate::Never,
        (Address::Postgres(_), Mode::Reading | Mode::Changing) => true,
        (Address::Sqlite(_), Mode::Reading | Mode::Changing) | (_, Mode::Migrating) => false,
    };
    if !must_be_there {
        return Ok(());
    }
    let found = store.component_version(Application::COMPONENT).await?;
    let known = Application::SCHEMA_VERSION;
    if found == known {
        return Ok(());
    }
    Err(not_migrated(config, found, known))
}

/// Opens the store that the configuration names, for its receipts alone: whether an application
/// has tables there does not matter. Close it when all is done.
pub(crate) async fn open_receipts(
    config: &Config,
    folder: &Folder,
    mode: Mode,
) -> Result<Opened, Failure> {
    for path in [&config.store_in, &config.store_password_file]
        .into_iter()
        .flatten()
    {
        warn_if_open(path);
    }
    let store = match &config.store {
        Address::Sqlite(_) => Opened::Sqlite(sqlite::open(config, folder, mode).await?),
        Address::Postgres(_) => Opened::Postgres(postgres::open(config, folder, mode).await?),
    };
    let takes_calls = match mode {
        Mode::Serving | Mode::Changing => true,
        Mode::Reading | Mode::Migrating => false,
    };
    if takes_calls && is_unfinished(store.shared().as_ref()).await? {
        store.close().await;
        return Err(Failure::new(
            Exit::Store,
            format!("a copy into {} was not brought to its end", config.store),
        )
        .hint("run the same `counterfoil store copy` again: it goes on where it was cut off. Until then keys that are missing here would run again"));
    }
    Ok(store)
}

/// Tables that are not what this program writes, and that it was told to leave alone.
pub(crate) fn not_migrated(config: &Config, found: i64, known: i64) -> Failure {
    let failure = Failure::new(
        Exit::Store,
        format!(
            "the tables in {} are of version {found}, and must be of {known}",
            config.store
        ),
    );
    if found > known {
        failure.hint("start the newer version of the program")
    } else {
        failure.hint("run `counterfoil migrate`")
    }
}

/// Opens the store and starts the application on it.
///
/// Close the store when the application is done.
pub(crate) async fn application(
    config: &Config,
    folder: &Folder,
    mode: Mode,
) -> Result<(Application, Opened), Failure> {
    let settings = settings(config)?;
    let store = open(config, folder, mode).await?;
    match Application::start(store.shared(), settings).await {
        Ok(application) => Ok((application, store)),
        Err(error) => {
            store.close().await;
            Err(error.into())
        }
    }
}

/// Before a process takes calls: one whose clock is not that of the ones before it would expire
/// receipts too early, or leave ones that are over at once when the clock is set right.
///
/// `way` is the command that accepts it once.
pub(crate) async fn check_clock(engine: &Engine, accept: bool, way: &str) -> Result<(), Failure> {
    match engine.check_clock(accept).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(moved)) => Err(Failure::new(Exit::Store, moved.to_string()).hint(format!(
            "set the machine's clock right; if it is right now, say `{way}` once"
        ))),
        Err(error) => Err(counterfoil_server::Error::from(error).into()),
    }
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

/// Runs a command that only looks: a SQLite database is opened for reading, so that it works on a
/// full disk and on a folder that cannot be written to, and never holds a server up.
pub(crate) fn with_reading<T, F>(config: &Config, body: F) -> Result<T, Failure>
where
    F: AsyncFnOnce(Application) -> Result<T, Failure>,
{
    let folder = folder(config, Mode::Reading)?;
    let settings = settings(config)?;
    runtime()?.block_on(async {
        let store = open(config, &folder, Mode::Reading).await?;
        let done = match Application::attach(store.shared(), settings) {
            Ok(application) => body(application).await,
            Err(error) => Err(error.into()),
        };
        store.close().await;
        done
    })
}

/// Runs a short command: a runtime, the application, no background work.
pub(crate) fn with_application<T, F>(config: &Config, body: F) -> Result<T, Failure>
where
    F: AsyncFnOnce(Application) -> Result<T, Failure>,
{
    let folder = folder(config, Mode::Changing)?;
    runtime()?.block_on(async {
        let (application, store) = application(config, &folder, Mode::Changing).await?;
        let done = body(application).await;
        store.close().await;
        done
    })
}

/// Runs a short command on receipts alone: the store may be an application's or a proxy's, and
/// nothing but the receipts is looked for in it.
pub(crate) fn with_engine<T, F>(config: &Config, mode: Mode, body: F) -> Result<T, Failure>
where
    F: AsyncFnOnce(Engine) -> Result<T, Failure>,
{
    let folder = folder(config, mode)?;
    runtime()?.block_on(async {
        let store = open_receipts(config, &folder, mode).await?;
        let limits = Limits {
            patience: config.lock_patience,
            ..Limits::default()
        };
        let done = body(Engine::builder(store.shared()).limits(limits).build()).await;
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

/// The runtime of a command that serves a single client over its standard streams: one thread. Most
/// of what a message costs there is waking threads, and there is nothing for a second one to do.
pub(crate) fn runtime_for_one() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(Duration::from_secs(10))
        .build()
        .map_err(|error| Failure::new(Exit::Failure, format!("no runtime: {error}")))
}
