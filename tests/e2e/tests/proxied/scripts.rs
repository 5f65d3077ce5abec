//! The TypeScript and Python SDKs as clients of the proxy, through pipes and through HTTP.

use counterfoil_e2e::installed::{Outcomes, python, typescript};
use serde_json::{Value, json};

use crate::front::Counted;

const META: &str = "dev.counterfoil/";
/// Milliseconds that the upstream keeps an answer back, and that a client waits for one.
const HOLD: u64 = 2_000;
const PATIENCE: u64 = 700;

/// The calls, in order.
fn calls() -> Value {
    let by_argument = json!({
        "tool": "append", "arguments": {"id": "argument", "idempotency_key": "one"},
    });
    let by_meta = json!({
        "tool": "append", "arguments": {"id": "meta"},
        "meta": {format!("{META}idempotency-key"): "two"},
    });
    let held = |id: &str| json!({"id": id, "hold": HOLD});
    let mut keyed = held("keyed");
    keyed["idempotency_key"] = json!("three");
    json!([
        {"list": true},
        {"tool": "count", "arguments": {"id": "nothing"}},
        by_argument,
        by_argument,
        by_meta,
        by_meta,
        {"tool": "append", "arguments": keyed, "timeout": PATIENCE},
        {"tool": "append", "arguments": keyed, "insist": true},
        {"tool": "append", "arguments": held("keyless"), "timeout": PATIENCE},
        {"tool": "append", "arguments": held("keyless")},
    ])
}

fn check(counted: &Counted, done: &Outcomes, revision: &str) {
    if let Some(protocol) = &done.protocol {
        assert_eq!(protocol, revision);
    }
    let [
        list,
        read,
        first,
        again,
        by_meta,
        by_meta_again,
        keyed_lost,
        keyed,
        keyless_lost,
        keyless,
    ] = done.outcomes.as_slice()
    else {
        panic!("ten outcomes: {:?}", done.outcomes);
    };
    let tools = list["result"]["tools"].as_array().expect("tools");
    let append = tools.iter().find(|tool| tool["name"] == "append").unwrap();
    let key = &append["inputSchema"]["properties"]["idempotency_key"];
    assert_eq!(key["type"], "string", "{append}");
    assert!(text(read).starts_with("nothing"), "{read}");
    replayed(first, again);
    replayed(by_meta, by_meta_again);
    assert!(keyed_lost["error"].is_object(), "gave up: {keyed_lost}");
    assert!(text(keyed).starts_with("append keyed: effect "), "{keyed}");
    assert!(says(keyed, "replayed"), "{keyed}");
    assert!(keyless_lost["error"].is_object(), "gave up: {keyless_lost}");
    assert!(
        text(keyless).starts_with("append keyless: effect "),
        "{keyless}"
    );
    assert!(says(keyless, "attached"), "{keyless}");
    for id in ["argument", "meta", "keyed", "keyless"] {
        assert_eq!(counted.effects(id), 1, "{id}");
    }
}

fn text(outcome: &Value) -> &str {
    let text = &outcome["result"]["content"][0]["text"];
    text.as_str().unwrap_or_else(|| panic!("{outcome}"))
}

fn says(outcome: &Value, what: &str) -> bool {
    outcome["result"]["_meta"][format!("{META}{what}")] == true
}

fn replayed(first: &Value, again: &Value) {
    assert!(!says(first, "replayed"), "{first}");
    assert!(says(again, "replayed"), "{again}");
    assert_eq!(text(first), text(again));
}

/// Through pipes, then through HTTP.
fn through_both(run: fn(&Value) -> Outcomes, job: &Value, revision: &str) {
    let mut job = job.clone();
    job["calls"] = calls();
    let counted = Counted::new();
    job["command"] = json!(counted.words(&[]));
    check(&counted, &run(&job), revision);

    let counted = Counted::new();
    let proxy = counted.listen();
    job.as_object_mut().unwrap().remove("command");
    job["url"] = json!(proxy.url());
    check(&counted, &run(&job), revision);
}

#[test]
fn i2_i5_field_12_typescript_sdk_1() {
    through_both(typescript, &json!({"sdk": "v1"}), "2025-11-25");
}

#[test]
fn i2_i5_field_12_typescript_sdk_2() {
    through_both(
        typescript,
        &json!({"sdk": "v2", "mode": "auto"}),
        "2026-07-28",
    );
}

#[test]
fn i2_i5_field_12_typescript_sdk_2_as_a_client_of_the_older_revision() {
    through_both(
        typescript,
        &json!({"sdk": "v2", "mode": "legacy"}),
        "2025-11-25",
    );
}

#[test]
fn i2_i5_field_12_python_sdk_2() {
    through_both(python, &json!({"mode": "auto"}), "2026-07-28");
}

#[test]
fn i2_i5_field_12_python_sdk_2_as_a_client_of_the_older_revision() {
    through_both(python, &json!({"mode": "legacy"}), "2025-11-25");
}
