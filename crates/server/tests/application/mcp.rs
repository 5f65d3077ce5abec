use std::{net::SocketAddr, sync::Arc};

use axum::{body::Body, extract::ConnectInfo, http::Request};
use counterfoil_server::{Application, Rate, Role, Settings};
use counterfoil_sqlite::{Options, SqliteStore};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::fixture::{App, On, id_of, workspace};

on_both! {
    i2_a_tool_runs_once_per_key_and_its_replay_is_the_same_result,
    a_key_of_rest_and_one_of_mcp_are_two,
    a_mutating_tool_needs_a_key_and_wrong_arguments_use_none_up,
    reading_tools_need_no_key,
    field_15_tools_are_honest_about_what_they_do_and_how_to_use_a_key,
    the_prefix_of_meta_is_the_configured_one,
    i4_a_credential_is_asked_for_with_every_request,
    only_known_hosts_and_origins_are_answered,
    failed_authentications_are_limited_by_address_and_lock_nobody_else_out,
    each_request_of_a_batch_takes_of_the_rate,
}

async fn rpc(app: &App, credential: &str, method: &str, params: Value) -> Value {
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let answer = app
        .post("/mcp")
        .header("host", "localhost")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2025-11-25")
        .bearer(credential)
        .body(message.to_string())
        .send()
        .await;
    answer.json()
}

async fn call(app: &App, tool: &str, arguments: Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments});
    rpc(app, &app.admin, "tools/call", params).await
}

async fn i2_a_tool_runs_once_per_key_and_its_replay_is_the_same_result(on: On) {
    let app = App::new(on).await;
    let first = call(
        &app,
        "create_note",
        json!({"body": "hello", "idempotency_key": "k"}),
    )
    .await;
    let result = &first["result"];
    assert_eq!(result["isError"], false);
    let shown = &result["structuredContent"];
    assert_eq!(shown["status"], "succeeded");
    assert_eq!(shown["body"], "hello");
    // field_01: over MCP another order of the fields is the same call.
    let again = call(
        &app,
        "create_note",
        json!({"idempotency_key": "k", "body": "hello"}),
    )
    .await;
    assert_eq!(again["result"]["structuredContent"], *shown);
    assert_eq!(again["result"]["content"], result["content"]);
    assert_eq!(again["result"]["_meta"]["dev.counterfoil/replayed"], true);
    assert_eq!(app.notes().await, 1);
    let conflict = call(
        &app,
        "create_note",
        json!({"body": "other", "idempotency_key": "k"}),
    )
    .await;
    assert_eq!(conflict["error"]["code"], -32001);
    assert_eq!(conflict["error"]["data"]["code"], "idempotency_conflict");
}

async fn a_key_of_rest_and_one_of_mcp_are_two(on: On) {
    let app = App::new(on).await;
    app.note("k", "hello").await;
    let made = call(
        &app,
        "create_note",
        json!({"body": "hello", "idempotency_key": "k"}),
    )
    .await;
    assert_eq!(
        made["result"]["_meta"].get("dev.counterfoil/replayed"),
        None
    );
    assert_eq!(app.notes().await, 2);
}

async fn a_mutating_tool_needs_a_key_and_wrong_arguments_use_none_up(on: On) {
    let app = App::new(on).await;
    let keyless = call(&app, "create_note", json!({"body": "hello"})).await;
    assert_eq!(keyless["error"]["code"], -32602);
    for body in [
        json!(""),
        json!("x".repeat(10_001)),
        json!(1),
        json!("a\u{0}b"),
    ] {
        let wrong = call(
            &app,
            "create_note",
            json!({"body": body, "idempotency_key": "k"}),
        )
        .await;
        assert_eq!(wrong["result"]["isError"], true, "{wrong}");
    }
    let unknown = call(&app, "delete_note", json!({"idempotency_key": "k"})).await;
    assert_eq!(unknown["error"]["code"], -32602);
    assert_eq!(app.operations().await, 0);
    let made = call(
        &app,
        "create_note",
        json!({"body": "x", "idempotency_key": "k"}),
    )
    .await;
    assert_eq!(made["result"]["isError"], false);
}

async fn reading_tools_need_no_key(on: On) {
    let app = App::new(on).await;
    let made = call(
        &app,
        "create_note",
        json!({"body": "hello", "idempotency_key": "k"}),
    )
    .await;
    let made = made["result"]["structuredContent"].clone();
    let note = call(&app, "get_note", json!({"note_id": made["note_id"]})).await;
    assert_eq!(note["result"]["structuredContent"]["body"], "hello");
    let notes = call(&app, "list_notes", json!({"limit": 1})).await;
    assert_eq!(
        notes["result"]["structuredContent"]["notes"][0]["note_id"],
        made["note_id"]
    );
    let view = call(
        &app,
        "get_operation",
        json!({"operation_id": made["operation_id"]}),
    )
    .await;
    let view = &view["result"]["structuredContent"];
    assert_eq!(view["state"], "succeeded");
    assert_eq!(view["target"], "MCP create_note");
    assert_eq!(view["result"]["body"]["note_id"], made["note_id"]);
    let list = call(&app, "list_operations", json!({})).await;
    let list = &list["result"]["structuredContent"]["operations"];
    assert_eq!(list[0]["operation_id"], made["operation_id"]);
    let absent = call(&app, "get_note", json!({"note_id": "note_x"})).await;
    assert_eq!(absent["result"]["isError"], true);
    assert_eq!(absent["result"]["structuredContent"]["code"], "not_found");
    for arguments in [
        json!({"limit": 0}),
        json!({"limit": 101}),
        json!({"cursor": "zz"}),
        json!({"workspace": "w"}),
    ] {
        let wrong = call(&app, "list_notes", arguments.clone()).await;
        assert_eq!(wrong["result"]["isError"], true, "{arguments}");
    }
}

async fn field_15_tools_are_honest_about_what_they_do_and_how_to_use_a_key(on: On) {
    let app = App::new(on).await;
    let listed = rpc(&app, &app.admin, "tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    let expected = [
        "create_note",
        "get_note",
        "list_notes",
        "get_operation",
        "list_operations",
    ];
    assert_eq!(names, expected);
    for tool in tools {
        let mutates = tool["name"] == "create_note";
        let hints = &tool["annotations"];
        assert_eq!(hints["readOnlyHint"], !mutates);
        assert_eq!(hints["openWorldHint"], false);
        let required = tool["inputSchema"]["required"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        assert_eq!(required.contains(&json!("idempotency_key")), mutates);
        assert_eq!(tool["outputSchema"]["type"], "object");
        let text = tool["description"].as_str().unwrap();
        assert!(!text.contains("unique for every request"));
        if mutates {
            assert_eq!(hints["destructiveHint"], false);
            assert!(
                text.contains("48 hours") && text.contains("get_operation"),
                "{text}"
            );
        }
    }
    let body = &tools[0]["inputSchema"]["properties"]["body"];
    assert_eq!(
        (&body["minLength"], &body["maxLength"]),
        (&json!(1), &json!(10_000))
    );
}

async fn the_prefix_of_meta_is_the_configured_one(on: On) {
    let app = App::with(
        on,
        Settings {
            meta_prefix: "assay".to_owned(),
            ..Settings::default()
        },
    )
    .await;
    let params = json!({
        "name": "create_note",
        "arguments": {"body": "hello"},
        "_meta": {"assay/idempotency-key": "k"},
    });
    let first = rpc(&app, &app.admin, "tools/call", params.clone()).await;
    assert_eq!(first["result"]["isError"], false, "{first}");
    let again = rpc(&app, &app.admin, "tools/call", params).await;
    assert_eq!(again["result"]["_meta"]["assay/replayed"], true);
    assert_eq!(app.notes().await, 1);
}

async fn i4_a_credential_is_asked_for_with_every_request(on: On) {
    let app = App::new(on).await;
    let member = app.issue("default", Role::Member).await;
    let params = json!({"name": "create_note", "arguments": {"body": "x", "idempotency_key": "k"}});
    let made = rpc(&app, &member, "tools/call", params.clone()).await;
    assert_eq!(made["result"]["isError"], false);
    let keys = app.application.agent_keys();
    keys.revoke(&workspace("default"), &id_of(&member))
        .await
        .unwrap();
    let answer = app
        .post("/mcp")
        .header("host", "localhost")
        .bearer(&member)
        .body(
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
                .to_string(),
        )
        .send()
        .await;
    assert_eq!(answer.status, 401);
    assert!(
        answer
            .header("www-authenticate")
            .unwrap()
            .starts_with("Bearer")
    );
    let foreign = app.issue("other", Role::Admin).await;
    let list = rpc(
        &app,
        &foreign,
        "tools/call",
        json!({"name": "list_notes", "arguments": {}}),
    )
    .await;
    assert_eq!(list["result"]["structuredContent"]["notes"], json!([]));
}

async fn only_known_hosts_and_origins_are_answered(on: On) {
    let app = App::new(on).await;
    let send = |host: &'static str, origin: Option<&'static str>| {
        let mut asking = app.post("/mcp").header("host", host).bearer(&app.admin);
        if let Some(origin) = origin {
            asking = asking.header("origin", origin);
        }
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
        asking.body(ping.to_string()).send()
    };
    assert_eq!(send("127.0.0.1:8700", None).await.status, 200);
    assert_eq!(send("evil.example", None).await.status, 403);
    assert_eq!(
        send("localhost", Some("https://evil.example")).await.status,
        403
    );
}

/// A ping from an address, with or without a credential.
async fn ping_from(app: &App, address: &str, credential: Option<&str>) -> (u16, bool) {
    let address: SocketAddr = address.parse().unwrap();
    let mut request = Request::post("/mcp")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .extension(ConnectInfo(address));
    if let Some(credential) = credential {
        request = request.header("authorization", format!("Bearer {credential}"));
    }
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let request = request.body(Body::from(body)).unwrap();
    let response = app.router.clone().oneshot(request).await.unwrap();
    let challenged = response.headers().contains_key("www-authenticate");
    (response.status().as_u16(), challenged)
}

async fn failed_authentications_are_limited_by_address_and_lock_nobody_else_out(on: On) {
    let app = App::new(on).await;
    let known = app.issue("default", Role::Member).await;
    assert_eq!(ping_from(&app, "192.0.2.1:1", Some(&known)).await.0, 200);
    let wrong = format!("cfk_{}_{}", "0a".repeat(16), "0b".repeat(32));
    let mut seen = Vec::new();
    for _ in 0..100 {
        seen.push(ping_from(&app, "192.0.2.1:1", Some(&wrong)).await.0);
    }
    assert_eq!(seen[..50], [401; 50]);
    assert!(seen.contains(&429), "{seen:?}");
    // Whoever brings no credential, comes from elsewhere, or was let in before.
    assert_eq!(ping_from(&app, "192.0.2.1:2", None).await, (401, true));
    assert_eq!(ping_from(&app, "192.0.2.2:1", Some("x")).await, (401, true));
    assert_eq!(ping_from(&app, "192.0.2.1:3", Some(&known)).await.0, 200);
}

async fn each_request_of_a_batch_takes_of_the_rate(on: On) {
    let rate = Rate {
        per_second: 1,
        burst: 3,
    };
    let app = App::with(
        on,
        Settings {
            rate,
            ..Settings::default()
        },
    )
    .await;
    let call = |n: u32| {
        let arguments = json!({"body": "b", "idempotency_key": n.to_string()});
        let params = json!({"name": "create_note", "arguments": arguments});
        json!({"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": params})
    };
    let batch: Vec<Value> = (0..10).map(call).collect();
    let asking = app.post("/mcp").header("host", "localhost");
    let batch = Value::Array(batch).to_string();
    let answers = asking.bearer(&app.admin).body(batch).send().await.json();
    let codes: Vec<&Value> = answers
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| &answer["result"]["structuredContent"]["code"])
        .collect();
    let refused = codes.iter().filter(|code| **code == "rate_limited");
    // One more may have come back meanwhile.
    assert!((6..=7).contains(&refused.count()), "{codes:?}");
}

#[tokio::test]
async fn hosts_that_can_match_nothing_are_refused_at_the_start() {
    for (hosts, origins) in [(vec!["*"], vec![]), (vec![], vec!["a.example,b.example"])] {
        let texts = |list: Vec<&str>| list.into_iter().map(str::to_owned).collect();
        let settings = Settings {
            allowed_hosts: texts(hosts),
            allowed_origins: texts(origins),
            ..Settings::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("test.db");
        let store = Arc::new(SqliteStore::open(file, Options::default()).unwrap());
        let error = Application::attach(store, settings).err().unwrap();
        assert!(
            error.to_string().contains("cannot be an allowed"),
            "{error}"
        );
    }
}
