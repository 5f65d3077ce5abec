//! The PostgreSQL store, as the configuration asks for it.

use counterfoil_postgres::{OpenError, Options, PostgresStore};

use crate::{
    address::Address,
    config::{Config, Migrate},
    exit::{Exit, Failure},
    folder::{Folder, read_line},
    open::{Mode, not_migrated},
};

/// The address with its password, which must never be shown. `None` for another store.
pub(crate) fn database_address(config: &Config) -> Result<Option<String>, Failure> {
    let mut address = config.store.clone();
    if let (Address::Postgres(_), Some(path)) = (&address, &config.store_password_file) {
        let password = read_line(path, "store_password_file", "the password")?;
        address = address.with_password(&password);
    }
    match address {
        Address::Postgres(url) => Ok(Some(url)),
        Address::Sqlite(_) => Ok(None),
    }
}

pub(crate) async fn open(
    config: &Config,
    folder: &Folder,
    mode: Mode,
) -> Result<PostgresStore, Failure> {
    let may_change = match mode {
        Mode::Reading | Mode::Changing => false,
        Mode::Serving => config.migrate == Migrate::Auto,
        Mode::Migrating => true,
    };
    let (address, options) = (address(config)?, options(config));
    // Whoever holds an agent key knows of receipts: an empty database is not theirs.
    let looks_first = !may_change || (mode == Mode::Serving && folder.knows_receipts());
    let opened = if looks_first {
        PostgresStore::open_migrated(&address, options.clone()).await
    } else {
        PostgresStore::open(&address, options.clone()).await
    };
    let opened = match opened {
        Err(OpenError::NotMigrated { found: 0, .. }) if may_change => {
            return Err(elsewhere(config, folder));
        }
        Err(OpenError::NotMigrated { .. }) if may_change => {
            PostgresStore::open(&address, options).await
        }
        opened => opened,
    };
    opened.map_err(|error| failure(config, mode, error))
}

/// The version of the store's own tables; 0 for none. Changes nothing.
pub(crate) async fn version(config: &Config) -> Result<i64, Failure> {
    match PostgresStore::open_migrated(&address(config)?, options(config)).await {
        Ok(store) => {
            store.close().await;
            Ok(PostgresStore::SCHEMA_VERSION)
        }
        Err(OpenError::NotMigrated { found, .. } | OpenError::Newer { found, .. }) => Ok(found),
        Err(error) => Err(failure(config, Mode::Migrating, error)),
    }
}

/// The folder's agent key is of receipts that are not in this database.
pub(crate) fn elsewhere(config: &Config, folder: &Folder) -> Failure {
    let key = folder.agent_key();
    Failure::new(
        Exit::Store,
        format!(
            "{} does not know the agent key in {}: it is another database, or its receipts are gone",
            config.store,
            key.display()
        ),
    )
    .hint(format!(
        "give the right --store, or restore that database; `counterfoil store copy` moves receipts from a SQLite file. To begin anew, remove {}: then every idempotency key used so far RUNS AGAIN",
        key.display()
    ))
}

fn address(config: &Config) -> Result<String, Failure> {
    database_address(config)?
        .ok_or_else(|| Failure::new(Exit::Failure, "the store is no PostgreSQL database"))
}

fn options(config: &Config) -> Options {
    let mut options = Options {
        root_certificates: config.store_ca.clone(),
        pooler: config.store_pooler,
        queue_max: config.queue_max,
        patience: config.lock_patience,
        ..Options::default()
    };
    // Besides its lanes and readers a store has one connection that listens and one that looks at
    // the database every second.
    let others = options.lanes + options.readers + 2;
    options.connections_max = config.store_connections.saturating_sub(others).max(1);
    options
}

fn failure(config: &Config, mode: Mode, error: OpenError) -> Failure {
    let store = &config.store;
    let said = format!("{store}: {error}");
    match error {
        OpenError::Address(_) | OpenError::Certificates { .. } => {
            Failure::split(Exit::Config, &said)
        }
        OpenError::NotMigrated { found: 0, .. } if mode != Mode::Serving => Failure::new(
            Exit::NotFound,
            format!("there are no Counterfoil tables in {store}"),
        )
        .hint("run `counterfoil migrate` or `counterfoil serve` on it first, or give another --store"),
        OpenError::NotMigrated { found, known } => not_migrated(config, found, known),
        OpenError::Refused(why) if why.contains("permission denied") => {
            Failure::new(Exit::Store, said).hint(
                "the role may not do this: make it the owner of the database, or run `counterfoil migrate` as a role that may and GRANT this one SELECT, INSERT, UPDATE, DELETE on the tables and USAGE on the sequences",
            )
        }
        OpenError::Refused(_) => Failure::new(Exit::Store, said).hint(
            "check that the database runs, that this machine may connect to it (pg_hba.conf), and that the user, the password and the database are right",
        ),
        OpenError::Pooler => Failure::new(
            Exit::Store,
            format!("a pooler stands in front of {store} and dropped the settings of this session"),
        )
        .hint("connect to the database itself, or set store_pooler = true (--store-pooler)"),
        OpenError::TooOld { .. }
        | OpenError::Encoding(_)
        | OpenError::ReadOnly
        | OpenError::Newer { .. } => Failure::split(Exit::Store, &said),
    }
}
