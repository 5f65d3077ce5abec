use std::{path::PathBuf, time::Duration};

use counterfoil_store::Error;
use tokio_postgres::{Error as Postgres, error::SqlState};

/// What a caller is told to wait when a lock or a connection was not to be had.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why a store cannot be opened. Says what to do; never holds a password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The address is not understood.
    #[error(
        "the address of the database is not understood: {0}; \
         it looks like postgres://user@host:5432/database?sslmode=require"
    )]
    Address(String),
    /// The certificates cannot be used.
    #[error("the certificates in {path} cannot be used: {why}")]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The database does not answer, or refuses us. In its own words.
    #[error("the database cannot be used: {0}")]
    Refused(String),
    /// The server is too old.
    #[error("PostgreSQL {found} is too old; version 14 is the oldest that is supported")]
    TooOld {
        /// Its version.
        found: String,
    },
    /// The database's encoding cannot hold what callers send.
    #[error("the database's encoding is {0}; create it with ENCODING 'UTF8'")]
    Encoding(String),
    /// The server is a standby, or was set to be read only.
    #[error("the database is read-only (a standby?); give the address of the primary")]
    ReadOnly,
    /// A pooler stands in between and was not announced.
    #[error(
        "a pooler stands in front of the database and dropped the settings of this session; \
         connect to the database itself, or say that there is a pooler (store_pooler)"
    )]
    Pooler,
    /// The tables are from a newer program.
    #[error(
        "the tables are of version {found}, this program knows {known}; start the newer version \
         of the program"
    )]
    Newer {
        /// Their version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// The tables are not there or older, and this process was told not to make them.
    #[error("the tables are of version {found}, and must be of {known}; run `counterfoil migrate`")]
    NotMigrated {
        /// Their version, 0 for none.
        found: i64,
        /// Ours.
        known: i64,
    },
}

impl OpenError {
    pub(crate) fn refused(fault: impl Into<Error>) -> Self {
        Self::Refused(match fault.into() {
            Error::Unavailable(why) | Error::Statement(why) | Error::Corrupt(why) => why,
            error @ (Error::Busy { .. }
            | Error::Fenced(_)
            | Error::NotFound
            | Error::CommitUnknown
            | Error::Handler(_)
            | Error::RolledBack
            | Error::Quota { .. }) => error.to_string(),
        })
    }
}

/// What went wrong with a statement or a connection, by what may be done about it.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The connection is gone: whatever was not committed is rolled back, or will be.
    Lost(String),
    /// The database ended it to let another transaction go on: run it again.
    Deadlock,
    /// A lock or an answer was not to be had in time.
    Locked,
    /// A statement was prepared for tables that have changed since: a new connection helps.
    Stale,
    /// The database refused the statement.
    Said(Error),
}

pub(crate) type Done<T> = Result<T, Fault>;

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Said(error)
    }
}

impl From<Postgres> for Fault {
    fn from(error: Postgres) -> Self {
        let Some(said) = error.as_db_error() else {
            // Errors of our own making (a value that does not fit its column) leave the connection
            // as it is; all others are the connection's.
            return if error.is_closed() || is_of_the_connection(&error) {
                Self::Lost(plain(&error))
            } else {
                Self::Said(Error::Statement(plain(&error)))
            };
        };
        let code = said.code();
        let class = code.code().get(..2).unwrap_or_default();
        if [
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
        ]
        .contains(code)
        {
            return Self::Deadlock;
        }
        // Somebody who takes no identity lock (a copy) was faster: look again.
        let beaten = *code == SqlState::UNIQUE_VIOLATION
            && matches!(
                said.constraint(),
                Some("counterfoil_identity" | "counterfoil_handle")
            );
        if beaten || [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED].contains(code) {
            return Self::Locked;
        }
        if *code == SqlState::FEATURE_NOT_SUPPORTED && said.message().contains("cached plan") {
            return Self::Stale;
        }
        if class == "08"
            || [
                SqlState::ADMIN_SHUTDOWN,
                SqlState::CRASH_SHUTDOWN,
                SqlState::CANNOT_CONNECT_NOW,
                SqlState::DATABASE_DROPPED,
                SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
                SqlState::TOO_MANY_CONNECTIONS,
            ]
            .contains(code)
            || code.code() == "57P05"
        {
            return Self::Lost(said.message().to_owned());
        }
        if class == "53" || class == "58" || *code == SqlState::READ_ONLY_SQL_TRANSACTION {
            return Self::Said(Error::Unavailable(format!(
                "PostgreSQL says: {}",
                said.message()
            )));
        }
        if class == "XX" {
            return Self::Said(Error::Corrupt(format!(
                "PostgreSQL says: {}",
                said.message()
            )));
        }
        // Messages of class 22 quote the value; a constraint's name and the rest do not.
        Self::Said(Error::Statement(if class == "22" {
            format!("a value was refused (SQLSTATE {})", code.code())
        } else {
            format!("{} (SQLSTATE {})", said.message(), code.code())
        }))
    }
}

fn is_of_the_connection(error: &Postgres) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}

/// An error with what caused it, which its own words leave out.
fn plain(error: &Postgres) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Lost(why) => {
                Self::Unavailable(format!("the connection to PostgreSQL was lost: {why}"))
            }
            Fault::Stale => Self::Unavailable("the tables have just been changed".to_owned()),
            Fault::Deadlock | Fault::Locked => busy(),
            Fault::Said(error) => error,
        }
    }
}

pub(crate) const fn busy() -> Error {
    Error::Busy {
        retry_after: RETRY_AFTER,
    }
}

pub(crate) fn corrupt(what: &str) -> Error {
    Error::Corrupt(format!("a stored {what} is not what it must be"))
}
