//! A transparent MCP proxy: one word in front of a server's command, and retried, timed-out and
//! reconnected calls stop doing things twice, with an unmodified server and an unmodified client.
//!
//! ```text
//! client ──► front (stdio, HTTP) ──► Session ──► Link ──► transport (stdio, HTTP) ──► server
//!                                       │
//!                                       └─ tools/call of a mutating tool: key, look-up, reserve,
//!                                          dispatch, record, answer (the engine decides)
//! ```
//!
//! What passes is forwarded as it was spelled. Only `tools/list` (the key's argument is added),
//! `tools/call` of mutating tools (guarded) and cancels are acted on.
//!
//! Architecture invariant: the judgement about calls without a key (`keyless`) is a pure function
//! of what is known of earlier calls; it never sees arguments or results.

mod call;
mod catalog;
mod check;
mod front;
mod guard;
mod keyless;
mod lines;
mod link;
mod own_tools;
mod proxy;
mod raw;
mod say;
#[cfg(test)]
mod scene;
mod session;
mod settings;
mod transport;
mod wire;

pub use proxy::{Proxy, ServeError, StartError};
pub use settings::{
    InvalidSettings, Keyless, Listening, ProviderKey, Reconcile, Restart, Settings, Target,
    ToolPolicy,
};
