//! What the other crates are tested with; never a dependency of what is shipped.
//!
//! A [`MemoryStore`] that is the model of every store, a [`FaultyStore`] that breaks a store in
//! chosen places, a [`VirtualClock`], a [`conformance`] suite that each store has to pass, and the
//! seeded simulator ([`sim`]) of whole engines. [`mutants`] plants faults to see whether all this
//! notices.

mod clock;
pub mod conformance;
mod faulty;
mod memory;
pub mod mutants;
mod seeded;
pub mod sim;

pub use clock::VirtualClock;
pub use faulty::{Call, Chosen, Fault, FaultyStore, Step};
pub use memory::{MemoryStore, Statement};
pub use seeded::Seeded;
