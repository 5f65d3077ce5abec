use std::sync::atomic::Ordering;

use axum::body::Body;
use futures_util::StreamExt as _;
use jsonschema::Validator;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::support::{ERAS, Era, Server};

#[tokio::test]
async fn wrong_arguments_name_the_field_not_the_value_and_use_up_no_key() {
    for era in ERAS {
        let server = Server::new();
        let client = server.client(era);
        for (arguments, field) in [
            (json!({}), "/body"),
            (json!({"body": ""}), "/body"),
            (json!({"body": "b", "hidden": "s3cret"}), "/hidden"),
        ] {
            let got = client.keyed("create_note", "k", arguments).await;
            let result = got.result();
            assert_eq!(result["isError"], json!(true));
            assert_eq!(result["structuredContent"]["code"], json!("invalid"));
            let issues = &result["structuredContent"]["issues"];
            assert_eq!(issues[0]["field"], json!(field));
            assert!(!got.text.contains("s3cret"));
        }
        let plan = client
            .keyed("create_note", "k", json!({"body": "over the plan"}))
            .await
            .result();
        assert_eq!(plan["structuredContent"]["code"], json!("plan"));
        assert_eq!(server.store.receipts().len(), 0);
        // The key is still good.
        let made = client
            .keyed("create_note", "k", json!({"body": "right"}))
            .await
            .result();
        assert_eq!(made["structuredContent"]["status"], json!("succeeded"));
    }
}

#[tokio::test]
async fn an_old_retry_is_answered_before_its_arguments_are_looked_at() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    client
        .keyed("create_note", "k", json!({"body": "right"}))
        .await
        .result();
    // Invalid, but first of all another request under the same key.
    let error = client
        .keyed("create_note", "k", json!({"body": ""}))
        .await
        .error();
    assert_eq!(error["data"]["code"], json!("idempotency_conflict"));
}

#[tokio::test]
async fn an_atomic_refusal_is_kept_and_leaves_nothing_behind() {
    let server = Server::new();
    let client = server.client(Era::Modern);
    for _ in 0..2 {
        let got = client
            .keyed("create_note", "k", json!({"body": "forbidden word"}))
            .await
            .result();
        assert_eq!(got["isError"], json!(true));
        assert_eq!(got["structuredContent"]["code"], json!("not_here"));
        assert_eq!(got["structuredContent"]["word"], json!("forbidden"));
        assert_eq!(got["structuredContent"]["retryable"], json!(false));
    }
    assert_eq!(server.store.effects().len(), 0);
}

#[tokio::test]
async fn an_unlisted_tool_reserves_nothing() {
    for era in ERAS {
        let server = Server::new();
        let error = server
            .client(era)
            .meta_keyed("drop_tables", "k", json!({}))
            .await
            .error();
        assert_eq!(error["code"], json!(-32602));
        assert_eq!(error["message"], json!("Unknown tool: drop_tables"));
        assert_eq!(server.store.receipts().len(), 0);
    }
}

#[tokio::test]
async fn every_structured_answer_is_valid_by_the_published_schema() {
    for era in ERAS {
        let server = Server::new();
        let client = server.client(era);
        let listed = client.ask("tools/list", json!({})).await.result();
        let schema = |name: &str| -> Validator {
            let tools = listed["tools"].as_array().unwrap();
            let tool = tools
                .iter()
                .find(|tool| tool["name"] == json!(name))
                .unwrap();
            jsonschema::validator_for(&tool["outputSchema"]).unwrap()
        };
        let (note, operation) = (schema("create_note"), schema("get_operation"));
        for (body, key) in [
            ("b", "k-1"),
            ("", "k-2"),
            ("forbidden word", "k-3"),
            ("b", "k-1"),
        ] {
            for got in [
                client
                    .keyed("create_note", key, json!({"body": body}))
                    .await,
                client
                    .meta_keyed("create_note", "one", json!({"body": body}))
                    .await,
            ] {
                let structured = got.result()["structuredContent"].clone();
                assert!(note.is_valid(&structured), "{structured}");
            }
        }
        for id in ["op_1", "op_none"] {
            let params = json!({"name": "get_operation", "arguments": {"operation_id": id}});
            let structured = client.call(params).await.result()["structuredContent"].clone();
            assert!(operation.is_valid(&structured), "{structured}");
        }
    }
}

#[tokio::test]
async fn field_15_descriptions_say_when_to_make_and_when_to_reuse_a_key() {
    let server = Server::new();
    let listed = server
        .client(Era::Legacy)
        .ask("tools/list", json!({}))
        .await
        .result();
    for tool in listed["tools"].as_array().unwrap() {
        let text = tool["description"].as_str().unwrap().to_lowercase();
        let reads = tool["annotations"]["readOnlyHint"] == json!(true);
        let required = tool["inputSchema"]["required"]
            .to_string()
            .contains("idempotency_key");
        assert_eq!(reads, !required, "{tool}");
        assert!(!text.contains("unique for every request"));
        for said in [
            "when you form the intention",
            "reuse that key",
            "good for 48 hours",
            "30 days",
            "call get_operation",
        ] {
            assert_eq!(text.contains(said), !reads, "{said}: {text}");
        }
    }
}

#[tokio::test]
async fn field_05_of_many_first_calls_exactly_one_runs() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    let calls: Vec<_> = (0..16)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.keyed("send", "k", json!({"hold": true})).await })
        })
        .collect();
    server.holds().await;
    server.stage.gate.add_permits(1);
    let mut ran = 0;
    for call in calls {
        let result = call.await.unwrap().result();
        if result["structuredContent"]["status"] == json!("succeeded") {
            assert_eq!(result["structuredContent"]["count"], json!(1));
            ran += usize::from(result["_meta"].get("dev.counterfoil/replayed").is_none());
        } else {
            assert_eq!(
                result["structuredContent"]["code"],
                json!("idempotency_in_progress")
            );
        }
    }
    assert_eq!((ran, server.sent()), (1, 1));
}

#[tokio::test]
async fn field_12_a_caller_that_goes_away_stops_nothing_and_can_fetch_the_result() {
    for era in ERAS {
        let server = Server::new();
        let client = server.client(era);
        let gone = {
            let client = client.clone();
            tokio::spawn(async move { client.keyed("send", "k", json!({"hold": true})).await })
        };
        server.holds().await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        server.stage.gate.add_permits(1);
        // The retry gets what the first one did, as soon as it is there.
        let result = loop {
            let got = client
                .keyed("send", "k", json!({"hold": true}))
                .await
                .result();
            if got["structuredContent"]["code"] != json!("idempotency_in_progress") {
                break got;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(result["structuredContent"]["count"], json!(1));
        assert_eq!(server.sent(), 1);
    }
}

#[tokio::test]
async fn two_requests_under_one_json_rpc_id_both_get_their_answer() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    let first = {
        let client = client.clone();
        tokio::spawn(async move { client.keyed("send", "k-1", json!({"hold": true})).await })
    };
    server.holds().await;
    let second = client.keyed("send", "k-2", json!({})).await;
    assert_eq!(second.json()["id"], json!(7));
    server.stage.gate.add_permits(1);
    assert_eq!(first.await.unwrap().json()["id"], json!(7));
}

#[tokio::test]
async fn a_cancel_stops_the_wait_of_its_own_session_only() {
    let server = Server::new();
    let started = server
        .client(Era::Legacy)
        .ask("initialize", json!({"protocolVersion": "2025-11-25"}))
        .await;
    let session = started.headers["mcp-session-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let client = server.client(Era::Legacy).with("mcp-session-id", &session);
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.keyed("send", "k", json!({"hold": true})).await })
    };
    server.holds().await;
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
            .to_string();
    // Ids are unique to one client only: another one's cancel is not about this wait.
    let other = server.client(Era::Legacy).with("mcp-session-id", "another");
    for client in [
        &other,
        &server.client(Era::Legacy),
        &client.clone().by("bob"),
    ] {
        assert_eq!(client.raw(cancel.clone()).await.status, 202);
        assert!(!waiting.is_finished());
    }
    assert_eq!(client.raw(cancel).await.status, 202);
    let stopped = waiting.await.unwrap();
    assert_eq!((stopped.status.as_u16(), stopped.text.as_str()), (202, ""));
    // The operation went on.
    server.stage.gate.add_permits(1);
    assert_eq!(server.store.receipts().len(), 1);
    assert_eq!(server.stage.sent.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_cancelled_stream_ends_without_an_answer() {
    let server = Server::new();
    let client = server.client(Era::Legacy).with("mcp-session-id", "s-1");
    let arguments = json!({"hold": true, "idempotency_key": "k"});
    let params = json!({"name": "send", "arguments": arguments, "_meta": {"progressToken": 1}});
    let streaming = {
        let client = client.clone();
        tokio::spawn(async move { client.call(params).await })
    };
    server.holds().await;
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#;
    assert_eq!(client.raw(cancel).await.status, 202);
    let got = streaming.await.unwrap();
    assert_eq!(got.headers["content-type"], "text/event-stream");
    assert_eq!(got.text, "");
    server.stage.gate.add_permits(1);
}

#[tokio::test]
async fn progress_comes_on_a_stream_before_the_answer() {
    use counterfoil_mcp::{Output, Tool};
    let steps = Tool::read(
        "steps",
        "Steps.",
        json!({"type": "object"}),
        |request| async move {
            request.progress.tell(1.0, Some(2.0), Some("half"));
            request.progress.tell(2.0, Some(2.0), None);
            Ok(Output::text("done"))
        },
    );
    let server = Server::with(|builder| builder.tool(steps));
    for era in ERAS {
        let client = server.client(era);
        let params = json!({"name": "steps", "_meta": {"progressToken": "p-1"}});
        let body = client.body("tools/call", params.clone()).to_string();
        let request = client
            .request(body.as_bytes())
            .body(Body::from(body))
            .unwrap();
        let response = client.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut data = response.into_body().into_data_stream();
        let mut text = String::new();
        while let Some(part) = data.next().await {
            text.push_str(std::str::from_utf8(&part.unwrap()).unwrap());
        }
        let events: Vec<Value> = text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(|data| serde_json::from_str(data).unwrap())
            .collect();
        assert_eq!(events.len(), 3, "{text}");
        assert_eq!(
            events[0]["params"],
            json!({"progressToken": "p-1", "progress": 1.0, "total": 2.0, "message": "half"})
        );
        assert_eq!(events[2]["result"]["content"][0]["text"], json!("done"));
        // A client that takes no stream gets the answer alone.
        let params = json!({"name": "steps", "_meta": {"progressToken": "p-1"}});
        let body = client.body("tools/call", params).to_string();
        let mut request = client.request(body.as_bytes());
        let json = http::HeaderValue::from_static("application/json");
        request.headers_mut().unwrap().insert("accept", json);
        let got = client.send(request.body(Body::from(body)).unwrap()).await;
        assert_eq!(got.result()["content"][0]["text"], json!("done"));
    }
}
