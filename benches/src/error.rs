use std::path::PathBuf;

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Files, sockets, processes.
    #[error("{0}: {1}")]
    Io(&'static str, #[source] std::io::Error),
    /// A server that did not come up.
    #[error("the server {0} did not come up: {1}")]
    Start(String, String),
    /// A server that answered otherwise than it should: its figures would mean nothing.
    #[error(
        "{failures} of {calls} answers of {server} are not what they must be; the first: {first}"
    )]
    WrongAnswers {
        /// Which server.
        server: String,
        /// How many.
        failures: u64,
        /// Of how many.
        calls: u64,
        /// The first one, whole.
        first: String,
    },
    /// A server that answered nothing in a whole round.
    #[error("{0} answered nothing")]
    Silent(String),
    /// The release binary is not there.
    #[error("{0} is not there; build it first: cargo build --release -p counterfoil")]
    NoBinary(PathBuf),
    /// The store could not be opened.
    #[error("the store does not open: {0}")]
    Open(#[from] counterfoil_sqlite::OpenError),
    /// The PostgreSQL store could not be opened.
    #[error("the store does not open: {0}")]
    OpenPostgres(#[from] counterfoil_postgres::OpenError),
    /// PostgreSQL failed.
    #[error("PostgreSQL failed: {0}")]
    Postgres(#[from] tokio_postgres::Error),
    /// A statement from outside failed.
    #[error(transparent)]
    Outside(#[from] counterfoil_test_postgres::Failure),
    /// A step of the store failed.
    #[error("the store failed: {0}")]
    Store(#[from] counterfoil_store::Error),
    /// The store decided otherwise than it must.
    #[error("the store decided {0} where it must run")]
    Decided(String),
    /// SQLite failed.
    #[error("SQLite failed: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// No randomness.
    #[error("no randomness to be had")]
    Randomness,
    /// A value of ours does not have its form.
    #[error("not well formed: {0}")]
    Form(&'static str),
    /// A task of ours panicked.
    #[error("a task of the bench ended early")]
    Task,
}

impl Error {
    /// Says what was being done.
    pub(crate) const fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::Io(what, error)
    }
}
