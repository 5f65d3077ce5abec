//! The SQLite store, as the configuration asks for it.

use counterfoil_sqlite::{OpenError, Options, SqliteStore};

use crate::{
    config::{Config, Migrate},
    exit::Failure,
    folder::Folder,
    open::{Mode, not_migrated},
};

pub(crate) async fn open(
    config: &Config,
    folder: &Folder,
    mode: Mode,
) -> Result<SqliteStore, Failure> {
    if mode == Mode::Serving && config.migrate == Migrate::Never {
        check(config, folder)?;
    }
    let mut options = options(config);
    options.read_only = mode == Mode::Reading;
    options.must_exist = folder.knows_receipts();
    let opened = SqliteStore::open(folder.database(), options);
    if let Err(OpenError::Lost(path)) = &opened {
        let path = path.display();
        return Err(folder.receipts_lost(&format!("{path} is missing or holds nothing any more")));
    }
    Ok(opened?)
}

#[allow(
    clippy::field_reassign_with_default,
    reason = "the options have a private field"
)]
fn options(config: &Config) -> Options {
    let mut options = Options::default();
    options.queue_max = config.queue_max;
    options.lock_patience = config.lock_patience;
    options
}

/// The version of the store's own tables; 0 for none.
pub(crate) fn version(config: &Config, folder: &Folder) -> Result<i64, Failure> {
    let mut options = options(config);
    options.read_only = true;
    match SqliteStore::open(folder.database(), options) {
        Ok(_) => Ok(SqliteStore::SCHEMA_VERSION),
        Err(OpenError::Missing(_) | OpenError::Lost(_)) => Ok(0),
        Err(OpenError::OlderSchema { found, .. } | OpenError::NewerSchema { found, .. }) => {
            Ok(found)
        }
        Err(error) => Err(error.into()),
    }
}

/// Refuses tables that would have to be changed.
fn check(config: &Config, folder: &Folder) -> Result<(), Failure> {
    if folder.knows_receipts() && !folder.database().exists() {
        let path = folder.database();
        return Err(folder.receipts_lost(&format!("{} is missing", path.display())));
    }
    let (found, known) = (version(config, folder)?, SqliteStore::SCHEMA_VERSION);
    if found != known {
        return Err(not_migrated(config, found, known));
    }
    Ok(())
}
