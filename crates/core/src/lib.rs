//! The contract of Counterfoil, as pure functions.
//!
//! What a keyed call gets is decided here and nowhere else: which receipt a call belongs to
//! ([`Identity`]), whether it is the same request ([`Fingerprint`]), what may follow what
//! ([`next`]), and what a caller is told ([`decide`]). Stores and engines carry the decisions out.
//!
//! Architecture invariant: no IO, no clock, no randomness and no async in this crate. Time, ids
//! and random bytes are arguments.

mod attempts;
mod code;
mod decision;
mod fingerprint;
mod identity;
mod ids;
mod json;
mod key;
mod policy;
mod receipt;
mod redact;
mod retention;
mod state;
mod time;

pub use attempts::{Attempts, Effect, Knowledge, MAX_ATTEMPTS};
pub use code::Code;
pub use decision::{Decision, Presented, decide};
pub use fingerprint::{Fingerprint, Rule};
pub use identity::{Identity, InvalidId, PrincipalId, Target, WorkspaceId};
pub use ids::{OperationId, Token};
pub use json::{Json, JsonLimits, Malformed, parse_json};
pub use key::{InvalidKey, KEY_CHARS_MAX, Key, META_KEY_CHARS_MAX};
pub use policy::{InvalidPolicy, Mode, OnError, Policy};
pub use receipt::{EventRecord, Kept, Receipt, Reply};
pub use redact::{InvalidPointer, Pointer, redact};
pub use retention::{Phase, Retention};
pub use state::{Event, Illegal, State, Status, Verdict, next};
pub use time::Timestamp;
