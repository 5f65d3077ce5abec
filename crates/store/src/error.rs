use std::time::Duration;

use counterfoil_core::Illegal;

/// Why a step did not do what was asked. Closed, so that every caller says what it does with each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing was done: the queue was full, or the database was locked past the deadline.
    #[error("the store is busy; nothing was done")]
    Busy {
        /// When to try again.
        retry_after: Duration,
    },
    /// Nothing was done: the store cannot be used (disk full, read-only, gone). Says why and what
    /// to do; never holds arguments or keys.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The stored data is not what it must be.
    #[error("the store is corrupt: {0}")]
    Corrupt(String),
    /// Another write was first, or the event is not possible: nothing was changed.
    #[error("fenced off: {0}")]
    Fenced(Illegal),
    /// No such receipt: nothing was changed.
    #[error("no such operation")]
    NotFound,
    /// The commit was sent and its answer was lost, and the store could not settle which. Never
    /// to be reported as a failure.
    #[error("the commit was sent and its answer was lost")]
    CommitUnknown,
    /// An atomic handler did what a handler may not do. Its writes were rolled back.
    #[error("the handler broke its transaction: {0}")]
    Handler(String),
    /// A statement of an atomic handler failed (a constraint, a wrong statement).
    #[error("statement failed: {0}")]
    Statement(String),
    /// The application's own work asked for its transaction to be rolled back; it was.
    #[error("rolled back as asked")]
    RolledBack,
    /// The workspace holds as many unresolved receipts as it may; resolve some.
    #[error("too many unresolved operations ({limit}); resolve some before starting more")]
    Quota {
        /// The bound.
        limit: u64,
    },
}
