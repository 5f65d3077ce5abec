//! What a receipt store offers, in domain steps, and what is durable after each.
//!
//! Every step is atomic and decides with the pure functions of `counterfoil-core`. What a step
//! makes of a row is said once, here ([`Change`]): a store holds rows and transactions, never rules. The interface is a crate of its own so that stores depend
//! on neither the engine nor a runtime, and the core stays free of async.

mod audit;
mod copy;
mod error;
mod message;
mod note;
mod rules;
mod sql;
mod store;

pub use audit::{Census, Finding, Inspection};
pub use copy::{Clash, Damaged, EXPORT_BYTES, Imported, Part, Whole, distinct};
pub use error::Error;
pub use message::{
    Admission, Admitted, Completion, Cursor, Fence, Found, Granted, Health, Page, Query, Slot,
    StoredReply, SweepPlan, Swept,
};
pub use note::check_note;
pub use rules::{Answer, Change, lapsed, marked_committed, recorded, renewed};
pub use sql::{BoxFuture, Dialect, Migration, Row, Sql, Value, Watched};
pub use store::{Atomic, AtomicHandler, Failure, ReadWork, Store, Work, read, transact};
