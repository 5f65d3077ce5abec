use std::borrow::Cow;

use serde_json::{Value, json};

/// The error codes in use. JSON-RPC's own, and the ones MCP 2026-07-28 defines.
pub mod codes {
    /// The text is no JSON.
    pub const PARSE: i64 = -32700;
    /// The JSON is no message.
    pub const INVALID_REQUEST: i64 = -32600;
    /// No such method.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters are not right.
    pub const INVALID_PARAMS: i64 = -32602;
    /// The server failed.
    pub const INTERNAL: i64 = -32603;
    /// The HTTP headers do not match the body (2026-07-28).
    pub const HEADER_MISMATCH: i64 = -32020;
    /// The client did not declare a capability that this needs (2026-07-28).
    pub const MISSING_CAPABILITY: i64 = -32021;
    /// The protocol version is not supported (2026-07-28).
    pub const UNSUPPORTED_VERSION: i64 = -32022;
}

/// A JSON-RPC error, and the HTTP status that goes with it.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcError {
    /// The code.
    pub code: i64,
    /// One sentence.
    pub message: Cow<'static, str>,
    /// Facts for programs.
    pub data: Option<Box<Value>>,
    /// The status of the HTTP response that carries it.
    pub http_status: u16,
}

impl RpcError {
    /// An error of a well-formed message: HTTP 200.
    #[must_use]
    pub fn new(code: i64, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
            http_status: 200,
        }
    }

    /// The same with facts.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(Box::new(data));
        self
    }

    /// The same under another HTTP status.
    #[must_use]
    pub const fn with_http_status(mut self, status: u16) -> Self {
        self.http_status = status;
        self
    }

    /// The `error` member.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        if let Some(data) = &self.data {
            error["data"] = Value::clone(data);
        }
        error
    }
}
