use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::body::Body;
use counterfoil_engine::store::Store;
use counterfoil_mcp::Limits;
use counterfoil_testkit::{Fault, FaultyStore, MemoryStore, Step};
use insta::assert_json_snapshot;
use serde_json::{Value, json};

use crate::support::{Client, ERAS, Era, Got, Server};

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
        // The tool's own words are beside it: it does not know that the key is used up.
        let facts = &again["structuredContent"];
        let next = facts["next_action"].as_str().unwrap();
        assert!(
            next.contains("key is used up") && next.contains("a new attempt needs a new key"),
            "{next}"
        );
        assert_eq!(
            facts["advice"],
            json!("Correct the receiver and send it again")
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

/// Sends `text` with its end a moment late; `before` happens in between.
async fn slowly(client: &Client, text: String, before: impl FnOnce() + Send + 'static) -> Got {
    let request = client.request(text.as_bytes());
    let (start, end) = text.split_at(3);
    let (start, end) = (start.to_owned(), end.to_owned());
    let parts = futures_util::stream::unfold(
        vec![(false, end), (true, start)],
        move |mut parts| async move { parts.pop().map(|part| (part, parts)) },
    );
    let mut before = Some(before);
    let parts = futures_util::StreamExt::map(parts, move |(first, part)| {
        if !first && let Some(before) = before.take() {
            before();
        }
        Ok::<_, std::io::Error>(part)
    });
    client
        .send(request.body(Body::from_stream(parts)).unwrap())
        .await
}

#[tokio::test]
async fn i4_a_credential_withdrawn_while_the_body_came_in_gets_neither_reads_nor_effects() {
    for era in ERAS {
        let server = Server::new();
        let client = server.client(era);
        client.keyed("send", "k", json!({})).await.result();
        let receipts = server.store.receipts().len();
        let key = |key: &str| json!({"idempotency_key": key});
        let calls = [
            json!({"name": "send", "arguments": key("k")}),
            json!({"name": "send", "arguments": key("new")}),
            json!({"name": "create_note", "arguments": {"body": "b", "idempotency_key": "n"}}),
            // What a check before a reservation finds out is a read too.
            json!({"name": "create_note", "arguments": {"body": "over the plan", "idempotency_key": "p"}}),
            json!({"name": "send", "arguments": {}, "_meta": {"dev.counterfoil/idempotency-key": "m"}}),
            json!({"name": "get_operation", "arguments": {"operation_id": "op_1"}}),
            json!({"name": "get_operation", "arguments": {"operation_id": "op_1"}, "_meta": {"progressToken": 1}}),
        ];
        for params in calls {
            let text = client.body("tools/call", params).to_string();
            let stage = server.stage.clone();
            let withdraw = move || stage.authorized.store(false, Ordering::SeqCst);
            let got = slowly(&client, text.clone(), withdraw).await;
            server.stage.authorized.store(true, Ordering::SeqCst);
            let what = format!("{text}: {}", got.text);
            assert!(got.text.contains("unauthorized"), "{what}");
            let told = got.text.replace("dev.counterfoil", "");
            for leak in ["count", "op_1", "plan", "replayed"] {
                assert!(!told.contains(leak), "{what}");
            }
        }
        assert_eq!((server.sent(), server.store.effects().len()), (1, 0));
        assert_eq!(server.store.receipts().len(), receipts);
        let methods: &[&str] = match era {
            Era::Legacy => &["initialize", "ping", "tools/list", "nonsense"],
            Era::Modern => &["server/discover", "tools/list"],
        };
        for method in methods {
            let text = client.body(method, json!({})).to_string();
            let stage = server.stage.clone();
            let withdraw = move || stage.authorized.store(false, Ordering::SeqCst);
            let got = slowly(&client, text, withdraw).await;
            server.stage.authorized.store(true, Ordering::SeqCst);
            assert_eq!(got.error()["data"]["code"], json!("unauthorized"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn i4_a_slow_read_is_not_handed_over_after_a_withdrawal() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    let call = json!({"name": "get_operation", "arguments": {"operation_id": "op_slow"}});
    let got = client.call(call.clone()).await.result();
    assert_eq!(got["structuredContent"]["slow"], json!(true));
    let reading = tokio::spawn(async move { client.call(call).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.stage.authorized.store(false, Ordering::SeqCst);
    let got = reading.await.unwrap();
    assert_eq!(
        got.result()["structuredContent"]["code"],
        json!("unauthorized")
    );
    assert!(!got.text.contains("slow"), "{}", got.text);
}

#[tokio::test]
async fn an_authority_that_cannot_be_read_is_no_withdrawal() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    server.stage.readable.store(false, Ordering::SeqCst);
    let read = json!({"name": "get_operation", "arguments": {"operation_id": "op_1"}});
    let sending = json!({"name": "send", "arguments": {"idempotency_key": "k"}});
    for params in [read, sending] {
        let got = client.call(params).await.result();
        let facts = &got["structuredContent"];
        assert_eq!(facts["code"], json!("unavailable"));
        assert_eq!(facts["retryable"], json!(true));
        assert!(facts["retry_after_ms"].as_u64().unwrap() > 0);
    }
    // What is no secret needs no proof.
    assert!(client.ask("tools/list", json!({})).await.result()["tools"].is_array());
    assert_eq!((server.sent(), server.store.receipts().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_ends_is_not_waited_for() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    let never = futures_util::stream::pending::<Result<String, std::io::Error>>();
    // The server that reads it may have a bound of its own.
    let given_up = futures_util::stream::once(async {
        Err::<String, _>(std::io::Error::from(std::io::ErrorKind::TimedOut))
    });
    for body in [Body::from_stream(never), Body::from_stream(given_up)] {
        let got = client.send(client.request(b"").body(body).unwrap()).await;
        assert_eq!(got.status, 408);
        let data = &got.error()["data"];
        assert_eq!(data["retryable"], json!(true));
        assert_eq!(
            data["next_action"],
            json!("Send the same call with the same key")
        );
    }
    let broken = futures_util::stream::once(async {
        Err::<String, _>(std::io::Error::from(std::io::ErrorKind::ConnectionReset))
    });
    let broken = client.request(b"").body(Body::from_stream(broken)).unwrap();
    assert_eq!(client.send(broken).await.status, 400);
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
