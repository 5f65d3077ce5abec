//! JSON-RPC as MCP speaks it, on raw JSON: only the envelope is decoded, everything inside it
//! stays as it was spelled. Knows nothing of tools and keys.

mod error;
mod id;
mod lines;
mod message;

pub use error::{RpcError, codes};
pub use id::Id;
pub use lines::{Line, Lines};
pub use message::{
    FramingLimits, Incoming, Message, Notification, Request, Response, Unreadable, read,
};

use bytes::Bytes;

/// A response with a result that is JSON text already.
#[must_use]
pub fn result_text(id: &Id, result: &str) -> Bytes {
    let mut text = String::with_capacity(result.len() + id.as_str().len() + 40);
    text.push_str("{\"jsonrpc\":\"2.0\",\"id\":");
    text.push_str(id.as_str());
    text.push_str(",\"result\":");
    text.push_str(result);
    text.push('}');
    Bytes::from(text)
}

/// An error response. Without an id (it could not be read) the member is left out, as MCP's schema
/// wants it.
#[must_use]
pub fn error_text(id: Option<&Id>, error: &RpcError) -> Bytes {
    failure_text(id, &error.to_value().to_string())
}

/// An error response whose `error` is JSON text already.
#[must_use]
pub fn failure_text(id: Option<&Id>, error: &str) -> Bytes {
    let mut text = String::with_capacity(error.len() + 60);
    text.push_str("{\"jsonrpc\":\"2.0\",");
    if let Some(id) = id {
        text.push_str("\"id\":");
        text.push_str(id.as_str());
        text.push(',');
    }
    text.push_str("\"error\":");
    text.push_str(error);
    text.push('}');
    Bytes::from(text)
}
