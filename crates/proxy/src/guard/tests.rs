use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use counterfoil_core::PrincipalId;
use serde_json::{Value, json};

use crate::{
    ProviderKey, Reconcile, Settings, ToolPolicy,
    front::Conversation as _,
    keyless::Channel,
    scene::{self, Told, Wire},
    session::{Incoming, Session},
    wire::{Failure, Sink as _, Ticket, Transport},
};

struct Scene {
    session: Arc<Session>,
    wire: Arc<Wire>,
    told: Told,
    tickets: u64,
    _folder: tempfile::TempDir,
}

impl Scene {
    /// A session whose server has listed one mutating and one reading tool.
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(set: impl FnOnce(&mut Settings)) -> Self {
        let (proxy, folder) = scene::proxy_with(set).await;
        let (client, told) = scene::client();
        let principal = PrincipalId::new("local").unwrap();
        let session = Session::open(proxy.shared(), principal, client);
        let wire = Arc::new(Wire::default());
        session
            .link
            .stands_on(Arc::clone(&wire) as Arc<dyn Transport>);
        let mut scene = Self {
            session,
            wire,
            told,
            tickets: 0,
            _folder: folder,
        };
        scene
            .client_says(json!({"jsonrpc": "2.0", "id": 0, "method": "tools/list"}))
            .await;
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}, "request_id": {"type": "string"}}});
        let write =
            json!({"name": "write", "inputSchema": schema, "annotations": {"readOnlyHint": false}});
        let read =
            json!({"name": "read", "inputSchema": schema, "annotations": {"readOnlyHint": true}});
        scene
            .server_says(json!({"jsonrpc": "2.0", "id": 0, "result": {"tools": [write, read]}}))
            .await;
        scene.told.next().await;
        scene.wire.sent();
        scene
    }

    async fn client_says(&mut self, message: Value) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let incoming = Incoming {
            text: Bytes::from(message.to_string()),
            ticket,
            channel: Channel([1; 16]),
            http: None,
        };
        self.session.receive(incoming).await;
        ticket
    }

    async fn server_says(&self, message: Value) {
        let text = Bytes::from(message.to_string());
        self.session.link.message(text, None).await;
    }

    async fn calls(&mut self, id: u64, arguments: Value) -> Ticket {
        self.client_says(json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": "write", "arguments": arguments},
        }))
        .await
    }

    /// What the server is sent next: there must be something.
    async fn sent(&self) -> Value {
        for _ in 0..5_000 {
            if let Some(text) = self.wire.sent().pop() {
                return serde_json::from_slice(&text).unwrap();
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        panic!("nothing was sent");
    }

    fn fails(&self, id: u64, why: Failure) {
        let id = counterfoil_mcp::framing::Id::number(id);
        self.session.link.failed(&id, why);
    }

    async fn heard(&mut self) -> Value {
        self.told.next().await.1
    }
}

fn code(answer: &Value) -> &Value {
    &answer["result"]["_meta"]["dev.counterfoil/error"]["code"]
}

fn lost() -> Failure {
    Failure::Lost("the stream was cut".to_owned())
}

#[tokio::test]
async fn i3_what_may_have_been_sent_is_unknown_and_never_sent_again() {
    let mut scene = Scene::new().await;
    scene
        .calls(1, json!({"n": 1, "idempotency_key": "k"}))
        .await;
    let sent = scene.sent().await;
    assert_eq!(sent["params"]["arguments"], json!({"n": 1}));
    scene.fails(1, lost());
    assert_eq!(code(&scene.heard().await), "outcome_unknown");
    scene
        .calls(2, json!({"n": 1, "idempotency_key": "k"}))
        .await;
    assert_eq!(code(&scene.heard().await), "outcome_unknown");
    // Without a key it is paired with the unknown one, which is told; nothing runs.
    scene.calls(3, json!({"n": 1})).await;
    let told = scene.heard().await;
    assert_eq!(code(&told), "outcome_unknown");
    assert!(scene.wire.sent().is_empty());
}

#[tokio::test]
async fn i3_what_was_not_sent_leaves_the_key_free() {
    let mut scene = Scene::new().await;
    scene
        .calls(1, json!({"n": 1, "idempotency_key": "k"}))
        .await;
    scene.sent().await;
    scene.fails(1, Failure::NotSent("refused".to_owned()));
    assert_eq!(code(&scene.heard().await), "unavailable");
    scene
        .calls(2, json!({"n": 1, "idempotency_key": "k"}))
        .await;
    assert_eq!(scene.sent().await["id"], json!(2));
}

#[tokio::test]
async fn an_internal_error_of_the_server_is_unknown_and_any_other_is_kept() {
    let mut scene = Scene::new().await;
    for (id, number, unknown) in [(1, -32603, true), (2, -32602, false), (3, 17, false)] {
        scene
            .calls(id, json!({"n": id, "idempotency_key": format!("k{id}")}))
            .await;
        scene.sent().await;
        let error = json!({"code": number, "message": "no"});
        scene
            .server_says(json!({"jsonrpc": "2.0", "id": id, "error": error}))
            .await;
        let told = scene.heard().await;
        if unknown {
            assert_eq!(code(&told), "outcome_unknown");
        } else {
            assert_eq!(told["error"]["code"], json!(number));
        }
        scene
            .calls(
                10 + id,
                json!({"n": id, "idempotency_key": format!("k{id}")}),
            )
            .await;
        let again = scene.heard().await;
        assert_eq!(again["error"]["code"], told["error"]["code"]);
        assert!(scene.wire.sent().is_empty());
    }
}

#[tokio::test]
async fn field_12_a_cancelled_call_goes_on_and_its_retry_gets_the_answer() {
    let mut scene = Scene::new().await;
    scene.calls(1, json!({"n": 1})).await;
    scene.sent().await;
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    scene.client_says(cancelled).await;
    assert!(
        scene.wire.sent().is_empty(),
        "a cancel of a mutating call goes no further"
    );
    let result = json!({"content": [{"type": "text", "text": "done"}]});
    scene
        .server_says(json!({"jsonrpc": "2.0", "id": 1, "result": result}))
        .await;
    scene.calls(2, json!({"n": 1})).await;
    let told = scene.heard().await;
    assert_eq!(
        told["id"],
        json!(2),
        "nothing is said about what was cancelled: {told}"
    );
    assert_eq!(
        told["result"]["_meta"]["dev.counterfoil/attached"],
        json!(true)
    );
    assert_eq!(told["result"]["content"][0]["text"], json!("done"));
    assert!(scene.wire.sent().is_empty());
    // Delivered: the same again is on purpose.
    scene.calls(3, json!({"n": 1})).await;
    assert_eq!(scene.sent().await["id"], json!(3));
}

#[tokio::test]
async fn field_11_two_at_once_are_two() {
    let mut scene = Scene::new().await;
    scene.calls(1, json!({"n": 1})).await;
    scene.sent().await;
    scene.calls(2, json!({"n": 1})).await;
    assert_eq!(scene.sent().await["id"], json!(2));
}

#[tokio::test]
async fn wrong_arguments_use_up_no_key() {
    let mut scene = Scene::new().await;
    scene
        .calls(1, json!({"n": "one", "idempotency_key": "k"}))
        .await;
    assert_eq!(code(&scene.heard().await), "invalid");
    scene
        .calls(2, json!({"n": 1, "idempotency_key": "k"}))
        .await;
    assert_eq!(scene.sent().await["id"], json!(2));
}

#[tokio::test]
async fn a_second_answer_is_not_told_and_changes_nothing() {
    let mut scene = Scene::new().await;
    scene
        .calls(1, json!({"n": 1, "idempotency_key": "k"}))
        .await;
    scene.sent().await;
    let answer = |text: &str| json!({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": text}]}});
    scene.server_says(answer("first")).await;
    scene.server_says(answer("second")).await;
    assert_eq!(
        scene.heard().await["result"]["content"][0]["text"],
        json!("first")
    );
    scene
        .calls(2, json!({"n": 1, "idempotency_key": "k"}))
        .await;
    let replayed = scene.heard().await;
    assert_eq!(replayed["result"]["content"][0]["text"], json!("first"));
    assert_eq!(
        replayed["result"]["_meta"]["dev.counterfoil/replayed"],
        json!(true)
    );
}

fn policy(settings: &mut Settings, policy: ToolPolicy) {
    settings.tools.insert("write".to_owned(), policy);
}

fn done() -> Value {
    json!({"content": [{"type": "text", "text": "done"}]})
}

#[tokio::test]
async fn what_a_list_out_of_date_says_of_a_tool_lets_no_call_past_the_guard() {
    let mut scene = Scene::new().await;
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    scene.server_says(changed).await;
    scene.told.next().await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                      "params": {"name": "read", "arguments": {"n": 1}}});
    scene.client_says(call).await;
    let asked = scene.sent().await;
    assert_eq!(asked["method"], json!("tools/list"));
    let error = json!({"code": -32603, "message": "not now"});
    scene
        .server_says(json!({"jsonrpc": "2.0", "id": asked["id"], "error": error}))
        .await;
    let sent = scene.sent().await;
    assert_eq!(sent["method"], json!("tools/call"));
    scene
        .server_says(json!({"jsonrpc": "2.0", "id": sent["id"], "result": done()}))
        .await;
    let told = scene.heard().await;
    let operation = &told["result"]["_meta"]["dev.counterfoil/operation-id"];
    assert!(operation.is_string(), "it is guarded: {told}");
}

#[tokio::test]
async fn a_call_without_an_id_goes_nowhere() {
    let mut scene = Scene::new().await;
    let call = json!({"jsonrpc": "2.0", "method": "tools/call",
                      "params": {"name": "write", "arguments": {"n": 1}}});
    scene.client_says(call).await;
    let after = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"});
    scene.client_says(after.clone()).await;
    assert_eq!(scene.sent().await, after);
    assert!(scene.wire.sent().is_empty());
    scene.told.is_silent();
}

#[tokio::test]
async fn i3_nothing_is_sent_after_the_deadline() {
    let mut scene = Scene::with(|settings| settings.timeout = Duration::from_millis(200)).await;
    scene.wire.fill();
    scene
        .calls(1, json!({"n": 1, "idempotency_key": "k"}))
        .await;
    let told = scene.heard().await;
    assert!(
        ["unavailable", "outcome_unknown"].contains(&code(&told).as_str().unwrap()),
        "{told}"
    );
    // Nobody waits for room any more: the call cannot be sent when there is some.
    scene.session.link.idle().await;
    // And that is known: the key is free again.
    let mut codes = Vec::new();
    for id in 2..100 {
        scene
            .calls(id, json!({"n": 1, "idempotency_key": "k"}))
            .await;
        codes.push(code(&scene.heard().await).clone());
        if codes.last() == Some(&json!("unavailable")) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{codes:?}");
}

#[tokio::test]
async fn what_was_asked_to_stop_is_not_sent_again_whatever_the_server_honours() {
    let mut scene = Scene::with(|settings| {
        let provider_key = Some(ProviderKey::Argument("key".to_owned()));
        policy(
            settings,
            ToolPolicy {
                provider_key,
                ..ToolPolicy::default()
            },
        );
    })
    .await;
    // Without that it is.
    scene.calls(1, json!({"n": 1})).await;
    let first = scene.sent().await;
    scene.fails(1, lost());
    let again = scene.sent().await;
    assert_eq!(
        again["params"]["arguments"]["key"],
        first["params"]["arguments"]["key"]
    );
    scene
        .server_says(json!({"jsonrpc": "2.0", "id": again["id"], "result": done()}))
        .await;
    scene.heard().await;

    scene.calls(2, json!({"n": 2})).await;
    scene.sent().await;
    let shared = Arc::clone(&scene.session.shared);
    let operation_id = {
        let running = shared.running.lock().unwrap();
        *running.keys().next().unwrap()
    };
    assert!(shared.cancel_upstream(operation_id).await);
    let told = scene.sent().await;
    assert_eq!(told["method"], json!("notifications/cancelled"));
    assert_eq!(told["params"]["requestId"], json!(2));
    scene.fails(2, lost());
    assert_eq!(code(&scene.heard().await), "outcome_unknown");
    assert!(scene.wire.sent().is_empty());
}

#[tokio::test]
async fn i3_what_was_looked_for_too_early_proves_nothing() {
    let mut scene = Scene::with(|settings| {
        settings.timeout = Duration::from_millis(300);
        let reconcile = Some(Reconcile {
            tool: "read".to_owned(),
            arguments: json!({"n": "{/n}"}),
            happened_if_text: "row {/n}".to_owned(),
            settle_after: Some(Duration::ZERO),
        });
        policy(
            settings,
            ToolPolicy {
                reconcile,
                ..ToolPolicy::default()
            },
        );
    })
    .await;
    let arguments = json!({"n": 1, "idempotency_key": "k"});
    scene.calls(1, arguments.clone()).await;
    scene.sent().await;
    scene.fails(1, lost());
    let asked = scene.sent().await;
    assert_eq!(asked["params"]["name"], json!("read"));
    // It was asked before the deadline, and answers after it: the row may have come in between.
    tokio::time::sleep(Duration::from_millis(400)).await;
    let answer = |asked: &Value| json!({"jsonrpc": "2.0", "id": asked["id"], "result": done()});
    scene.server_says(answer(&asked)).await;
    assert_eq!(code(&scene.heard().await), "outcome_unknown");
    // What is asked from then on does.
    scene.calls(2, arguments).await;
    let asked = scene.sent().await;
    scene.server_says(answer(&asked)).await;
    let told = scene.heard().await;
    assert_ne!(code(&told), "outcome_unknown", "{told}");
}

/// On one stream, without waiting for an answer in between.
#[tokio::test]
async fn i5_a_write_cancelled_then_another_then_the_first_again_in_one_go_is_not_attached() {
    for _ in 0..20 {
        let mut scene = Scene::new().await;
        scene.calls(1, json!({"n": 1})).await;
        scene.sent().await;
        let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
        scene.client_says(cancelled).await;
        scene
            .server_says(json!({"jsonrpc": "2.0", "id": 1, "result": done()}))
            .await;
        scene.calls(2, json!({"n": 2})).await;
        scene.calls(3, json!({"n": 1})).await;
        let mut told = scene.heard().await;
        if told["id"] == json!(2) {
            told = scene.heard().await;
        }
        assert_eq!(code(&told), "possible_duplicate", "{told}");
    }
}

#[tokio::test]
async fn i1_a_key_that_the_upstream_honours_is_derived_or_the_callers_own() {
    let mut scene = Scene::with(|settings| {
        let policy = ToolPolicy {
            provider_key: Some(ProviderKey::Argument("request_id".to_owned())),
            ..ToolPolicy::default()
        };
        settings.tools.insert("write".to_owned(), policy);
    })
    .await;
    scene.calls(1, json!({"n": 1})).await;
    let sent = scene.sent().await;
    let derived = sent["params"]["arguments"]["request_id"].clone();
    assert!(derived.is_string(), "{sent}");
    // Lost: sent again under the same key, which is what it is for.
    scene.fails(1, lost());
    let again = scene.sent().await;
    assert_eq!(again["params"]["arguments"]["request_id"], derived);

    // The caller's own is the key of the call, and goes through as it is.
    scene.calls(2, json!({"n": 2, "request_id": "mine"})).await;
    let sent = scene.sent().await;
    assert_eq!(sent["params"]["arguments"]["request_id"], json!("mine"));
    let result = json!({"content": [{"type": "text", "text": "paid"}]});
    scene
        .server_says(json!({"jsonrpc": "2.0", "id": 2, "result": result}))
        .await;
    scene.heard().await;
    scene.calls(3, json!({"n": 2, "request_id": "mine"})).await;
    let replayed = scene.heard().await;
    assert_eq!(
        replayed["result"]["_meta"]["dev.counterfoil/replayed"],
        json!(true)
    );
}

#[tokio::test]
async fn field_11_a_client_that_gives_up_without_a_word_is_asked() {
    let mut scene = Scene::with(|settings| {
        settings.parallel_within = std::time::Duration::from_millis(50);
    })
    .await;
    scene.calls(1, json!({"n": 1})).await;
    scene.sent().await;
    tokio::time::sleep(std::time::Duration::from_millis(60)).await;
    scene.calls(2, json!({"n": 1})).await;
    assert_eq!(code(&scene.heard().await), "possible_duplicate");
    assert!(scene.wire.sent().is_empty());
}

#[tokio::test]
async fn what_is_found_out_at_once_speaks_of_no_earlier_call() {
    let mut scene = Scene::with(|settings| {
        let reconcile = Some(Reconcile {
            tool: "read".to_owned(),
            arguments: json!({"n": "{/n}"}),
            happened_if_text: "done".to_owned(),
            settle_after: None,
        });
        policy(
            settings,
            ToolPolicy {
                reconcile,
                ..ToolPolicy::default()
            },
        );
    })
    .await;
    for (n, key) in [(1, Some("k")), (2, None)] {
        let mut arguments = json!({"n": n});
        if let Some(key) = key {
            arguments["idempotency_key"] = json!(key);
        }
        scene.calls(n, arguments.clone()).await;
        scene.sent().await;
        scene.fails(n, lost());
        let asked = scene.sent().await;
        assert_eq!(asked["params"]["name"], json!("read"));
        scene
            .server_says(json!({"jsonrpc": "2.0", "id": asked["id"], "result": done()}))
            .await;
        let told = scene.heard().await;
        assert_eq!(code(&told), "idempotency_committed");
        let text = told["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.starts_with("`write` was sent"), "{text}");
        // Whoever repeats it is told of that one.
        let Some(key) = key else { continue };
        scene.calls(10 + n, arguments).await;
        let again = scene.heard().await;
        assert_eq!(code(&again), "idempotency_committed");
        let text = again["result"]["content"][0]["text"].as_str().unwrap();
        let earlier = "The earlier call with this idempotency_key was carried out";
        assert!(text.starts_with(earlier), "{key}: {text}");
    }
}

#[tokio::test]
async fn i3_a_refusal_of_what_was_sent_again_says_nothing_of_what_was_lost() {
    for number in [-32602, -32042] {
        let mut scene = Scene::with(|settings| {
            let policy = ToolPolicy {
                provider_key: Some(ProviderKey::Argument("request_id".to_owned())),
                ..ToolPolicy::default()
            };
            settings.tools.insert("write".to_owned(), policy);
        })
        .await;
        let arguments = json!({"n": 1, "idempotency_key": "k"});
        scene.calls(1, arguments.clone()).await;
        scene.sent().await;
        scene.fails(1, lost());
        let again = scene.sent().await;
        let error = json!({"code": number, "message": "this request_id was used before"});
        scene
            .server_says(json!({"jsonrpc": "2.0", "id": again["id"], "error": error}))
            .await;
        assert_eq!(code(&scene.heard().await), "outcome_unknown");
        scene.calls(2, arguments).await;
        assert_eq!(code(&scene.heard().await), "outcome_unknown");
        assert!(scene.wire.sent().is_empty());
    }
}
