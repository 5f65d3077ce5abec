use std::{path::PathBuf, time::Duration};

/// How a store is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A certificate authority to trust besides the system's: a PEM file.
    pub root_certificates: Option<PathBuf>,
    /// A pooler that hands each transaction to another backend (PgBouncer's transaction mode)
    /// stands in front of the database: no named statements, no LISTEN. Default no.
    pub pooler: bool,
    /// Connections that write batches of reservations and completions. Default 2.
    pub lanes: usize,
    /// Connections that look receipts up. Default 2.
    pub readers: usize,
    /// Most connections for everything else. A quarter of them, but two if possible, is for reads
    /// and for looking after the database; the rest is for atomic handlers and application
    /// transactions, of which one workspace uses a third at once, but two if possible. Default 16.
    pub connections_max: usize,
    /// Steps in one batch, at most. Each reservation in it holds an advisory lock while the batch
    /// lasts. Default 256.
    pub batch_max: usize,
    /// Callers waiting for a lane; beyond it they are told the store is busy. Default 4,096.
    pub queue_max: usize,
    /// Reservations whose completion is not recorded yet, at most. Default 16,384.
    pub slots_max: usize,
    /// Unresolved receipts of one workspace, at most. Counted by each node every second: what
    /// several nodes admit within a second, or several lanes in one moment, may go beyond it.
    /// Default 100,000.
    pub unresolved_max: u64,
    /// Interned scopes kept in memory. Default 65,536.
    pub scopes_max: usize,
    /// How long a step that brings no patience of its own waits for connections and locks. The
    /// hosts in the address share it for connecting, each with two seconds at least. Default 5 s.
    pub patience: Duration,
    /// How long one atomic handler, or one piece of application work, may take. Default 10 s.
    pub handler_limit: Duration,
    /// After this time the database ends a statement, or a transaction whose client fell silent.
    /// Must be shorter than the leases in use. Default 10 s.
    pub database_timeout: Duration,
    /// Whose clock counts. Default the database's.
    pub time: TimeSource,
}

/// Whose clock leases and windows are judged by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSource {
    /// The database's.
    #[default]
    Database,
    /// The caller's, as it is in each message. For tests that set the time.
    Caller,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            root_certificates: None,
            pooler: false,
            lanes: 2,
            readers: 2,
            connections_max: 16,
            batch_max: 256,
            queue_max: 4096,
            slots_max: 16_384,
            unresolved_max: 100_000,
            scopes_max: 65_536,
            patience: Duration::from_secs(5),
            handler_limit: Duration::from_secs(10),
            database_timeout: Duration::from_secs(10),
            time: TimeSource::Database,
        }
    }
}
