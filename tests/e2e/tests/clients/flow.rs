//! The same calls through every client, and what each must show.

use counterfoil_e2e::installed::Outcomes;
use serde_json::{Value, json};

const META: &str = "dev.counterfoil/";

/// The calls, in order.
pub(crate) fn calls(name: &str) -> Value {
    let arguments = |key: &str, body: &str| json!({"body": body, "idempotency_key": key});
    let meta = json!({format!("{META}idempotency-key"): format!("{name}-meta")});
    let by_meta = json!({"tool": "create_note", "arguments": {"body": "by meta"}, "meta": meta});
    json!([
        {"list": true},
        {"tool": "create_note", "arguments": arguments(name, "one")},
        {"tool": "create_note", "arguments": arguments(name, "one")},
        {"tool": "create_note", "arguments": arguments(name, "another")},
        {"tool": "create_note", "arguments": {"body": "no key"}},
        by_meta,
        by_meta,
        {"tool": "list_notes", "arguments": {}},
    ])
}

/// How many notes the calls leave behind.
pub(crate) const NOTES: usize = 2;

/// Checks the outcomes as the client's user sees them.
pub(crate) fn check(done: &Outcomes, modern: bool) {
    let revision = if modern { "2026-07-28" } else { "2025-11-25" };
    if let Some(protocol) = &done.protocol {
        assert_eq!(protocol, revision);
    }
    let [
        list,
        first,
        again,
        conflict,
        missing,
        meta,
        meta_again,
        notes,
    ] = done.outcomes.as_slice()
    else {
        panic!("eight outcomes: {:?}", done.outcomes);
    };
    let tools = list["result"]["tools"].as_array().expect("tools");
    assert!(tools.iter().any(|tool| tool["name"] == "create_note"));
    same_note(first, again);
    same_note(meta, meta_again);
    let codes = if modern { -31001 } else { -32001 };
    assert_eq!(conflict["error"]["code"], codes, "{conflict}");
    assert_eq!(
        conflict["error"]["data"]["code"], "idempotency_conflict",
        "{conflict}"
    );
    let message = conflict["error"]["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("Idempotency key was reused with different arguments"),
        "{message}"
    );
    assert_eq!(missing["error"]["code"], -32602, "{missing}");
    let listed = &notes["result"]["structuredContent"]["notes"];
    assert_eq!(listed.as_array().map(Vec::len), Some(NOTES), "{notes}");
}

/// A first result and its replay, as a user of a client sees them.
pub(crate) fn same_note(first: &Value, again: &Value) {
    let (first, again) = (&first["result"], &again["result"]);
    let id = &first["structuredContent"]["note_id"];
    assert!(id.is_string(), "{first}");
    assert_eq!(&again["structuredContent"]["note_id"], id, "{again}");
    assert_eq!(again["structuredContent"], first["structuredContent"]);
    assert_eq!(again["content"], first["content"]);
    let replayed = format!("{META}replayed");
    assert_eq!(again["_meta"][&replayed], true, "{again}");
    assert_ne!(first["_meta"][&replayed], true, "{first}");
}
