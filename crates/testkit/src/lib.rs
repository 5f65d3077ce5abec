//! What the other crates are tested with; never a dependency of what is shipped.
//!
//! A [`MemoryStore`] that is the model of every store, a [`FaultyStore`] that breaks a store in
//! chosen places, and a [`conformance`] suite that each store has to pass.

pub mod conformance;
mod faulty;
mod memory;
mod seeded;

pub use faulty::{Call, Chosen, Fault, FaultyStore, Step};
pub use memory::{MemoryStore, Statement};
pub use seeded::Seeded;
