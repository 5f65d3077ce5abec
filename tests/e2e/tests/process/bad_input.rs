//! What is wrong is refused before any work: nothing stored, no key used up.

use counterfoil_e2e::{Folder, Mcp, Reply, Server};
use serde_json::{Value, json};

use crate::STORE;

const NOTE: &str = r#"{"body":"one"}"#;

/// Nothing was stored: no note, no operation, and the key is still good.
#[track_caller]
fn unused(server: &Server, key: &str) {
    let http = server.http();
    assert_eq!(http.notes().len(), 0, "no note");
    assert_eq!(operations(server), 0, "no operation");
    let done = http.note(Some(key), r#"{"body":"later"}"#).send().unwrap();
    assert_eq!(done.status, 201, "the key is not used up: {}", done.text());
    assert_eq!(done.header("idempotent-replayed"), None);
}

fn operations(server: &Server) -> usize {
    let reply = server
        .http()
        .request("GET", "/api/v1/operations")
        .send()
        .unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.value()["operations"].as_array().unwrap().len()
}

#[track_caller]
fn refused(reply: &Reply, status: u16, code: &str) {
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (status, code),
        "{}",
        reply.text()
    );
    let kind = reply.header("content-type").unwrap_or_default();
    assert!(kind.starts_with("application/problem+json"), "{kind}");
    let value = reply.value();
    for says in ["title", "next_action"] {
        assert!(
            value[says].is_string(),
            "it says what is wrong and what to do: {value}"
        );
    }
}

#[test]
fn a_malformed_key_is_422_before_any_work() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    for key in [
        b"".as_slice(),
        b"   ",
        b"\"\"",
        "k".repeat(201).as_bytes(),
        format!("\"{}\"", "k".repeat(201)).as_bytes(),
        b"a\tb",
        b"\"open",
        b"\"a\"b\"",
        b"\xff\xfe",
    ] {
        let request = server.http().note(None, NOTE);
        let reply = request.header_bytes("Idempotency-Key", key).send().unwrap();
        refused(&reply, 422, "invalid_key");
    }
    unused(&server, "k");
}

#[test]
fn a_malformed_mcp_key_is_invalid_params_in_both_eras() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    for mcp in [server.mcp(), Mcp::legacy(server.http())] {
        for key in [
            json!(""),
            json!("k".repeat(201)),
            json!("a\u{7}b"),
            json!(1),
            json!(null),
        ] {
            let arguments = json!({"body": "one", "idempotency_key": key});
            let said = mcp.call("create_note", arguments, json!({}));
            assert_eq!(said.error_code(), -32602, "{key}: {said:?}");
        }
        for key in [
            json!(""),
            json!("k".repeat(129)),
            json!("schlüssel"),
            json!(7),
        ] {
            let meta = json!({"dev.counterfoil/idempotency-key": key});
            let said = mcp.call("create_note", json!({"body": "one"}), meta);
            assert!(
                says(&said.message, "MCP_IDEMPOTENCY_KEY_INVALID"),
                "{key}: {said:?}"
            );
        }
    }
    unused(&server, "k");
}

/// Whether a code stands anywhere in a message.
fn says(message: &Value, code: &str) -> bool {
    message.to_string().contains(&format!("\"{code}\""))
}

#[test]
fn the_header_twice_is_one_key_if_equal_and_422_if_not() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let send = |keys: &[&str]| {
        let request = server.http().note(None, NOTE);
        let request = keys.iter().fold(request, |request, key| {
            request.header("Idempotency-Key", key)
        });
        request.send().unwrap()
    };
    refused(&send(&["a", "b"]), 422, "invalid_key");
    refused(&send(&["a", "\"b\""]), 422, "invalid_key");
    assert_eq!(server.http().notes().len(), 0);
    let first = send(&["a", "\"a\""]).note_id();
    for keys in [
        ["a"].as_slice(),
        &["\"a\""],
        &["a", "a"],
        &["\"a\"", "a", "a"],
    ] {
        let reply = send(keys);
        assert_eq!(reply.note_id(), first, "{keys:?}");
        assert_eq!(reply.header("idempotent-replayed"), Some("true"));
    }
}

/// However a path is spelled, one resource is one identity; what does not exist reserves nothing.
#[test]
fn a_path_spelled_another_way_is_one_identity_or_none() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let first = server
        .http()
        .note(Some("k"), NOTE)
        .send()
        .unwrap()
        .note_id();
    for path in [
        "/api/v1/note%73",
        "/api/v1/%6eotes",
        "//api/v1/notes",
        "/api//v1/notes",
    ] {
        let request = server.http().request("POST", path).json(NOTE);
        let reply = request.header("Idempotency-Key", "k").send().unwrap();
        match reply.status {
            201 => assert_eq!(reply.note_id(), first, "{path}"),
            status => assert!((300..500).contains(&status), "{path}: {status}"),
        }
    }
    assert_eq!(server.http().notes().len(), 1, "no spelling runs it again");
    assert_eq!(operations(&server), 1);

    let (id, _) = folder.issue("spelled");
    let spelled = id.replace('_', "%5F");
    assert_ne!(spelled, id);
    let revoke = |id: &str| {
        let request = server
            .http()
            .request("DELETE", &format!("/api/v1/agent-keys/{id}"));
        request.header("Idempotency-Key", "k").send().unwrap()
    };
    let one = revoke(&id);
    assert!((200..300).contains(&one.status), "{}", one.text());
    let other = revoke(&spelled);
    assert_eq!(
        other.header("idempotent-replayed"),
        Some("true"),
        "{}",
        other.text()
    );
}

#[test]
fn what_does_not_exist_reserves_nothing() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    for (method, path, status) in [
        ("POST", "/api/v1/nothing", 404),
        ("POST", "/nothing", 404),
        ("PUT", "/api/v1/notes", 405),
        ("DELETE", "/api/v1/notes", 405),
    ] {
        let request = server.http().request(method, path).json(NOTE);
        let reply = request.header("Idempotency-Key", "k").send().unwrap();
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.text());
    }
    unused(&server, "k");
}

#[test]
fn malformed_json_over_rest_is_400_and_stores_nothing() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let deep = format!("{{\"body\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
    for body in [
        br#"{"body":"one","body":"two"}"#.as_slice(),
        deep.as_bytes(),
        br#"{"body":"\ud800"}"#,
        br#"{"body":1e400}"#,
        b"{\"body\":\"\xff\xfe\"}",
        b"{\"body\":\"one\"",
        b"not json",
        b"",
    ] {
        let request = server.http().request("POST", "/api/v1/notes");
        let request = request
            .header("Content-Type", "application/json")
            .body(body);
        let reply = request.header("Idempotency-Key", "k").send().unwrap();
        refused(&reply, 400, "malformed_request");
    }
    unused(&server, "k");
}

#[test]
fn malformed_json_over_mcp_is_a_protocol_error_and_stores_nothing() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
    for mcp in [server.mcp(), Mcp::legacy(server.http())] {
        for arguments in [
            br#"{"body":"one","body":"two","idempotency_key":"k"}"#.as_slice(),
            format!(r#"{{"body":{deep},"idempotency_key":"k"}}"#).as_bytes(),
            br#"{"body":"\ud800","idempotency_key":"k"}"#,
            br#"{"body":1e400,"idempotency_key":"k"}"#,
            b"{\"body\":\"\xff\",\"idempotency_key\":\"k\"}",
            b"{\"body\":",
        ] {
            let mut message = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}},"name":"create_note","arguments":"#.to_vec();
            message.extend_from_slice(arguments);
            message.extend_from_slice(b"}}");
            let request = mcp.request("tools/call", Some("create_note"), &message);
            let reply = request.send().unwrap();
            let code = reply.value()["error"]["code"].as_i64();
            let text = String::from_utf8_lossy(&arguments[..arguments.len().min(60)]).into_owned();
            assert!(
                matches!(code, Some(-32700 | -32602)),
                "{text}: {} {}",
                reply.status,
                reply.text()
            );
        }
    }
    assert_eq!(server.http().notes().len(), 0);
    let arguments = json!({"body": "now", "idempotency_key": "k"});
    let said = server.mcp().call("create_note", arguments, json!({}));
    assert!(
        said.content()["note_id"].is_string(),
        "the key is not used up: {said:?}"
    );
    assert!(!said.replayed());
}

#[test]
fn an_unknown_tool_is_a_protocol_error_and_wrong_arguments_a_tool_error() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    for mcp in [server.mcp(), Mcp::legacy(server.http())] {
        let arguments = json!({"body": "one", "idempotency_key": "k"});
        let unknown = mcp.call("drop_tables", arguments, json!({}));
        assert_ne!(unknown.error_code(), 0, "{unknown:?}");
        for arguments in [
            json!({"idempotency_key": "k"}),
            json!({"idempotency_key": "k", "body": ""}),
            json!({"idempotency_key": "k", "body": "x".repeat(10_001)}),
            json!({"idempotency_key": "k", "body": 7}),
            json!({"idempotency_key": "k", "body": "one", "surprise": true}),
        ] {
            let said = mcp.call("create_note", arguments.clone(), json!({}));
            let refusal = said.refusal();
            assert!(refusal["status"].is_string(), "{refusal}");
            let text = said.result()["content"][0]["text"]
                .as_str()
                .unwrap_or_default();
            assert!(!text.is_empty(), "it says what is wrong");
        }
    }
    assert_eq!(server.http().notes().len(), 0);
    assert_eq!(operations(&server), 0);
    let arguments = json!({"body": "x".repeat(10_000), "idempotency_key": "k"});
    let said = server.mcp().call("create_note", arguments, json!({}));
    assert!(said.content()["note_id"].is_string(), "{said:?}");
}

#[test]
fn wrong_fields_over_rest_are_422_and_use_up_no_key() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let long = json!({"body": "x".repeat(10_001)}).to_string();
    for body in [
        "{}",
        r#"{"body":""}"#,
        long.as_str(),
        r#"{"body":7}"#,
        r#"{"body":null}"#,
        r#"{"body":"one","surprise":1}"#,
        r#"["body"]"#,
    ] {
        let reply = server.http().note(Some("k"), body).send().unwrap();
        refused(&reply, 422, "invalid");
    }
    unused(&server, "k");
}

#[test]
fn bounds_are_refused_clearly() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let huge = json!({"body": "x".repeat(12 << 20)}).to_string();
    if let Ok(reply) = server.http().note(Some("k"), &huge).send() {
        refused(&reply, 413, "too_large");
    }
    let huge = format!("{{\"body\":\"{}\"}}", "x".repeat(3 << 20));
    let request = server.http().request("POST", "/mcp");
    if let Ok(reply) = request.json(&huge).send() {
        assert!(matches!(reply.status, 400 | 413), "{}", reply.status);
    }
    let request = (0..300).fold(server.http().note(Some("k"), NOTE), |request, n| {
        request.header(&format!("X-Filler-{n}"), "x")
    });
    if let Ok(reply) = request.send() {
        assert!((400..500).contains(&reply.status), "{}", reply.status);
    }
    unused(&server, "k");
}

#[test]
fn no_credential_and_a_wrong_one_are_401() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let nobody = counterfoil_e2e::Http::new(server.address());
    for http in [nobody, server.http_as("wrong"), server.http_as("")] {
        for (method, path) in [("POST", "/api/v1/notes"), ("GET", "/api/v1/notes")] {
            let request = http.request(method, path).json(NOTE);
            let reply = request.header("Idempotency-Key", "k").send().unwrap();
            refused(&reply, 401, "unauthorized");
        }
        let said = Mcp::new(http).call("list_notes", json!({}), json!({}));
        assert_eq!(said.reply.status, 401);
        let challenge = said.reply.header("www-authenticate").unwrap_or_default();
        assert!(challenge.contains("resource_metadata"), "{challenge}");
    }
    unused(&server, "k");
}

/// A page in a browser that tricked a name into pointing here is turned away.
#[test]
fn a_foreign_origin_or_host_is_403_over_mcp() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
    let text = message.to_string();
    let request = server.mcp().request("tools/list", None, text.as_bytes());
    let reply = request
        .header("Origin", "https://evil.example")
        .send()
        .unwrap();
    assert_eq!(reply.status, 403, "{}", reply.text());
    let request = server.mcp().request("tools/list", None, text.as_bytes());
    let reply = request.with_host("evil.example").send().unwrap();
    assert_eq!(reply.status, 403, "{}", reply.text());
}
