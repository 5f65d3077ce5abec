//! Whether the file is still where it was opened.
//!
//! A file that was removed or replaced under a running process goes on to take writes, and they go
//! with it when the process ends. So the name is looked at before anybody is answered: one
//! `stat(2)`, about a microsecond.

use std::{
    ffi::c_int,
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rusqlite::{Error as Sqlite, ffi};

/// How old a look may be that a reader relies on.
const FRESH: Duration = Duration::from_millis(100);

/// Which file it is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

/// Looks after the database file and its log.
#[derive(Debug)]
pub(crate) struct Presence {
    path: PathBuf,
    log: PathBuf,
    database: Option<FileId>,
    /// Known from when a connection was first seen to write it, until all connections close.
    log_id: Mutex<Option<FileId>>,
    opened: Instant,
    looked_at_ms: AtomicU64,
    gone: AtomicBool,
}

impl Presence {
    pub(crate) fn new(path: &Path) -> Self {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        Self {
            path: path.to_owned(),
            log: PathBuf::from(log),
            database: id_of(path).map(|(id, _)| id),
            log_id: Mutex::default(),
            opened: Instant::now(),
            looked_at_ms: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        }
    }

    /// Looks now.
    ///
    /// # Errors
    /// SQLITE_CANTOPEN, saying which file was removed or replaced.
    pub(crate) fn look(&self) -> Result<(), Sqlite> {
        let found = self.found();
        if found.is_err() && !self.gone.swap(true, Ordering::AcqRel) {
            tracing::error!(
                "the database was removed, replaced or emptied under this process; nothing is written or answered from it any more"
            );
        }
        if found.is_ok() && self.gone.swap(false, Ordering::AcqRel) {
            tracing::warn!("the database is in its place again");
        }
        self.looked_at_ms
            .store(self.elapsed_ms(), Ordering::Release);
        found
    }

    /// What was seen a moment ago, or looks now.
    ///
    /// # Errors
    /// As [`Presence::look`].
    pub(crate) fn look_sometimes(&self) -> Result<(), Sqlite> {
        let age = self
            .elapsed_ms()
            .saturating_sub(self.looked_at_ms.load(Ordering::Acquire));
        if Duration::from_millis(age) < FRESH && !self.gone.load(Ordering::Acquire) {
            return Ok(());
        }
        self.look()
    }

    /// The log as it is now is the one to look after.
    pub(crate) fn see_log(&self) {
        let mut log_id = self.lock();
        if log_id.is_none() {
            *log_id = id_of(&self.log).map(|(id, _)| id);
        }
    }

    /// The last connection may have been closed, and the log with it.
    pub(crate) fn forget_log(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<FileId>> {
        self.log_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn found(&self) -> Result<(), Sqlite> {
        let Some(expected) = self.database else {
            return Ok(());
        };
        match id_of(&self.path) {
            None => return Err(gone("the database file was removed")),
            Some((id, _)) if id != expected => {
                return Err(gone("the database file was replaced by another one"));
            }
            Some((_, 0)) => return Err(gone("the database file was emptied")),
            Some(_) => {}
        }
        let log_id = self.lock();
        match *log_id {
            Some(expected) if id_of(&self.log).map(|(id, _)| id) != Some(expected) => {
                Err(gone("the write-ahead log was removed or replaced"))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Which file a name leads to, and how long it is; `None` if there is none.
#[cfg(unix)]
fn id_of(path: &Path) -> Option<(FileId, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let found = fs::metadata(path).ok()?;
    Some((FileId(found.dev(), found.ino()), found.len()))
}

/// Elsewhere an open file keeps its name.
#[cfg(not(unix))]
fn id_of(path: &Path) -> Option<(FileId, u64)> {
    let found = fs::metadata(path).ok()?;
    Some((FileId(0, 0), found.len()))
}

fn gone(what: &str) -> Sqlite {
    const CODE: c_int = ffi::SQLITE_CANTOPEN;
    let text = format!(
        "{what} under this process; stop it, then put the files back or restore a copy and start again"
    );
    Sqlite::SqliteFailure(ffi::Error::new(CODE), Some(text))
}
