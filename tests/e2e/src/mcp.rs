use std::io;

use serde_json::{Value, json};

use crate::http::{Http, Reply, Request};

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";

/// An MCP client over HTTP that sends each message by itself, in either era.
#[derive(Clone)]
pub struct Mcp {
    http: Http,
    session: Option<String>,
    version: &'static str,
}

/// What came back for one message.
#[derive(Clone, Debug)]
pub struct Said {
    /// The HTTP answer.
    pub reply: Reply,
    /// The JSON-RPC message in it; null if there is none.
    pub message: Value,
}

impl Mcp {
    /// Of the newest revision: no handshake.
    #[must_use]
    pub const fn new(http: Http) -> Self {
        Self {
            http,
            session: None,
            version: MODERN,
        }
    }

    /// Of the older revision: shakes hands.
    ///
    /// # Panics
    /// If the server refuses.
    #[must_use]
    pub fn legacy(http: Http) -> Self {
        let mut client = Self {
            http,
            session: None,
            version: LEGACY,
        };
        let said = client.send(&json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": {
                "protocolVersion": LEGACY,
                "capabilities": {},
                "clientInfo": {"name": "e2e", "version": "1"},
            },
        }));
        assert_eq!(said.result()["protocolVersion"], LEGACY, "{said:?}");
        client.session = said.reply.header("mcp-session-id").map(str::to_owned);
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(client.send(&ready).reply.status, 202);
        client
    }

    /// The HTTP client under it.
    #[must_use]
    pub const fn http(&self) -> &Http {
        &self.http
    }

    /// Calls a tool. `meta` is added to what the revision demands.
    ///
    /// # Panics
    /// If no answer comes.
    #[must_use]
    pub fn call(&self, tool: &str, arguments: Value, meta: Value) -> Said {
        self.call_with(json!({"name": tool, "arguments": arguments, "_meta": meta}))
    }

    /// The same where the server may be gone.
    ///
    /// # Errors
    /// What the socket says.
    pub fn try_call(&self, tool: &str, arguments: Value) -> io::Result<Said> {
        let params = json!({"name": tool, "arguments": arguments});
        let message = self.message("tools/call", params);
        self.send_text("tools/call", Some(tool), &message.to_string())
    }

    /// The same from whole `params`.
    ///
    /// # Panics
    /// If no answer comes.
    #[must_use]
    pub fn call_with(&self, params: Value) -> Said {
        self.method("tools/call", params)
    }

    /// Calls a method.
    ///
    /// # Panics
    /// If no answer comes.
    #[must_use]
    pub fn method(&self, method: &str, params: Value) -> Said {
        self.send(&self.message(method, params))
    }

    fn message(&self, method: &str, mut params: Value) -> Value {
        if self.version == MODERN {
            let name = "io.modelcontextprotocol/";
            let meta = &mut params["_meta"];
            if meta.is_null() {
                *meta = json!({});
            }
            meta[format!("{name}protocolVersion")] = json!(MODERN);
            meta[format!("{name}clientCapabilities")] = json!({});
            meta[format!("{name}clientInfo")] = json!({"name": "e2e", "version": "1"});
        }
        json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    }

    /// Sends one message.
    ///
    /// # Panics
    /// If no answer comes.
    #[must_use]
    pub fn send(&self, message: &Value) -> Said {
        let method = message["method"].as_str().unwrap_or_default();
        let tool = message["params"]["name"].as_str();
        self.send_text(method, tool, &message.to_string())
            .expect("an answer over MCP")
    }

    /// Sends any text as a message.
    ///
    /// # Errors
    /// What the socket says.
    pub fn send_text(&self, method: &str, tool: Option<&str>, text: &str) -> io::Result<Said> {
        self.request(method, tool, text.as_bytes())
            .send()
            .map(Said::new)
    }

    /// The HTTP request around a message.
    #[must_use]
    pub fn request(&self, method: &str, tool: Option<&str>, message: &[u8]) -> Request {
        let mut request = self
            .http
            .request("POST", "/mcp")
            .header("Accept", "application/json, text/event-stream")
            .header("Content-Type", "application/json");
        if method != "initialize" {
            request = request.header("MCP-Protocol-Version", self.version);
        }
        if let Some(session) = &self.session {
            request = request.header("Mcp-Session-Id", session);
        }
        if self.version == MODERN {
            request = request.header("Mcp-Method", method);
            if let Some(tool) = tool {
                request = request.header("Mcp-Name", tool);
            }
        }
        request.body(message)
    }
}

impl Said {
    fn new(reply: Reply) -> Self {
        let stream = reply
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("text/event-stream"));
        let message = if stream {
            let text = reply.text();
            let events = text.lines().filter_map(|line| line.strip_prefix("data:"));
            events
                .filter_map(|event| serde_json::from_str::<Value>(event).ok())
                .find(|message| message.get("id").is_some())
                .unwrap_or(Value::Null)
        } else {
            reply.value()
        };
        Self { reply, message }
    }

    /// The result.
    ///
    /// # Panics
    /// If it is an error.
    #[must_use]
    pub fn result(&self) -> &Value {
        let result = self.message.get("result");
        result.unwrap_or_else(|| panic!("no result: {} {}", self.reply.status, self.reply.text()))
    }

    /// The result of a tool that went well: its structured content.
    ///
    /// # Panics
    /// If it went wrong.
    #[must_use]
    pub fn content(&self) -> &Value {
        let result = self.result();
        assert_ne!(result["isError"], true, "{result}");
        &result["structuredContent"]
    }

    /// The result of a tool that refused: its structured content.
    ///
    /// # Panics
    /// If it did not refuse.
    #[must_use]
    pub fn refusal(&self) -> &Value {
        let result = self.result();
        assert_eq!(result["isError"], true, "{result}");
        &result["structuredContent"]
    }

    /// The code of a JSON-RPC error, 0 if it is none.
    #[must_use]
    pub fn error_code(&self) -> i64 {
        self.message["error"]["code"].as_i64().unwrap_or_default()
    }

    /// The permanent code in a JSON-RPC error; empty if there is none.
    #[must_use]
    pub fn data_code(&self) -> &str {
        self.message["error"]["data"]["code"]
            .as_str()
            .unwrap_or_default()
    }

    /// Whether the result says that it is a replay.
    #[must_use]
    pub fn replayed(&self) -> bool {
        self.result()["_meta"]["dev.counterfoil/replayed"] == true
    }
}
