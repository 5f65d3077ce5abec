use crate::keys::KEY_BYTES;

/// A request made beforehand; only its key is written anew for each call.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Head and body.
    pub(crate) bytes: Vec<u8>,
    /// Where the key lies.
    pub(crate) key_at: usize,
}

/// Which era of the protocol a tool is called in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    /// 2025-11-25, without a handshake.
    Handshake,
    /// 2026-07-28: every request says what it is.
    Stateless,
}

const PLACE: &str = "00000000-0000-0000-0000-000000000000";
/// A short note: with a credential and a key the REST request has some 350 bytes.
const NOTE: &str = "The counterfoil stays when the ticket is torn.";

impl Request {
    /// A note's creation over REST. Every REST server of the bench gets this very request.
    pub(crate) fn note(credential: &str) -> Self {
        let body = format!("{{\"body\":\"{NOTE}\"}}");
        let head = format!(
            "POST /api/v1/notes HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {credential}\r\n\
             idempotency-key: {PLACE}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        Self::new(head + &body)
    }

    /// The same by a tool call.
    pub(crate) fn tool(credential: &str, era: Era) -> Self {
        let (headers, meta) = match era {
            Era::Handshake => ("mcp-protocol-version: 2025-11-25\r\n", ""),
            Era::Stateless => (
                "mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: create_note\r\n",
                ",\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",\
                 \"io.modelcontextprotocol/clientInfo\":{\"name\":\"bench\",\"version\":\"1.0\"},\
                 \"io.modelcontextprotocol/clientCapabilities\":{}}",
            ),
        };
        let body = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{{\"name\":\"create_note\",\
             \"arguments\":{{\"body\":\"{NOTE}\",\"idempotency_key\":\"{PLACE}\"}}{meta}}}}}"
        );
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {credential}\r\n{headers}\
             accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        Self::new(head + &body)
    }

    /// A plain read.
    pub(crate) fn ready() -> Vec<u8> {
        b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".to_vec()
    }

    fn new(text: String) -> Self {
        let key_at = text.find(PLACE).unwrap_or(0);
        debug_assert_eq!(PLACE.len(), KEY_BYTES);
        Self {
            bytes: text.into_bytes(),
            key_at,
        }
    }
}
