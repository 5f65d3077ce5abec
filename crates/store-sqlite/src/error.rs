use std::{path::PathBuf, time::Duration};

use counterfoil_store::Error;
use rusqlite::{Error as Sqlite, ErrorCode, ffi};

/// Why a database could not be opened. Each says what is wrong and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file holds something else.
    #[error("{} is not a SQLite database; give the path of a Counterfoil database, or of a file that does not exist yet", .0.display())]
    NotADatabase(PathBuf),
    /// The path is a folder or a device.
    #[error("{} is not a regular file; give the path of a file", .0.display())]
    NotAFile(PathBuf),
    /// The folder is not there.
    #[error("the folder of {} does not exist; create it first", .0.display())]
    NoFolder(PathBuf),
    /// Only for [`crate::Options::read_only`]: there is nothing to read.
    #[error("{} does not exist, so there is nothing to read", .0.display())]
    Missing(PathBuf),
    /// Only for [`crate::Options::must_exist`]: the file is not there, or holds no receipts.
    #[error("{} is missing or holds nothing any more; restore it, with its -wal file if there is one", .0.display())]
    Lost(PathBuf),
    /// Another application's database.
    #[error("{} belongs to another application (application_id {application_id:#x}, user_version {user_version}); give another path", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its `application_id`.
        application_id: i64,
        /// Its `user_version`.
        user_version: i64,
    },
    /// A database with tables that does not say whose it is.
    #[error("{} holds tables of something else; give another path, or set the option `adopt` to add the receipt tables to it", .0.display())]
    NotEmpty(PathBuf),
    /// Written by a newer version of this program.
    #[error("{} has schema version {found}, this program knows versions up to {known}; start the newer version of the program, or restore the copy made before the upgrade", .path.display())]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: i64,
        /// The newest version this program knows.
        known: i64,
    },
    /// Only for [`crate::Options::read_only`]: the schema would have to be brought up first.
    #[error("{} has schema version {found}, this program reads version {known}; open it once for writing to bring it up", .path.display())]
    OlderSchema {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: i64,
        /// The version this program reads.
        known: i64,
    },
    /// It cannot be written to.
    #[error("{} or its folder cannot be written to; give this user the permission to write to both, or open it read-only", .0.display())]
    ReadOnly(PathBuf),
    /// It cannot be read.
    #[error("{} cannot be opened ({reason}); check the permissions of the file, of its -wal and -shm files and of the folder", .path.display())]
    CannotOpen {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// No room.
    #[error("the disk that holds {} is full; free some space and start again", .0.display())]
    DiskFull(PathBuf),
    /// A network file system.
    #[error("{} is on a network or user-space file system ({kind}), where the locks of SQLite are not reliable; put it on a local disk", .path.display())]
    NetworkFileSystem {
        /// The file.
        path: PathBuf,
        /// Which one.
        kind: &'static str,
    },
    /// The write-ahead log cannot be used here.
    #[error("{} cannot use a write-ahead log here (journal mode stays {mode}); put it on a local disk", .path.display())]
    NoWriteAheadLog {
        /// The file.
        path: PathBuf,
        /// The mode it stays in.
        mode: String,
    },
    /// Another process holds it.
    #[error("{} was locked by another process for more than {} ms; stop that process, or wait for it", .path.display(), .waited.as_millis())]
    Locked {
        /// The file.
        path: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
    /// Its content is broken.
    #[error("{} is damaged ({reason}); restore it from a copy", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        reason: String,
    },
    /// The disk failed.
    #[error("reading or writing {} failed ({reason}); check the disk", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What SQLite or the system says.
        reason: String,
    },
    /// The writer thread could not be started.
    #[error("the writer thread could not be started: {0}; raise the limit on threads")]
    Thread(std::io::Error),
    /// A statement of the schema failed.
    #[error("preparing {} failed: {reason}", .path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        reason: String,
    },
}

impl OpenError {
    pub(crate) fn from_sqlite(path: &std::path::Path, waited: Duration, error: &Sqlite) -> Self {
        let path = path.to_owned();
        let reason = message(error);
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::NotADatabase(path),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                Self::Locked { path, waited }
            }
            Some(ErrorCode::ReadOnly) => Self::ReadOnly(path),
            Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
                Self::CannotOpen { path, reason }
            }
            Some(ErrorCode::DiskFull) => Self::DiskFull(path),
            Some(ErrorCode::DatabaseCorrupt) => Self::Damaged { path, reason },
            Some(ErrorCode::SystemIoFailure) => Self::Io { path, reason },
            Some(_) | None => Self::Schema { path, reason },
        }
    }

    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "the system's enum is non-exhaustive"
    )]
    pub(crate) fn from_io(path: &std::path::Path, error: &std::io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            std::io::ErrorKind::NotFound => Self::NoFolder(path),
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                Self::ReadOnly(path)
            }
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Self::DiskFull(path)
            }
            _ => Self::CannotOpen {
                path,
                reason: error.to_string(),
            },
        }
    }
}

/// When a caller that got `Busy` may try again.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(crate) fn busy() -> Error {
    Error::Busy {
        retry_after: RETRY_AFTER,
    }
}

/// What SQLite says, without the text of the statement. SQLite's messages name tables and columns
/// and never bound values.
#[allow(clippy::wildcard_enum_match_arm, reason = "the enum is non-exhaustive")]
pub(crate) fn message(error: &Sqlite) -> String {
    match error {
        Sqlite::SqliteFailure(code, Some(text)) => {
            format!("{text} (SQLite {})", code.extended_code)
        }
        Sqlite::SqlInputError { error, msg, .. } => {
            format!("{msg} (SQLite {})", error.extended_code)
        }
        Sqlite::SqliteFailure(code, None) => {
            format!(
                "{} (SQLite {})",
                ffi::code_to_str(code.extended_code),
                code.extended_code
            )
        }
        other => other.to_string(),
    }
}

/// The store's error for SQLite's. Says "nothing was done" only where the caller rolls back.
pub(crate) fn map(error: &Sqlite) -> Error {
    let said = message(error);
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => busy(),
        Some(ErrorCode::DiskFull) => Error::Unavailable(format!(
            "disk full: {said}; free some space on the disk of the database"
        )),
        Some(ErrorCode::SystemIoFailure) => {
            Error::Unavailable(format!("reading or writing failed: {said}; check the disk"))
        }
        Some(ErrorCode::ReadOnly) => Error::Unavailable(format!(
            "the database cannot be written to: {said}; check the permissions of file and folder"
        )),
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => Error::Unavailable(format!(
            "the database cannot be opened: {said}; check that the file and its folder are there"
        )),
        Some(ErrorCode::OutOfMemory) => Error::Unavailable(format!("out of memory: {said}")),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Error::Corrupt(said),
        Some(ErrorCode::AuthorizationForStatementDenied) => Error::Handler(
            "a handler may not control transactions, attach files, use PRAGMA or change the \
             store's own tables"
                .to_owned(),
        ),
        Some(ErrorCode::OperationInterrupted) => {
            Error::Handler("its statements ran longer than they may".to_owned())
        }
        None if is_wrong_content(error) => Error::Corrupt(said),
        Some(_) | None => Error::Statement(said),
    }
}

/// A column of the store's own tables holds what it must not.
pub(crate) fn is_wrong_content(error: &Sqlite) -> bool {
    matches!(
        error,
        Sqlite::InvalidColumnType(..)
            | Sqlite::FromSqlConversionFailure(..)
            | Sqlite::IntegralValueOutOfRange(..)
            | Sqlite::Utf8Error(..)
            | Sqlite::QueryReturnedNoRows
    )
}

pub(crate) fn corrupt(what: &str) -> Error {
    Error::Corrupt(format!("a receipt row holds an impossible {what}"))
}

pub(crate) fn is_busy(error: &Sqlite) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

pub(crate) fn is_constraint(error: &Sqlite) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation)
}
