use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rusqlite::{Connection, Error as Sqlite, OpenFlags, config::DbConfig};

use crate::{Options, error::is_busy, fault::Seam, guard::Guard};

/// Number of prepared statements each connection keeps.
const STATEMENTS: usize = 256;
/// After a checkpoint the write-ahead log is cut back to this, in bytes.
const LOG_BYTES: i64 = 128 << 20;
/// How long a reader waits for a lock. Readers meet one only while a log is recovered.
const READER_PATIENCE: Duration = Duration::from_secs(1);

/// A connection with the guard of its statements.
#[derive(Debug)]
pub(crate) struct Guarded {
    pub(crate) sqlite: Connection,
    pub(crate) guard: Arc<Guard>,
}

/// Where the database is and how it can be opened.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    /// Nobody can write to it, not even to its shared memory: read it without locks.
    pub(crate) immutable: bool,
    pub(crate) seam: Seam,
}

impl Place {
    /// The writer's connection. Waits for nothing by itself: the caller polls.
    pub(crate) fn writer(&self, options: &Options) -> Result<Guarded, Sqlite> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut sqlite = Connection::open_with_flags(&self.path, flags)?;
        sqlite.busy_timeout(Duration::ZERO)?;
        sqlite.set_prepared_statement_cache_capacity(STATEMENTS);
        keep_plans(&sqlite)?;
        set(&sqlite, "synchronous", "FULL")?;
        set(&sqlite, "foreign_keys", "ON")?;
        set(&sqlite, "cache_size", -i64::from(options.cache_kib))?;
        set(&sqlite, "wal_autocheckpoint", 8000)?;
        set(&sqlite, "journal_size_limit", LOG_BYTES)?;
        set(&sqlite, "temp_store", "MEMORY")?;
        if let Some(pages) = self.seam.pages_max() {
            set(&sqlite, "max_page_count", pages)?;
        }
        let guard = Guard::install(&mut sqlite)?;
        Ok(Guarded { sqlite, guard })
    }

    /// A connection that can only read.
    pub(crate) fn reader(&self, options: &Options) -> Result<Guarded, Sqlite> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_URI;
        let mut sqlite = if self.immutable {
            Connection::open_with_flags(immutable_uri(&self.path), flags)?
        } else {
            Connection::open_with_flags(&self.path, flags & !OpenFlags::SQLITE_OPEN_URI)?
        };
        sqlite.busy_timeout(READER_PATIENCE)?;
        sqlite.set_prepared_statement_cache_capacity(STATEMENTS);
        keep_plans(&sqlite)?;
        set(&sqlite, "query_only", "ON")?;
        set(&sqlite, "cache_size", -i64::from(options.reader_cache_kib))?;
        set(&sqlite, "temp_store", "MEMORY")?;
        let guard = Guard::install(&mut sqlite)?;
        Ok(Guarded { sqlite, guard })
    }
}

/// Plans do not depend on bound values. Otherwise the partial indexes make SQLite prepare a
/// statement anew each time a value is bound, to see whether the index fits it.
fn keep_plans(sqlite: &Connection) -> Result<(), Sqlite> {
    sqlite
        .set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
        .map(drop)
}

fn set(sqlite: &Connection, name: &str, value: impl rusqlite::ToSql) -> Result<(), Sqlite> {
    sqlite.pragma_update(None, name, value)
}

/// Everything but plain letters is escaped, so that no path can smuggle in a parameter.
fn immutable_uri(path: &Path) -> String {
    use std::fmt::Write as _;
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_encoded_bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'-' | b'_') {
            uri.push(char::from(*byte));
        } else {
            let _ = write!(uri, "%{byte:02x}");
        }
    }
    uri.push_str("?immutable=1");
    uri
}

/// A pause of about a millisecond, differently long each time, so that two processes that poll do
/// not stay in step.
pub(crate) fn pause(round: u32) {
    let jitter = Duration::from_micros(u64::from(round.wrapping_mul(2_654_435_761) % 700));
    std::thread::sleep(Duration::from_micros(700) + jitter);
}

/// Repeats `step` while another process holds the lock it needs, for at most `patience`.
pub(crate) fn patiently<T>(
    patience: Duration,
    mut step: impl FnMut() -> Result<T, Sqlite>,
) -> Result<T, Sqlite> {
    let start = Instant::now();
    let mut round = std::process::id();
    loop {
        match step() {
            Err(error) if is_busy(&error) && start.elapsed() < patience => {
                round = round.wrapping_add(1);
                pause(round);
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Place, Seam};
    use crate::{Options, SqliteStore};

    #[tokio::test]
    async fn a_file_nobody_can_write_to_is_read_without_locks_whatever_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a?mode=rw&b #1%20é.db");
        let store = SqliteStore::open(&path, Options::default()).unwrap();
        store.close().await;
        let place = Place {
            path,
            immutable: true,
            seam: Seam::default(),
        };
        let reader = place.reader(&Options::default()).unwrap();
        let version = crate::schema::version(&reader.sqlite).unwrap();
        assert_eq!(version, crate::schema::VERSION);
        let beside = std::fs::read_dir(folder.path()).unwrap();
        assert_eq!(beside.count(), 1, "no log and no shared memory is made");
    }
}
