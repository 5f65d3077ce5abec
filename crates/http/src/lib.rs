//! Counterfoil over HTTP.
//!
//! - [`IdempotencyLayer`] makes any axum router honour `Idempotency-Key`: an opaque handler,
//!   guarded by a receipt.
//! - [`Mutation`] is an extractor for routes whose effect lies in the receipt's own database: the
//!   handler runs inside the receipt's transaction.
//! - [`Problem`] is every refusal (RFC 9457), and [`Rest`] is the one place where what the engine
//!   answers becomes a response.
//! - [`serve`] accepts connections within bounds.
//!
//! Both ways take the caller from a [`Caller`] request extension. The application's
//! authentication puts it there; it never comes from an argument.
//!
//! Architecture invariant: this crate knows no concrete store and nothing of MCP.

mod body;
mod edge;
mod fingerprint;
mod headers;
mod issues;
mod layer;
mod mutation;
mod problem;
mod reply;
mod rest;
mod serve;
mod status;

pub use body::BODY_BYTES_MAX;
pub use counterfoil_engine::{Attempt, Caller};
pub use edge::{bound_body, catch_panics, with_fallbacks};
pub use fingerprint::FingerprintBy;
pub use issues::{Issue, read_json};
pub use layer::{Idempotency, IdempotencyLayer, KeyedRoute};
pub use mutation::{Mutation, Tx};
pub use problem::Problem;
pub use rest::{Profile, Rest};
pub use serve::{Bounds, Drained, serve};
pub use status::ErrorStatus;
