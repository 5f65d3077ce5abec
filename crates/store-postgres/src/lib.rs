//! The receipt store of Counterfoil on PostgreSQL, for any number of nodes.
//!
//! There is no leader and nothing between the nodes but the database. Reservations and completions
//! go through a few connections that write many callers' rows in one transaction ([`Options::lanes`]);
//! look-ups share statements in the same way; atomic handlers and application work have
//! transactions of their own. Time is the database's.

mod answers;
mod atomic;
mod clock;
mod connect;
mod copy;
mod error;
mod handler;
mod hosts;
mod lane;
mod listen;
mod locator;
mod open;
mod options;
mod pool;
mod queue;
mod read;
mod rows;
mod schema;
mod scopes;
mod shared;
mod statement;
mod store;
mod turnstile;
mod upkeep;
mod write;

pub use error::OpenError;
pub use options::{Options, TimeSource};
pub use store::PostgresStore;
