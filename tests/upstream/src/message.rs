use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

pub(crate) const MODERN: &str = "2026-07-28";
pub(crate) const LEGACY: &str = "2025-11-25";
pub(crate) const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub(crate) const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// A received message and what is known of it.
pub(crate) struct Message {
    /// As it came.
    pub(crate) text: String,
    /// The id, spelled as it came; `None`: not a request.
    pub(crate) id: Option<String>,
    /// `None`: an answer.
    pub(crate) method: Option<String>,
    pub(crate) params: Value,
    /// The whole of it, for answers.
    pub(crate) whole: Value,
    /// Of the HTTP request it came by, names in lower case. Empty: a pipe.
    pub(crate) headers: Vec<(String, String)>,
    /// The session, which the ids of the older era belong to.
    pub(crate) session: String,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
}

impl Message {
    /// Reads one; `None` if it is no JSON-RPC message.
    pub(crate) fn read(text: &str, headers: Vec<(String, String)>) -> Option<Self> {
        let whole: Value = serde_json::from_str(text).ok()?;
        if whole["jsonrpc"] != "2.0" {
            return None;
        }
        let envelope: Envelope<'_> = serde_json::from_str(text).ok()?;
        let session = headers
            .iter()
            .find(|(name, _)| name == "mcp-session-id")
            .map(|(_, value)| value.clone());
        Some(Self {
            text: text.to_owned(),
            id: envelope.id.map(|id| id.get().to_owned()),
            method: whole["method"].as_str().map(str::to_owned),
            params: whole["params"].clone(),
            whole,
            headers,
            session: session.unwrap_or_default(),
        })
    }

    /// Whether it is of 2026-07-28.
    pub(crate) fn is_modern(&self) -> bool {
        self.params["_meta"][VERSION].is_string()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// What a cancellation of this request names it by.
    pub(crate) fn place(&self) -> String {
        format!("{}/{}", self.session, self.id.as_deref().unwrap_or("null"))
    }

    /// Its answer, from the result's text.
    pub(crate) fn result(&self, result: &str) -> String {
        let id = self.id.as_deref().unwrap_or("null");
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
    }

    /// Its answer, an error.
    pub(crate) fn error(&self, code: i64, why: &str) -> String {
        let id = self.id.as_deref().unwrap_or("null");
        let error = json!({"code": code, "message": why});
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
    }
}
