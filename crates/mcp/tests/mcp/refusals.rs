use std::{sync::Arc, time::Duration};

use axum::body::Body;
use counterfoil_engine::store::Store;
use counterfoil_mcp::Limits;
use counterfoil_testkit::{Fault, FaultyStore, MemoryStore, Step};
use insta::assert_json_snapshot;
use serde_json::{Value, json};

use crate::support::{ERAS, Era, Got, Server};

const DAY: Duration = Duration::from_secs(86_400);

/// Each refusal once, by the word of the contract.
async fn refusals(era: Era, meta: bool) -> Value {
    let server = Server::new();
    let client = server.client(era);
    let call = async |tool: &str, key: &str, arguments: Value| -> Got {
        if meta {
            client.meta_keyed(tool, key, arguments).await
        } else {
            client.keyed(tool, key, arguments).await
        }
    };
    let mut all = json!({});
    call("send", "conflict", json!({"to": "ann"})).await;
    let conflict = call("send", "conflict", json!({"to": "bob"})).await;
    assert_eq!(conflict.status, 200);
    all["conflict"] = conflict.json();

    let held = {
        let (client, meta) = (client.clone(), meta);
        tokio::spawn(async move {
            let arguments = json!({"hold": true});
            if meta {
                client.meta_keyed("send", "held", arguments).await
            } else {
                client.keyed("send", "held", arguments).await
            }
        })
    };
    server.holds().await;
    all["in progress"] = call("send", "held", json!({"hold": true})).await.json();
    server.stage.gate.add_permits(1);
    held.await.unwrap().result();

    call("large", "large", json!({})).await.result();
    all["result unavailable"] = call("large", "large", json!({})).await.json();
    all["unknown, first"] = call("send", "lost", json!({"to": "nowhere"})).await.json();
    all["unknown, retry"] = call("send", "lost", json!({"to": "nowhere"})).await.json();
    call("send", "old", json!({})).await.result();
    server.clock.advance(3 * DAY);
    all["expired"] = call("send", "old", json!({})).await.json();
    // A conflict is found in a tombstone too.
    let conflict = call("send", "old", json!({"to": "bob"})).await.json();
    assert!(
        conflict.to_string().contains("REUSED")
            || conflict.to_string().contains("idempotency_conflict")
    );
    all
}

#[tokio::test]
async fn each_refusal_in_each_dialect_and_era() {
    for era in ERAS {
        for (meta, dialect) in [(false, "argument"), (true, "meta")] {
            let name = format!("refusals-{dialect}-{era:?}").to_lowercase();
            assert_json_snapshot!(name, refusals(era, meta).await);
        }
    }
}

#[tokio::test]
async fn the_codes_of_the_argument_dialect_are_those_of_its_era() {
    for (era, code) in [(Era::Legacy, -32001), (Era::Modern, -31001)] {
        let server = Server::new();
        let client = server.client(era);
        client.keyed("send", "k", json!({"n": 1})).await.result();
        let got = client.keyed("send", "k", json!({"n": 2})).await;
        assert_eq!(got.status, 200);
        let error = got.error();
        assert_eq!(error["code"], json!(code));
        assert_eq!(
            error["message"],
            json!("Idempotency key was reused with different arguments")
        );
        assert_eq!(error["data"]["code"], json!("idempotency_conflict"));
    }
}

#[tokio::test]
async fn field_02_a_conflict_is_found_on_the_way_of_a_replay() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    client.keyed("send", "k", json!({"n": 1})).await.result();
    client.keyed("send", "k", json!({"n": 1})).await.result();
    let error = client.keyed("send", "k", json!({"n": 2})).await.error();
    assert_eq!(error["data"]["code"], json!("idempotency_conflict"));
    assert_eq!(server.sent(), 1);
}

#[tokio::test]
async fn field_06_a_result_too_large_to_store_is_unavailable_and_never_runs_again() {
    let server = Server::with(|builder| builder.meta_prefix("assay"));
    let client = server.client(Era::Legacy);
    let call = json!({"name": "large", "arguments": {}, "_meta": {"assay/idempotency-key": "k"}});
    let first = client.call(call.clone()).await.result();
    assert!(first["structuredContent"]["text"].as_str().unwrap().len() > 262_000);
    let again = client.call(call).await.result();
    assert_eq!(again["isError"], json!(true));
    assert_eq!(
        again["_meta"]["assay/error"]["code"],
        json!("IDEMPOTENCY_RESULT_UNAVAILABLE")
    );
}

#[tokio::test]
async fn field_10_a_stored_failure_says_so_and_keeps_its_structured_content() {
    for era in ERAS {
        let server = Server::new();
        let client = server.client(era);
        let first = client
            .keyed("send", "k", json!({"to": "nobody"}))
            .await
            .result();
        let again = client
            .keyed("send", "k", json!({"to": "nobody"}))
            .await
            .result();
        assert_eq!(server.sent(), 1);
        assert_eq!(first["structuredContent"], again["structuredContent"]);
        assert_eq!(
            (&first["isError"], &again["isError"]),
            (&json!(true), &json!(true))
        );
        assert_eq!(first["content"].as_array().unwrap().len(), 1);
        let told = again["content"][1]["text"].as_str().unwrap();
        assert!(
            told.contains("stored failure") && told.contains("new key"),
            "{told}"
        );
    }
}

#[tokio::test]
async fn field_09_what_is_redacted_is_in_the_first_answer_only() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    let first = client.keyed("issue_key", "k", json!({})).await;
    assert_eq!(first.result()["structuredContent"]["key"], json!("s3cret"));
    let again = client.keyed("issue_key", "k", json!({})).await;
    assert_eq!(again.result()["structuredContent"]["key"], json!(null));
    assert_eq!(again.result()["structuredContent"]["id"], json!("ak_1"));
    // Neither in the text, which is rendered from what is stored.
    assert!(!again.text.contains("s3cret"));
}

#[tokio::test]
async fn a_failure_that_proves_nothing_was_applied_frees_the_key() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    let failed = client
        .keyed("send", "k", json!({"to": "busy"}))
        .await
        .result();
    assert_eq!(failed["structuredContent"]["retryable"], json!(true));
    assert_eq!(failed["structuredContent"]["code"], json!("upstream_busy"));
    client
        .keyed("send", "k", json!({"to": "busy"}))
        .await
        .result();
    assert_eq!(server.sent(), 2);
}

#[tokio::test]
async fn i3_a_handler_that_panics_leaves_an_unknown_outcome() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    let first = client
        .keyed("send", "k", json!({"to": "crash"}))
        .await
        .result();
    assert_eq!(
        first["structuredContent"]["status"],
        json!("outcome_unknown")
    );
    let again = client
        .keyed("send", "k", json!({"to": "crash"}))
        .await
        .result();
    assert_eq!(again["structuredContent"]["code"], json!("outcome_unknown"));
    assert_eq!(server.sent(), 1);
}

#[tokio::test(start_paused = true)]
async fn i4_a_credential_withdrawn_while_the_body_came_in_gets_no_replay() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    client.keyed("send", "k", json!({})).await.result();
    let arguments = json!({"idempotency_key": "k"});
    let text = client
        .body(
            "tools/call",
            json!({"name": "send", "arguments": arguments}),
        )
        .to_string();
    let (stage, late) = (server.stage.clone(), text.clone());
    let slow = futures_util::stream::once(async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        stage
            .authorized
            .store(false, std::sync::atomic::Ordering::SeqCst);
        Ok::<_, std::io::Error>(late)
    });
    let request = client
        .request(text.as_bytes())
        .body(Body::from_stream(slow))
        .unwrap();
    let got = client.send(request).await;
    assert_eq!(
        got.result()["structuredContent"]["code"],
        json!("unauthorized")
    );
    assert!(!got.text.contains("count"), "{}", got.text);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_ends_is_not_waited_for() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    let never = futures_util::stream::pending::<Result<String, std::io::Error>>();
    let request = client.request(b"").body(Body::from_stream(never)).unwrap();
    assert_eq!(client.send(request).await.status, 408);
}

#[tokio::test]
async fn too_many_calls_and_too_many_unresolved_ones_are_told_apart() {
    let server = Server::with(|builder| {
        builder.limits(Limits {
            calls_max: 0,
            ..Limits::default()
        })
    });
    let busy = server
        .client(Era::Legacy)
        .keyed("send", "k", json!({}))
        .await
        .result();
    assert_eq!(busy["structuredContent"]["code"], json!("busy"));
    assert_eq!(busy["structuredContent"]["retryable"], json!(true));
    assert_eq!(busy["structuredContent"]["retry_after_ms"], json!(1000));

    let store = Arc::new(MemoryStore::with_unresolved_max(1));
    let server = Server::on(Arc::clone(&store) as Arc<dyn Store>, store, |builder| {
        builder
    });
    let client = server.client(Era::Legacy);
    client
        .keyed("send", "lost", json!({"to": "nowhere"}))
        .await
        .result();
    let quota = client.keyed("send", "k", json!({})).await.result();
    assert_eq!(quota["structuredContent"]["code"], json!("quota_exceeded"));
    assert_eq!(server.sent(), 1);
}

#[tokio::test]
async fn field_22_a_store_that_fails_is_never_passed_through() {
    for (step, fault, code) in [
        (Step::Find, Fault::Busy, "busy"),
        (Step::Admit, Fault::Busy, "busy"),
        (Step::Find, Fault::Unavailable, "unavailable"),
        (Step::Admit, Fault::Unavailable, "unavailable"),
    ] {
        for meta in [false, true] {
            let store = Arc::new(MemoryStore::new());
            let faulty = Arc::new(FaultyStore::once(Arc::clone(&store), step, 0, fault));
            let server = Server::on(Arc::clone(&faulty) as _, store, |builder| builder);
            let client = server.client(Era::Modern);
            let call = async || {
                if meta {
                    client.meta_keyed("send", "k", json!({})).await.result()
                } else {
                    client.keyed("send", "k", json!({})).await.result()
                }
            };
            let refused = call().await;
            assert_eq!(refused["structuredContent"]["code"], json!(code));
            assert_eq!(refused["structuredContent"]["retryable"], json!(true));
            assert_eq!((faulty.chosen().len(), server.sent()), (1, 0));
            // The same key works once the store does.
            assert_eq!(call().await["structuredContent"]["count"], json!(1));
        }
    }
}

#[tokio::test]
async fn field_12_an_admission_whose_commit_is_unknown_runs_once() {
    for fault in [Fault::DoneUnknown, Fault::NotDoneUnknown] {
        let store = Arc::new(MemoryStore::new());
        let faulty = Arc::new(FaultyStore::once(Arc::clone(&store), Step::Admit, 0, fault));
        let server = Server::on(Arc::clone(&faulty) as _, store, |builder| builder);
        let client = server.client(Era::Legacy);
        for _ in 0..2 {
            let got = client.keyed("send", "k", json!({})).await.result();
            assert_eq!(got["structuredContent"]["count"], json!(1));
        }
        assert_eq!((faulty.chosen().len(), server.sent()), (1, 1));
    }
}
