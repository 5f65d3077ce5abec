//! Wire samples. A change here is a change of the wire.

use insta::{assert_json_snapshot, with_settings};
use serde_json::json;

use crate::support::{ERAS, Era, Server};

fn named(era: Era, what: &str) -> String {
    format!("{what}-{era:?}").to_lowercase()
}

#[tokio::test]
async fn the_start_and_the_list_of_tools() {
    let server = Server::with(|builder| builder.instructions("Be careful."));
    let legacy = server.client(Era::Legacy);
    let start = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    assert_json_snapshot!("initialize", legacy.ask("initialize", start).await.json());
    let modern = server.client(Era::Modern);
    assert_json_snapshot!(
        "discover",
        modern.ask("server/discover", json!({})).await.json()
    );
    for era in ERAS {
        let listed = server.client(era).ask("tools/list", json!({})).await;
        assert_json_snapshot!(named(era, "tools-list"), listed.json());
    }
}

#[tokio::test]
async fn answers_and_replays() {
    for era in ERAS {
        let server = Server::new();
        let client = server.client(era);
        let mut all = json!({});
        for (what, key) in [("first", "k-1"), ("replay", "k-1")] {
            let got = client
                .keyed("create_note", key, json!({"body": "hello"}))
                .await;
            all[format!("argument key, {what}")] = got.json();
            let got = client.meta_keyed("send", key, json!({"to": "ann"})).await;
            all[format!("_meta key, {what}")] = got.json();
            let got = client.keyed("send", "k-2", json!({"to": "nobody"})).await;
            all[format!("failure, {what}")] = got.json();
            let got = client.keyed("picture", "k-3", json!({})).await;
            all[format!("blocks, {what}")] = got.json();
        }
        let got = client.keyed("send", "k-4", json!({"to": "busy"})).await;
        all["not kept"] = got.json();
        let arguments = json!({"operation_id": "op_1"});
        let got = client
            .call(json!({"name": "get_operation", "arguments": arguments}))
            .await;
        all["read"] = got.json();
        with_settings!({sort_maps => false}, {
            assert_json_snapshot!(named(era, "answers"), all);
        });
    }
}

#[tokio::test]
async fn protocol_errors() {
    for era in ERAS {
        let server = Server::new();
        let client = server.client(era);
        let mut all = json!({});
        let note = |arguments| json!({"name": "create_note", "arguments": arguments});
        let long = "k".repeat(201);
        for (what, params) in [
            ("no key", note(json!({"body": "b"}))),
            (
                "long key",
                note(json!({"body": "b", "idempotency_key": long})),
            ),
            (
                "number as key",
                note(json!({"body": "b", "idempotency_key": 1})),
            ),
            (
                "key in a wrong place",
                note(json!({"body": "b", "idempotencyKey": "k"})),
            ),
            (
                "wrong arguments",
                note(json!({"body": "", "idempotency_key": "k", "x": 1})),
            ),
            ("no such tool", json!({"name": "nothing"})),
            ("no name", json!({})),
        ] {
            all[what] = client.call(params).await.json();
        }
        let got = client
            .meta_keyed("create_note", "kéy", json!({"body": "b"}))
            .await;
        all["bad key in _meta"] = got.json();
        all["no such method"] = client.ask("nothing/at/all", json!({})).await.json();
        all["no JSON"] = client.raw("{").await.json();
        all["duplicate keys"] = client
            .raw(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"a":1,"a":2}}"#)
            .await
            .json();
        assert_eq!(server.store.receipts().len(), 0);
        assert_json_snapshot!(named(era, "protocol-errors"), all);
    }
}
