//! Credentials on all nodes.

use counterfoil_e2e::{Base, Mcp};
use serde_json::json;

use crate::nodes::Nodes;

const NOTE: &str = r#"{"body":"one"}"#;

/// A key revoked on one node is refused on the others with the very next request, and its replays
/// with it; a rotated one is the same principal everywhere.
#[test]
fn i4_a_key_revoked_on_one_node_is_refused_on_the_others_at_once() {
    let nodes = Nodes::start(Base::new(), 3, &[]);
    let clients = nodes.clients();
    let issue = |name: &str| {
        let request = clients[0].request("POST", "/api/v1/agent-keys");
        let request = request.header("Idempotency-Key", name);
        let issued = request.json(&json!({"name": name}).to_string()).send();
        let value = issued.unwrap().value();
        let text = |field: &str| value[field].as_str().expect("id and key").to_owned();
        (text("id"), text("key"))
    };
    for round in 0..5 {
        let (id, secret) = issue(&format!("worker {round}"));
        let there: Vec<_> = clients
            .iter()
            .map(|http| http.clone().with_key(&secret))
            .collect();
        let first = there[1].note(Some("k"), NOTE).send().unwrap();
        for http in &there {
            let again = http.note(Some("k"), NOTE).send().unwrap();
            assert_eq!(again.body, first.body, "known on every node at once");
        }
        let path = format!("/api/v1/agent-keys/{id}");
        let revoked = clients[0].request("DELETE", &path).send().unwrap();
        assert!((200..300).contains(&revoked.status), "{}", revoked.text());
        for http in &there {
            let refused = http.note(Some("k"), NOTE).send().unwrap();
            assert_eq!(
                (refused.status, refused.code().as_str()),
                (401, "unauthorized"),
                "no replay either"
            );
            let said = Mcp::new(http.clone()).call("list_notes", json!({}), json!({}));
            assert_eq!(said.reply.status, 401);
        }
    }
    let (id, secret) = issue("rotated");
    let first = clients[1]
        .clone()
        .with_key(&secret)
        .note(Some("k"), NOTE)
        .send()
        .unwrap();
    let path = format!("/api/v1/agent-keys/{id}/rotate");
    let rotated = clients[0].request("POST", &path).send().unwrap().value();
    let new = rotated["key"].as_str().expect("the new key");
    for http in &clients {
        let old = http
            .clone()
            .with_key(&secret)
            .request("GET", "/api/v1/notes");
        assert_eq!(old.send().unwrap().status, 401);
        let again = http.clone().with_key(new).note(Some("k"), NOTE).send();
        assert_eq!(again.unwrap().body, first.body, "the same principal");
    }
}
