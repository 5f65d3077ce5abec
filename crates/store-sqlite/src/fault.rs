//! Where tests make the database fail. Without the feature `testing` nobody can reach it.
#![cfg_attr(
    not(feature = "testing"),
    allow(dead_code, unreachable_pub, reason = "reached by tests only")
)]

use std::{fmt, sync::Arc};

use rusqlite::ffi;

/// A moment at which a fault may be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Before BEGIN.
    Begin,
    /// Before a member of a batch runs.
    Member,
    /// Before COMMIT is sent.
    Commit,
    /// After COMMIT took effect, before its answer is seen.
    Committed,
    /// Before the writer's connection is opened again.
    Reopen,
}

/// What goes wrong. The transaction is ended first, as SQLite does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// SQLITE_FULL.
    Full,
    /// SQLITE_IOERR.
    Io,
}

impl Injected {
    pub(crate) fn error(self) -> rusqlite::Error {
        let code = match self {
            Self::Full => ffi::SQLITE_FULL,
            Self::Io => ffi::SQLITE_IOERR_FSYNC,
        };
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some("injected".to_owned()))
    }
}

/// Decides what fails when. Called on the writer thread; it may also just take its time.
pub trait Fault: Send + Sync {
    /// Whether something goes wrong here.
    fn at(&self, point: Point) -> Option<Injected>;

    /// The most pages the file may have, for a disk that is really full.
    fn pages_max(&self) -> Option<u32> {
        None
    }

    /// Replaces a locator, to make two identities collide.
    fn locator(&self, locator: i64) -> i64 {
        locator
    }
}

#[derive(Clone, Default)]
pub(crate) struct Seam(Option<Arc<dyn Fault>>);

impl Seam {
    pub(crate) fn new(fault: Arc<dyn Fault>) -> Self {
        Self(Some(fault))
    }

    pub(crate) fn at(&self, point: Point) -> Result<(), rusqlite::Error> {
        match self.0.as_ref().and_then(|fault| fault.at(point)) {
            Some(injected) => Err(injected.error()),
            None => Ok(()),
        }
    }

    pub(crate) fn pages_max(&self) -> Option<u32> {
        self.0.as_ref().and_then(|fault| fault.pages_max())
    }

    pub(crate) fn locator(&self, locator: i64) -> i64 {
        self.0
            .as_ref()
            .map_or(locator, |fault| fault.locator(locator))
    }
}

impl fmt::Debug for Seam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Seam(on)"
        } else {
            "Seam(off)"
        })
    }
}
