//! Receipts in one SQLite file: the embedded store of Counterfoil.
//!
//! One writer thread drains a bounded queue and commits many callers in one transaction; each
//! caller is answered after the COMMIT it was in. Reads go past it, on read-only connections of
//! their own. Several processes may share the file. The application's own tables lie in the same
//! file, so that an atomic handler's effect and its receipt are one transaction.
//!
//! Architecture invariant: this crate holds rows and transactions and no rules. Every decision and
//! every transition comes from `counterfoil-core`, what a step makes of a row from
//! `counterfoil-store`.

mod atomic;
mod connection;
mod copy;
mod error;
mod fault;
mod guard;
mod handler;
mod locator;
mod open;
mod options;
mod presence;
mod queue;
mod read;
mod record;
mod rows;
mod schema;
mod scopes;
mod settle;
mod statement;
mod steps;
mod store;
mod sweep;
mod tx;
mod writer;
mod writing;

pub use error::OpenError;
#[cfg(feature = "testing")]
pub use fault::{Fault, Injected, Point};
pub use options::Options;
pub use store::SqliteStore;
