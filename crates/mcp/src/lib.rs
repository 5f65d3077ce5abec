//! An MCP server for keyed tools.
//!
//! A mutating tool needs an idempotency key, from the host (`_meta`) or the model (an argument),
//! and runs once per key: the engine decides, this crate only translates. Both eras of the
//! protocol are served, by request: 2025-11-25 and older with their handshake, 2026-07-28 without.
//!
//! ```text
//! let endpoint = Endpoint::builder(engine).tool(Tool::atomic(…)).tool(Tool::read(…)).build()?;
//! let routes = endpoint.router(authenticate, HttpOptions::default())?;  // Streamable HTTP, /mcp
//! endpoint.serve_stdio(caller, stdin, stdout).await?;                   // or one client on a pipe
//! ```
//!
//! Architecture invariant: [`framing`] knows JSON-RPC and nothing of tools and keys. It leaves
//! everything inside the envelope as it was spelled, so that a proxy can stand on it too.

mod auth;
mod call;
mod cancel;
mod endpoint;
mod era;
pub mod framing;
mod http;
mod key;
mod listing;
mod meta;
mod output;
mod progress;
mod say;
mod schema;
mod stdio;
pub mod streamable;
mod tool;

pub use auth::{AuthError, Authenticate};
pub use endpoint::{Builder, Endpoint, InvalidEndpoint, Limits};
pub use era::header_value;
pub use http::{HttpOptions, InvalidHttpOptions};
pub use key::names_a_key;
pub use listing::spell;
pub use meta::{InvalidMetaPrefix, MetaPrefix};
pub use output::{Output, ToolError};
pub use progress::Progress;
pub use say::{meta_code, whole_seconds};
pub use schema::{Issue, annotated_headers};
pub use tool::{Ending, Tool, ToolRequest};
