//! The Rust SDK's client. After a 404 it starts a new session and sends the same call again under
//! the same id, by itself: still one effect.

use std::future::Future;
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, CallToolResult, ProtocolVersion};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt as _, Peer, RoleClient, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use serde_json::{Value, json};

use crate::front::Counted;
use crate::relay::{Lose, Relay};

const META: &str = "dev.counterfoil/";
/// Milliseconds that the upstream keeps an answer back.
const HOLD: u64 = 1_500;
const PATIENCE: Duration = Duration::from_millis(700);
/// Longest run of a test.
const LIMIT: Duration = Duration::from_secs(90);

fn older() -> ClientLifecycleMode {
    ClientLifecycleMode::Initialize
}

fn newest() -> ClientLifecycleMode {
    ClientLifecycleMode::Discover {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
    }
}

fn run(body: impl Future<Output = ()>) {
    // Another test may have chosen it first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let done = runtime.block_on(async { tokio::time::timeout(LIMIT, body).await });
    done.expect("the test ends in time");
}

async fn connect(url: &str, mode: ClientLifecycleMode) -> RunningService<RoleClient, ()> {
    let transport = StreamableHttpClientTransport::from_uri(url);
    ().serve_with_lifecycle(transport, mode).await.unwrap()
}

fn append(arguments: &Value, key: Option<&str>) -> CallToolRequestParams {
    let mut params = json!({"name": "append", "arguments": arguments});
    if let Some(key) = key {
        params["_meta"] = json!({format!("{META}idempotency-key"): key});
    }
    serde_json::from_value(params).unwrap()
}

async fn call(peer: &Peer<RoleClient>, params: CallToolRequestParams) -> Value {
    let result: CallToolResult = peer.call_tool(params).await.unwrap();
    serde_json::to_value(result).unwrap()
}

/// Gives up after a while, which cancels the call.
async fn give_up(peer: &Peer<RoleClient>, params: CallToolRequestParams) {
    let said = tokio::time::timeout(PATIENCE, peer.call_tool(params)).await;
    assert!(said.is_err(), "it takes longer: {said:?}");
}

fn text(result: &Value) -> &str {
    let text = &result["content"][0]["text"];
    text.as_str().unwrap_or_else(|| panic!("{result}"))
}

fn says(result: &Value, what: &str) -> bool {
    result["_meta"][format!("{META}{what}")] == true
}

fn code(result: &Value) -> &str {
    let code = &result["_meta"][format!("{META}error")]["code"];
    code.as_str().unwrap_or_default()
}

/// Asks again while it is told that the call is still under way.
async fn settled(peer: &Peer<RoleClient>, params: &CallToolRequestParams) -> Value {
    loop {
        let said = call(peer, params.clone()).await;
        if code(&said).to_lowercase() != "idempotency_in_progress" {
            return said;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn lists_reads_writes_and_gives_up(mode: ClientLifecycleMode) {
    let counted = Counted::new();
    let proxy = counted.listen();
    run(async {
        let client = connect(&proxy.url(), mode).await;
        let tools = client.list_all_tools().await.unwrap();
        let append_tool = tools.iter().find(|tool| tool.name == "append").unwrap();
        let schema = serde_json::to_value(append_tool.input_schema.as_ref()).unwrap();
        assert!(
            schema["properties"]["idempotency_key"].is_object(),
            "{schema}"
        );
        let count = json!({"name": "count", "arguments": {"id": "nothing"}});
        let read = call(&client, serde_json::from_value(count).unwrap()).await;
        assert!(text(&read).starts_with("nothing"), "{read}");

        let by_argument = append(&json!({"id": "argument", "idempotency_key": "one"}), None);
        let by_meta = append(&json!({"id": "meta"}), Some("two"));
        for params in [by_argument, by_meta] {
            let first = call(&client, params.clone()).await;
            let again = call(&client, params).await;
            assert!(
                !says(&first, "replayed") && says(&again, "replayed"),
                "{again}"
            );
            assert_eq!(text(&first), text(&again));
        }

        let keyed = append(&json!({"id": "keyed", "hold": HOLD}), Some("three"));
        give_up(&client, keyed.clone()).await;
        let again = settled(&client, &keyed).await;
        assert!(says(&again, "replayed"), "{again}");
        let keyless = append(&json!({"id": "keyless", "hold": HOLD}), None);
        give_up(&client, keyless.clone()).await;
        let again = call(&client, keyless).await;
        assert!(says(&again, "attached"), "{again}");
        assert!(
            text(&again).starts_with("append keyless: effect "),
            "{again}"
        );
        let _ = client.cancel().await;
    });
    for id in ["argument", "meta", "keyed", "keyless"] {
        assert_eq!(counted.effects(id), 1, "{id}");
    }
}

#[test]
fn i2_i5_field_12_rust_sdk() {
    lists_reads_writes_and_gives_up(older());
}

#[test]
fn i2_i5_field_12_rust_sdk_in_the_newest_revision() {
    lists_reads_writes_and_gives_up(newest());
}

/// The call has had its effect; the client reads 404 and sends it again.
fn sent_again_after_404(lose: Lose, key: Option<&'static str>) -> Value {
    let counted = std::sync::Arc::new(Counted::new());
    let proxy = counted.listen();
    let waits = std::sync::Arc::clone(&counted);
    let relay = Relay::start(proxy.address, move || waits.until_done("a"));
    let mut said = Value::Null;
    run(async {
        let client = connect(&format!("http://{}/mcp", relay.address), older()).await;
        client.list_all_tools().await.unwrap();
        relay.lose(lose);
        let params = append(&json!({"id": "a", "hold": HOLD}), key);
        said = call(&client, params.clone()).await;
        assert!(relay.calls() >= 2, "the SDK sent it again by itself");
        if !code(&said).is_empty() && key.is_some() {
            said = settled(&client, &params).await;
        }
        let _ = client.cancel().await;
    });
    assert_eq!(counted.effects("a"), 1, "{said}");
    said
}

#[test]
fn i2_field_12_17_rust_sdk_resends_after_a_404_with_a_key_and_gets_the_first_answer() {
    for lose in [Lose::Answer, Lose::Connection] {
        let said = sent_again_after_404(lose, Some("once"));
        assert!(says(&said, "replayed"), "{lose:?} {said}");
        assert_eq!(text(&said), "append a: effect 1");
    }
}

#[test]
fn i5_field_12_17_rust_sdk_resends_after_a_404_without_a_key_and_it_is_no_second_effect() {
    // The connection ended before the answer was written: proven undelivered.
    let said = sent_again_after_404(Lose::Connection, None);
    assert!(says(&said, "attached"), "{said}");
    assert_eq!(text(&said), "append a: effect 1");
    // The answer was written to somebody who threw it away: that cannot be known.
    let said = sent_again_after_404(Lose::Answer, None);
    assert_eq!(code(&said), "possible_duplicate", "{said}");
}

/// The proxy was killed and started again: its sessions are gone, its receipts are not.
#[test]
fn i2_field_17_rust_sdk_starts_over_with_a_proxy_that_was_killed() {
    let counted = Counted::new();
    let proxy = counted.listen();
    let address = proxy.address;
    run(async {
        let client = connect(&proxy.url(), older()).await;
        let before = append(&json!({"id": "before"}), Some("one"));
        let first = call(&client, before.clone()).await;
        drop(proxy);
        let _proxy = counted.listen_at(address);
        // The old session is refused; the SDK makes a new one and sends the call again.
        let after = call(&client, append(&json!({"id": "after"}), None)).await;
        assert!(text(&after).starts_with("append after: effect "), "{after}");
        let again = call(&client, before).await;
        assert!(says(&again, "replayed"), "{again}");
        assert_eq!(text(&again), text(&first));
        let _ = client.cancel().await;
    });
    for id in ["before", "after"] {
        assert_eq!(counted.effects(id), 1, "{id}");
    }
}
