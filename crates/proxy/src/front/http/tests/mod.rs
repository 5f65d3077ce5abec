//! The front over real connections, before a conversation that does what the test says.

mod answers;
mod delivery;
mod headers;
mod listening;
mod sessions;
mod support;
