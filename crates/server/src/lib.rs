//! The built-in application: principals and agent keys, notes and operations, over REST and MCP.
//!
//! [`Application::start`] takes any [`counterfoil_store::Store`] and [`Settings`]. Everything it
//! does it does with the public interfaces of the engine and the front ends, as any application of
//! somebody else's would; its effects are atomic with their receipts.
//!
//! Architecture invariant: this crate knows no concrete store. Statements are written once, with
//! `$1` placeholders that hold in SQLite and PostgreSQL; only the migrations have both dialects.
//!
//! Architecture invariant: a domain step is written once and shared by the surfaces, which only
//! translate.

mod agent_keys;
mod application;
mod copying;
mod credential;
mod cursor;
mod error;
mod gate;
mod guidance;
mod ids;
mod meters;
mod notes;
mod operations;
mod rate;
mod rest;
mod schema;
mod sealing;
mod settings;
mod state;
mod tools;

pub use agent_keys::{
    AgentKey, AgentKeys, DEFAULT_WORKSPACE, Issued, NewAgentKey, Role, to_json as agent_key_json,
};
pub use application::Application;
pub use copying::{CopiedRows, CopyError, RowsDigest, copy_rows, digest_rows};
pub use credential::Credential;
pub use error::{Error, Issue};
pub use ids::rfc3339;
pub use operations::{
    OperationFilter, OperationPage, OperationView, list_operations, show_operation,
};
pub use rate::Rate;
pub use settings::Settings;
