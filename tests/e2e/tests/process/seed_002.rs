//! "Check the contract before you depend on it": each line that needs no work graph, from outside.

use counterfoil_e2e::{Folder, Mcp, Server};
use serde_json::json;

use crate::STORE;

#[test]
fn i5_field_11_the_header_makes_one_note_of_two_posts_and_without_it_two_run() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let http = server.http();
    let note = r#"{"body":"one"}"#;
    let one = http.note(Some("k"), note).send().unwrap();
    let two = http.note(Some("k"), note).send().unwrap();
    assert_eq!(one.note_id(), two.note_id());
    assert_eq!(http.count("one"), 1);
    let three = http.note(None, note).send().unwrap();
    let four = http.note(None, note).send().unwrap();
    assert_ne!(three.note_id(), four.note_id());
    assert_eq!(http.count("one"), 3);
}

#[test]
fn i2_a_replayed_201_is_a_201_with_its_content_type_and_bytes() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let first = server
        .http()
        .note(Some("k"), r#"{"body":"ünïcode \u2028"}"#)
        .send()
        .unwrap();
    let again = server
        .http()
        .note(Some("k"), r#"{"body":"ünïcode \u2028"}"#)
        .send()
        .unwrap();
    assert_eq!(first.status, 201, "{}", first.text());
    assert_eq!(again.status, 201);
    assert_eq!(again.body, first.body);
    for name in ["content-type", "content-length"] {
        assert!(first.header(name).is_some(), "{name}");
        assert_eq!(again.header(name), first.header(name), "{name}");
    }
    assert_eq!(first.header("idempotent-replayed"), None);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
}

#[test]
fn field_02_a_changed_body_is_409_idempotency_conflict() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    server
        .http()
        .note(Some("k"), r#"{"body":"one"}"#)
        .send()
        .unwrap();
    let other = server
        .http()
        .note(Some("k"), r#"{"body":"two"}"#)
        .send()
        .unwrap();
    assert_eq!(other.status, 409);
    assert_eq!(other.code(), "idempotency_conflict");
    let kind = other.header("content-type").unwrap_or_default();
    assert!(kind.starts_with("application/problem+json"), "{kind}");
    let said = other.text();
    assert!(
        said.contains("Idempotency-Key was reused with different content"),
        "{said}"
    );
    assert_eq!(server.http().count("two"), 0, "not a silent second write");
}

#[test]
fn i4_two_agent_keys_with_one_key_both_execute() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let (_, second) = folder.issue("second");
    let note = r#"{"body":"one"}"#;
    let one = server.http().note(Some("k"), note).send().unwrap();
    let two = server
        .http_as(&second)
        .note(Some("k"), note)
        .send()
        .unwrap();
    assert_ne!(one.note_id(), two.note_id());
}

/// Bytes count over REST, canonical JSON over MCP.
#[test]
fn field_01_reordered_fields_replay_over_mcp_and_conflict_over_rest() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let call = |text: &str| {
        let message = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"create_note","arguments":{text}}}}}"#
        );
        let mcp = Mcp::legacy(server.http());
        mcp.send_text("tools/call", Some("create_note"), &message)
            .unwrap()
    };
    let one = call(r#"{"body":"one","idempotency_key":"k"}"#);
    let two = call(r#"{ "idempotency_key" : "k", "body":"\u006fne"}"#);
    assert!(two.replayed(), "{two:?}");
    assert_eq!(one.content(), two.content());

    let http = server.http();
    let first = http.note(Some("r"), r#"{"body":"rest"}"#).send().unwrap();
    assert_eq!(first.status, 201);
    let spaced = http.note(Some("r"), r#"{"body": "rest"}"#).send().unwrap();
    assert_eq!(
        spaced.code(),
        "idempotency_conflict",
        "other bytes, another body"
    );
    let said = spaced.text();
    assert!(said.contains("byte"), "it says which rule applies: {said}");
    assert_eq!(http.count("rest"), 1);
}

#[test]
fn the_longest_key_is_200_characters() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let longest = server
        .http()
        .note(Some(&"k".repeat(200)), r#"{"body":"a"}"#)
        .send();
    assert_eq!(longest.unwrap().status, 201);
    let longer = server
        .http()
        .note(Some(&"k".repeat(201)), r#"{"body":"b"}"#)
        .send()
        .unwrap();
    assert_eq!(
        (longer.status, longer.code().as_str()),
        (422, "invalid_key")
    );
    assert_eq!(server.http().count("b"), 0, "before any work");
}

/// The concrete path is part of the identity: one key on two resources is two calls.
#[test]
fn i4_one_key_on_two_paths_is_two_identities() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let (one, _) = folder.issue("one");
    let (two, _) = folder.issue("two");
    for id in [one, two] {
        let path = format!("/api/v1/agent-keys/{id}");
        let request = || {
            let request = server.http().request("DELETE", &path);
            request.header("Idempotency-Key", "k").send().unwrap()
        };
        let first = request();
        assert!((200..300).contains(&first.status), "{}", first.text());
        assert_eq!(first.header("idempotent-replayed"), None);
        let again = request();
        assert_eq!(again.status, first.status);
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
    }
}

/// A GET carries a key in vain.
#[test]
fn a_get_is_never_deduplicated() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let list = || {
        let request = server.http().request("GET", "/api/v1/notes");
        let reply = request.header("Idempotency-Key", "k").send().unwrap();
        reply.value()["notes"].as_array().unwrap().len()
    };
    assert_eq!(list(), 0);
    server
        .http()
        .note(None, r#"{"body":"one"}"#)
        .send()
        .unwrap();
    assert_eq!(list(), 1);
}

#[test]
fn every_mutating_tool_requires_its_key_and_no_reading_one_does() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let said = server.mcp().method("tools/list", json!({}));
    let tools = said.result()["tools"].as_array().unwrap();
    let mut names: Vec<_> = tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    let wanted = [
        "create_note",
        "get_note",
        "get_operation",
        "list_notes",
        "list_operations",
    ];
    assert_eq!(names, wanted);
    for tool in tools {
        let schema = &tool["inputSchema"];
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let reads = tool["annotations"]["readOnlyHint"] == true;
        assert_eq!(
            required.contains(&json!("idempotency_key")),
            !reads,
            "{tool}"
        );
        assert_eq!(
            schema["properties"].get("idempotency_key").is_some(),
            !reads,
            "{tool}"
        );
        assert!(tool["outputSchema"].is_object(), "{tool}");
    }
    for mcp in [server.mcp(), Mcp::legacy(server.http())] {
        let missing = mcp.call("create_note", json!({"body": "one"}), json!({}));
        assert_eq!(missing.error_code(), -32602, "{missing:?}");
    }
    assert_eq!(server.http().count("one"), 0);
}

/// The conflict over MCP, word for word, and its code in each era.
#[test]
fn an_mcp_conflict_is_a_protocol_error_whose_data_says_the_same() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    for (mcp, code) in [(Mcp::legacy(server.http()), -32001), (server.mcp(), -31001)] {
        let key = format!("k{code}");
        let one = mcp.call(
            "create_note",
            json!({"body": "1", "idempotency_key": key}),
            json!({}),
        );
        assert!(one.content()["note_id"].is_string(), "{one:?}");
        let two = mcp.call(
            "create_note",
            json!({"body": "2", "idempotency_key": key}),
            json!({}),
        );
        assert_eq!(two.reply.status, 200);
        assert_eq!(two.error_code(), code, "{two:?}");
        assert_eq!(two.data_code(), "idempotency_conflict");
        assert_eq!(
            two.message["error"]["message"],
            "Idempotency key was reused with different arguments"
        );
    }
}

/// REST and MCP are two targets: the same key on both runs both.
#[test]
fn the_same_key_over_rest_and_over_mcp_is_two_targets() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let rest = server
        .http()
        .note(Some("k"), r#"{"body":"one"}"#)
        .send()
        .unwrap()
        .note_id();
    let arguments = json!({"body": "one", "idempotency_key": "k"});
    let said = server.mcp().call("create_note", arguments, json!({}));
    assert_ne!(said.content()["note_id"], json!(rest));
    assert!(!said.replayed());
}

/// Issued and rotated keys are shown once: the replay is the envelope without the secret.
#[test]
fn field_09_a_replayed_key_issuance_is_the_envelope_without_the_secret() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let issue = || {
        let request = server.http().request("POST", "/api/v1/agent-keys");
        let request = request.header("Idempotency-Key", "issue");
        request.json(r#"{"name":"worker"}"#).send().unwrap()
    };
    let first = issue();
    assert_eq!(first.status, 201, "{}", first.text());
    let secret = first.value()["key"].as_str().expect("the key").to_owned();
    assert_eq!(server.http_as(&secret).notes().len(), 0, "the key works");
    let again = issue();
    assert_eq!(again.status, 201);
    assert_eq!(again.value()["id"], first.value()["id"]);
    assert_eq!(
        again.value().get("key"),
        Some(&json!(null)),
        "{}",
        again.text()
    );
    assert!(!again.text().contains(&secret));

    let id = first.value()["id"].as_str().unwrap().to_owned();
    let rotate = || {
        let path = format!("/api/v1/agent-keys/{id}/rotate");
        let request = server.http().request("POST", &path);
        request.header("Idempotency-Key", "rotate").send().unwrap()
    };
    let rotated = rotate();
    let new = rotated.value()["key"]
        .as_str()
        .expect("the new key")
        .to_owned();
    assert_ne!(new, secret);
    assert_eq!(rotate().value().get("key"), Some(&json!(null)));
    assert_eq!(
        server
            .http_as(&secret)
            .request("GET", "/api/v1/notes")
            .send()
            .unwrap()
            .status,
        401
    );
    assert_eq!(
        server.http_as(&new).notes().len(),
        0,
        "the way back is rotation"
    );
}

/// What is not in the table of kept answers is not kept: a refused credential or an invalid
/// request uses up no key.
#[test]
fn a_refused_or_invalid_call_uses_up_no_key() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let refused = server
        .http_as("wrong")
        .note(Some("k"), r#"{"body":"now"}"#)
        .send()
        .unwrap();
    assert_eq!(refused.status, 401);
    let invalid = server
        .http()
        .note(Some("k"), r#"{"body":""}"#)
        .send()
        .unwrap();
    assert_eq!((invalid.status, invalid.code().as_str()), (422, "invalid"));
    let done = server
        .http()
        .note(Some("k"), r#"{"body":"now"}"#)
        .send()
        .unwrap();
    assert_eq!(done.status, 201, "{}", done.text());
}
