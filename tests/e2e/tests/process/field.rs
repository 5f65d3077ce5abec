//! Rows of the field's list of faults that no other module covers; `FIELD.md` says which is where.

use counterfoil_e2e::{Folder, Mcp, Server};
use serde_json::json;

use crate::STORE;

/// A stored answer carries no cookie and no hop-by-hop header, and its length fits.
#[test]
fn field_07_a_replay_carries_no_cookie_and_its_length_fits() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let note = r#"{"body":"one"}"#;
    let request = server
        .http()
        .note(Some("k"), note)
        .header("Cookie", "session=1");
    let first = request.send().unwrap();
    let again = server.http().note(Some("k"), note).send().unwrap();
    for reply in [&first, &again] {
        for name in [
            "set-cookie",
            "transfer-encoding",
            "keep-alive",
            "upgrade",
            "te",
        ] {
            assert_eq!(reply.header(name), None, "{name}");
        }
        let length: usize = reply.header("content-length").unwrap().parse().unwrap();
        assert_eq!(length, reply.body.len());
    }
    assert_eq!(again.body, first.body);
}

/// A stored refusal is told apart from a fresh one, and says what to do.
#[test]
fn field_10_a_replayed_failure_says_that_it_is_a_stored_one() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let missing = || {
        let path = "/api/v1/agent-keys/ak_0000000000000000/rotate";
        let request = server.http().request("POST", path);
        request.header("Idempotency-Key", "k").send().unwrap()
    };
    let first = missing();
    assert_eq!(
        (first.status, first.code().as_str()),
        (404, "not_found"),
        "{}",
        first.text()
    );
    let again = missing();
    assert_eq!(again.status, first.status);
    if again.header("idempotent-replayed").is_some() {
        let said = again.text();
        assert!(
            said.contains("stored") && said.contains("new key"),
            "{said}"
        );
    }
}

/// The operation of a lost answer is found by its id, with its result and its timeline.
#[test]
fn field_13_field_21_a_lost_result_is_listed_shown_and_explained() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let arguments = json!({"body": "one", "idempotency_key": "k"});
    let mcp = server.mcp();
    let note = mcp.call("create_note", arguments, json!({}));
    let note_id = note.content()["note_id"].clone();
    let listed = mcp.call("list_operations", json!({}), json!({}));
    let operations = listed.content()["operations"]
        .as_array()
        .expect("operations");
    let id = operations[0]["operation_id"].as_str().expect("an id");
    assert!(id.starts_with("op_"), "{id}");
    let shown = mcp.call("get_operation", json!({"operation_id": id}), json!({}));
    let shown = shown.content();
    assert!(
        shown.to_string().contains(note_id.as_str().unwrap()),
        "the result: {shown}"
    );
    let rest = server
        .http()
        .request("GET", &format!("/api/v1/operations/{id}"))
        .send()
        .unwrap();
    assert_eq!(rest.status, 200, "{}", rest.text());
    let value = rest.value();
    assert_eq!(value["operation_id"], id);
    assert_eq!(value["effect"], "happened", "{value}");
    let events = value["events"].as_array().expect("a timeline");
    assert!(!events.is_empty());
    let cli = folder.json(&["operations", "show", id]);
    assert_eq!(cli["operation_id"], id);
    let printed = folder.run(&["operations", "show", id]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert!(
        printed.contains(id) && printed.contains("succeeded"),
        "{printed}"
    );
}

/// What the descriptions tell a model about its key.
#[test]
fn field_15_descriptions_say_when_to_make_a_key_and_when_to_reuse_it() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let said = server.mcp().method("tools/list", json!({}));
    let tools = said.result()["tools"].as_array().unwrap();
    let tool = tools
        .iter()
        .find(|tool| tool["name"] == "create_note")
        .unwrap();
    let openapi = server
        .http()
        .request("GET", "/openapi.json")
        .send()
        .unwrap();
    assert_eq!(openapi.status, 200);
    let rest = openapi.value()["paths"]["/api/v1/notes"]["post"].clone();
    for text in [tool.to_string(), rest.to_string()] {
        let text = text.to_lowercase();
        assert!(!text.contains("unique for every request"), "{text}");
        assert!(!text.contains("unique per request"), "{text}");
        assert!(
            text.contains("reuse") || text.contains("same key"),
            "when to reuse it: {text}"
        );
        assert!(text.contains("retry"), "{text}");
        assert!(
            text.contains("hour") || text.contains("day"),
            "how long it is good for: {text}"
        );
        assert!(
            text.contains("operation"),
            "how to look at an uncertain outcome: {text}"
        );
    }
}

/// Wherever a key is accepted it is used; the host's wins; in a wrong place it is an error.
#[test]
fn field_15_field_16_a_key_in_any_accepted_place_is_used_and_the_hosts_wins() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    for mcp in [server.mcp(), Mcp::legacy(server.http())] {
        let meta = |key: &str| json!({"dev.counterfoil/idempotency-key": key});
        let era = if mcp.call("list_notes", json!({}), json!({})).result()["resultType"].is_null() {
            "old"
        } else {
            "new"
        };
        let body = json!({"body": era});
        let first = mcp.call("create_note", body.clone(), meta(era));
        let id = first.content()["note_id"].clone();
        let again = mcp.call("create_note", body, meta(era));
        assert!(again.replayed());
        assert_eq!(again.content()["note_id"], id);
        let both = json!({"body": era, "idempotency_key": format!("model's of {era}")});
        let both = mcp.call("create_note", both, meta(era));
        assert_eq!(
            both.content()["note_id"],
            id,
            "the host knows better than the model"
        );

        let beside = || {
            mcp.call_with(json!({
                "name": "create_note",
                "arguments": {"body": format!("beside {era}")},
                "idempotencyKey": format!("beside {era}"),
            }))
        };
        let one = beside();
        let two = beside();
        assert_eq!(one.content()["note_id"], two.content()["note_id"]);
        assert!(two.replayed());

        let wrong = json!({"body": "wrong place", "idempotencyKey": "k"});
        let wrong = mcp.call("create_note", wrong, json!({}));
        assert_eq!(
            wrong.error_code(),
            -32602,
            "an error, not ignored: {wrong:?}"
        );
    }
    assert_eq!(server.http().notes().len(), 4);
    let other = r#"{"body":"wrong place","idempotency_key":"k"}"#;
    let other = server.http().note(None, other).send().unwrap();
    assert_eq!(other.status, 422, "an error, not ignored: {}", other.text());
    assert_eq!(server.http().count("wrong place"), 0);
}
