//! curl, over REST and over MCP.

use std::process::{Command, Stdio};

use counterfoil_e2e::{Folder, Server};
use serde_json::{Value, json};

use crate::STORE;

/// Status, whether it is a replay, and the body.
fn curl(words: &[&str]) -> (String, String, Vec<u8>) {
    let done = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "60"])
        .args(["--write-out", "\n%{http_code} %header{idempotent-replayed}"])
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("curl starts");
    assert!(done.status.success(), "{done:?}");
    let at = done.stdout.iter().rposition(|byte| *byte == b'\n').unwrap();
    let line = String::from_utf8_lossy(&done.stdout[at + 1..]).into_owned();
    let (status, replayed) = line.split_once(' ').unwrap();
    (
        status.to_owned(),
        replayed.trim().to_owned(),
        done.stdout[..at].to_vec(),
    )
}

#[test]
fn curl_creates_replays_and_conflicts_over_rest() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let url = format!("http://{}/api/v1/notes", server.address());
    let bearer = format!("Authorization: Bearer {}", folder.key());
    let post = |more: &[&str], body: &str| {
        let always = [
            "-H",
            &bearer,
            "-H",
            "Content-Type: application/json",
            "-d",
            body,
            &url,
        ];
        curl(&[more, &always].concat())
    };
    let key = ["-H", "Idempotency-Key: k"];
    let first = post(&key, r#"{"body":"one"}"#);
    let again = post(&key, r#"{"body":"one"}"#);
    assert_eq!((first.0.as_str(), first.1.as_str()), ("201", ""));
    assert_eq!((again.0.as_str(), again.1.as_str()), ("201", "true"));
    assert_eq!(first.2, again.2, "byte for byte");
    let quoted = post(&["-H", "Idempotency-Key: \"k\""], r#"{"body":"one"}"#);
    assert_eq!(quoted.2, first.2, "the structured form is the same key");
    let conflict = post(&key, r#"{"body":"other"}"#);
    assert_eq!(conflict.0, "409");
    let refused = curl(&["-H", "Content-Type: application/json", "-d", "{}", &url]);
    assert_eq!(refused.0, "401");
    assert_eq!(server.http().notes().len(), 1);
}

#[test]
fn curl_calls_a_tool_over_mcp() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let url = format!("http://{}/mcp", server.address());
    let bearer = format!("Authorization: Bearer {}", folder.key());
    let call = |body: &str| {
        let message = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {
                "name": "create_note",
                "arguments": {"body": body, "idempotency_key": "k"},
                "_meta": {
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientCapabilities": {},
                },
            },
        });
        let message = message.to_string();
        let headers = [
            "Content-Type: application/json",
            "Accept: application/json, text/event-stream",
            "MCP-Protocol-Version: 2026-07-28",
            "Mcp-Method: tools/call",
            "Mcp-Name: create_note",
            &bearer,
        ];
        let headers: Vec<&str> = headers.iter().flat_map(|line| ["-H", line]).collect();
        let (status, _, body) = curl(&[&headers[..], &["-d", &message, &url]].concat());
        assert_eq!(status, "200");
        let text = String::from_utf8(body).unwrap();
        let json = text.lines().find_map(|line| line.strip_prefix("data:"));
        serde_json::from_str::<Value>(json.unwrap_or(&text)).unwrap()
    };
    let (first, again) = (call("one"), call("one"));
    let id = &first["result"]["structuredContent"]["note_id"];
    assert!(id.is_string(), "{first}");
    assert_eq!(&again["result"]["structuredContent"]["note_id"], id);
    assert_eq!(again["result"]["_meta"]["dev.counterfoil/replayed"], true);
    assert_eq!(
        call("other")["error"]["data"]["code"],
        "idempotency_conflict"
    );
    assert_eq!(server.http().notes().len(), 1);
}
