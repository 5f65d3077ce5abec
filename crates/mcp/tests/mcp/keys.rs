use axum::body::Body;
use counterfoil_mcp::{Ending, Endpoint, Tool};
use serde_json::{Value, json};

use crate::support::{Client, ERAS, Era, Server, without_meta};

#[tokio::test]
async fn i2_the_same_key_runs_once_and_replays_byte_for_byte() {
    for era in ERAS {
        let server = Server::new();
        let client = server.client(era);
        let first = client
            .keyed("send", "k", json!({"to": "ann"}))
            .await
            .result();
        let again = client
            .keyed("send", "k", json!({"to": "ann"}))
            .await
            .result();
        assert_eq!(server.sent(), 1);
        assert_eq!(first["_meta"].get("dev.counterfoil/replayed"), None);
        assert_eq!(again["_meta"]["dev.counterfoil/replayed"], json!(true));
        assert_eq!(
            first["_meta"]["dev.counterfoil/operation-id"],
            again["_meta"]["dev.counterfoil/operation-id"]
        );
        assert_eq!(
            without_meta(first).to_string(),
            without_meta(again).to_string()
        );
    }
}

#[tokio::test]
async fn a_replay_in_the_other_era_differs_only_by_its_envelope() {
    let server = Server::new();
    let body = json!({"body": "hello"});
    let legacy = server
        .client(Era::Legacy)
        .keyed("create_note", "k", body.clone())
        .await;
    let modern = server
        .client(Era::Modern)
        .keyed("create_note", "k", body)
        .await;
    let mut modern = without_meta(modern.result());
    let kind = modern.as_object_mut().unwrap().shift_remove("resultType");
    assert_eq!(kind, Some(json!("complete")));
    assert_eq!(
        modern.to_string(),
        without_meta(legacy.result()).to_string()
    );
}

#[tokio::test]
async fn field_01_the_order_of_fields_and_the_spelling_of_numbers_do_not_count() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    for arguments in [
        r#"{"to":"ann","n":1,"idempotency_key":"k"}"#,
        r#"{"idempotency_key":"k","n":1.0,"to":"ann"}"#,
        r#"{"n":10e-1,"to":"\u0061nn","idempotency_key":"k"}"#,
    ] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"send","arguments":{arguments}}}}}"#
        );
        assert_eq!(
            client.raw(body).await.result()["structuredContent"]["count"],
            json!(1)
        );
    }
    let other = client
        .keyed("send", "k", json!({"to": "ann", "n": 2}))
        .await;
    assert_eq!(other.error()["data"]["code"], json!("idempotency_conflict"));
}

#[tokio::test]
async fn field_16_the_key_beside_the_arguments_is_the_key_among_them() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    let beside = json!({"name": "send", "arguments": {"to": "ann"}, "idempotencyKey": "k"});
    let first = client.call(beside).await.result();
    let among = client
        .keyed("send", "k", json!({"to": "ann"}))
        .await
        .result();
    assert_eq!(among["_meta"]["dev.counterfoil/replayed"], json!(true));
    assert_eq!(first["structuredContent"], among["structuredContent"]);
    // Both may be there if they are the same; of two different ones neither is ignored.
    let both = |beside: Value| json!({"name": "send", "arguments": {"to": "ann", "idempotency_key": "k"}, "idempotencyKey": beside});
    let same = client.call(both(json!("k"))).await.result();
    assert_eq!(same["_meta"]["dev.counterfoil/replayed"], json!(true));
    for other in [json!("other"), json!(7), json!("")] {
        let error = client.call(both(other)).await.error();
        assert_eq!(error["code"], json!(-32602));
        assert_eq!(error["data"]["code"], json!("invalid_key"));
        let told = error["message"].as_str().unwrap();
        assert!(told.contains("two different keys"), "{told}");
    }
    assert_eq!(server.sent(), 1);
}

#[tokio::test]
async fn field_16_a_key_in_a_place_that_is_not_accepted_is_refused() {
    for era in ERAS {
        let server = Server::new();
        let client = server.client(era);
        for tool in ["send", "get_operation"] {
            for params in [
                json!({"name": tool, "arguments": {}, "idempotency_key": "k"}),
                json!({"name": tool, "arguments": {}, "Idempotency-Key": "k"}),
                json!({"name": tool, "arguments": {"idempotencyKey": "k", "idempotency_key": "k"}}),
                json!({"name": tool, "arguments": {"idempotency-key": "k"}}),
                json!({"name": tool, "arguments": {}, "_meta": {"idempotency_key": "k"}}),
                json!({"name": tool, "arguments": {}, "_meta": {"idempotencyKey": "k"}}),
                json!({"name": tool, "arguments": {}, "IDEMPOTENCY_KEY": "k"}),
                json!({"name": tool, "arguments": {"idempotencykey": "k", "idempotency_key": "k"}}),
                json!({"name": tool, "arguments": {"dev.counterfoil/idempotency-key": "k"}}),
            ] {
                misplaced(&client, params).await;
            }
            // Under another prefix or spelling, also beside a good key.
            for name in [
                "assay/idempotency-key",
                "Dev.Counterfoil/idempotency-key",
                "dev.counterfoil/idempotencyKey",
                "dev.counterfoil/Idempotency-Key",
                "dev.counterfoil/idempotency_key",
                "IDEMPOTENCY_KEY",
            ] {
                for good in ["dev.counterfoil/idempotency-key", "other"] {
                    let meta = json!({name: "k", good: "k"});
                    let arguments = json!({"idempotency_key": "k"});
                    let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
                    misplaced(&client, params).await;
                }
            }
            for header in ["idempotency-key", "x-idempotency-key"] {
                let header = client.clone().with(header, "k");
                let error = header.keyed(tool, "k", json!({})).await.error();
                assert_eq!(error["data"]["code"], json!("invalid_key"));
            }
            // Beside the parameters, and in the address.
            let good = json!({"name": tool, "arguments": {"idempotency_key": "k"}});
            let mut body = client.body("tools/call", good);
            let plain = body.to_string();
            body["idempotencyKey"] = json!("k");
            let error = client.raw(body.to_string()).await.error();
            assert_eq!(error["data"]["code"], json!("invalid_key"));
            let told = error["message"].as_str().unwrap();
            assert!(told.contains("beside `params`"), "{told}");
            let query = client
                .request(plain.as_bytes())
                .uri("/mcp?idempotency_key=k");
            let query = query.body(Body::from(plain)).unwrap();
            let error = client.send(query).await.error();
            assert_eq!(error["data"]["code"], json!("invalid_key"));
        }
        assert_eq!((server.sent(), server.store.receipts().len()), (0, 0));
    }
}

/// The call is refused, and told where a key belongs.
async fn misplaced(client: &Client, params: Value) {
    let error = client.call(params.clone()).await.error();
    assert_eq!(error["code"], json!(-32602), "{params}");
    assert_eq!(error["data"]["code"], json!("invalid_key"), "{params}");
    let told = error["message"].as_str().unwrap();
    assert!(told.contains("dev.counterfoil/idempotency-key"), "{told}");
}

#[tokio::test]
async fn field_15_the_hosts_key_in_meta_wins_over_the_models() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    let call = |host: &str, arguments: Value| {
        let meta = json!({"dev.counterfoil/idempotency-key": host});
        json!({"name": "send", "arguments": arguments, "_meta": meta})
    };
    // Without the argument it is not missed.
    let first = client
        .call(call("host-1", json!({"to": "ann"})))
        .await
        .result();
    assert_eq!(first["structuredContent"]["count"], json!(1));
    // The model mints a key for every try, even a malformed one: it does not count at all.
    for key in [json!("model-1"), json!("model-2"), json!(""), json!(7)] {
        let again = client
            .call(call("host-1", json!({"to": "ann", "idempotency_key": key})))
            .await
            .result();
        assert_eq!(again["_meta"]["dev.counterfoil/replayed"], json!(true));
    }
    // The same characters among the arguments are another identity.
    let among = client
        .keyed("send", "host-1", json!({"to": "ann"}))
        .await
        .result();
    assert_eq!(among["structuredContent"]["count"], json!(2));
}

#[tokio::test]
async fn a_key_in_meta_names_one_call_whatever_its_tool() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    client.meta_keyed("send", "k", json!({})).await.result();
    let other = client.meta_keyed("large", "k", json!({})).await.result();
    assert_eq!(
        other["_meta"]["dev.counterfoil/error"]["code"],
        json!("IDEMPOTENCY_KEY_REUSED")
    );
    // Among the arguments the tool is part of the identity.
    client.keyed("send", "k", json!({})).await.result();
    let other = client.keyed("picture", "k", json!({})).await.result();
    assert_eq!(other["isError"], json!(false));
}

#[tokio::test]
async fn request_meta_never_counts() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    for trace in ["00-a", "00-b"] {
        let meta = json!({"traceparent": trace, "progressToken": trace, "dev.counterfoil/idempotency-key": "k"});
        let params = json!({"name": "create_note", "arguments": {"body": "b"}, "_meta": meta});
        assert_eq!(
            client.clone().with("accept", "").call(params).await.status,
            200
        );
    }
    assert_eq!(server.store.effects().len(), 1);
}

#[tokio::test]
async fn keys_have_their_bounds_in_either_dialect() {
    let server = Server::new();
    let client = server.client(Era::Modern);
    let most = "ü".repeat(200);
    assert!(client.keyed("send", &most, json!({})).await.json()["result"].is_object());
    for bad in ["", &"k".repeat(201), "a\u{7}b"] {
        let error = client.keyed("send", bad, json!({})).await.error();
        assert_eq!(
            (error["code"].clone(), error["data"]["code"].clone()),
            (json!(-32602), json!("invalid_key"))
        );
    }
    let most = "~".repeat(128);
    assert!(client.meta_keyed("send", &most, json!({})).await.json()["result"].is_object());
    for bad in ["", &"k".repeat(129), "ü", "a\tb"] {
        let error = client.meta_keyed("send", bad, json!({})).await.error();
        assert_eq!(
            (error["code"].clone(), error["data"]["code"].clone()),
            (json!(-32602), json!("MCP_IDEMPOTENCY_KEY_INVALID"))
        );
    }
    assert_eq!(server.sent(), 2);
}

#[tokio::test]
async fn a_key_on_a_reading_tool_does_no_harm_and_deduplicates_nothing() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    for id in ["op_1", "op_2"] {
        let got = client
            .keyed("get_operation", "k", json!({"operation_id": id}))
            .await
            .result();
        assert_eq!(got["structuredContent"]["operation_id"], json!(id));
        assert_eq!(
            got["structuredContent"]["arguments"],
            json!({"operation_id": id})
        );
        let got = client
            .meta_keyed("get_operation", "k", json!({"operation_id": id}))
            .await
            .result();
        assert_eq!(got["isError"], json!(false));
    }
    assert_eq!(server.store.receipts().len(), 0);
}

#[tokio::test]
async fn i4_two_principals_with_one_key_are_two_operations() {
    let server = Server::new();
    let alice = server.client(Era::Legacy);
    let bob = alice.clone().by("bob");
    for client in [&alice, &bob] {
        let got = client.keyed("send", "k", json!({})).await.result();
        assert_eq!(got["_meta"].get("dev.counterfoil/replayed"), None);
    }
    assert_eq!(server.sent(), 2);
}

#[tokio::test]
async fn another_meta_prefix_is_used_throughout() {
    let server = Server::with(|builder| builder.meta_prefix("assay"));
    let client = server.client(Era::Legacy);
    let call = |arguments| json!({"name": "send", "arguments": arguments, "_meta": {"assay/idempotency-key": "k"}});
    client.call(call(json!({"n": 1}))).await.result();
    let again = client.call(call(json!({"n": 1}))).await.result();
    assert_eq!(again["_meta"]["assay/replayed"], json!(true));
    let other = client.call(call(json!({"n": 2}))).await.result();
    assert_eq!(
        other["_meta"]["assay/error"]["code"],
        json!("IDEMPOTENCY_KEY_REUSED")
    );
    // The default prefix is somebody else's now.
    let error = client.meta_keyed("send", "k", json!({})).await.error();
    assert_eq!(error["data"]["code"], json!("invalid_key"));
    assert!(error["message"].as_str().unwrap().contains("assay/"));
}

#[test]
fn declarations_that_cannot_hold_are_refused() {
    use counterfoil_core::Policy;
    use counterfoil_engine::{Engine, Operation};
    use std::sync::Arc;

    let build = |tool: Tool| {
        let store = Arc::new(counterfoil_testkit::MemoryStore::new());
        Endpoint::builder(Engine::new(store))
            .tool(tool.clone())
            .tool(tool)
            .build()
            .err()
            .map(|e| e.to_string())
    };
    let guarded = |name: &str, schema: Value| {
        let operation = Operation::new(1, Policy::default()).unwrap();
        Tool::guarded(name, "", schema, operation, |_, _| async {
            Ending::Lost { timed_out: false }
        })
    };
    let object = json!({"type": "object"});
    for (tool, why) in [
        (guarded("a b", object.clone()), "no tool name"),
        (guarded("twice", object.clone()), "two tools"),
        (guarded("t", json!({"type": "string"})), "of type `object`"),
        (
            guarded(
                "t",
                json!({"type": "object", "properties": {"a": {"type": 7}}}),
            ),
            "schema",
        ),
        (
            guarded(
                "t",
                json!({"type": "object", "properties": {"idempotency_key": {}}}),
            ),
            "added by the endpoint",
        ),
        (
            guarded("t", object)
                .output_schema(json!({"type": "object", "properties": {"status": {}}})),
            "belongs to the envelope",
        ),
    ] {
        let error = build(tool).expect(why);
        assert!(error.contains(why), "{error}");
    }
}
