//! Drives the contract: admit, run, record.
//!
//! ```text
//! let call = Call { identity, fingerprint, operation, authority, wait, inputs };
//! match engine.look_up(call).await {          // a replay never enters the writer
//!     Lookup::Answered(answer) => answer,      // replay, conflict, in progress, unknown, …
//!     Lookup::Ready(ready) => {
//!         // Only now: validate the request, charge the plan, check execution limits.
//!         ready.run(handler).await             // guarded: an opaque handler
//!         // or: ready.atomically(handler).await   // inside the receipt's own transaction
//!     }
//! }
//! ```
//!
//! [`Engine::run`] and [`Engine::atomically`] do both steps where there is nothing in between.
//! A guarded handler runs on a task of its own: the caller going away stops nothing.

mod answer;
mod atomic;
mod call;
mod clock;
mod engine;
mod entropy;
mod guarded;
mod keep;
mod readings;
mod seal;
mod sweep;
mod waiters;

pub use answer::{Answer, Reason, Refusal};
pub use atomic::TxHandler;
pub use call::{Authority, Call, Caller, Denied, Open, Operation};
pub use clock::{Clock, Monotonic, SystemClock};
pub use engine::{Builder, Engine, Limits, Lookup, Ready};
pub use entropy::{Entropy, SystemEntropy};
pub use guarded::{Attempt, Outcome};
pub use readings::ClockMoved;
pub use seal::{InvalidKeyRing, KeyRing};
pub use sweep::SweepReport;

pub use counterfoil_core as core;
pub use counterfoil_store as store;
