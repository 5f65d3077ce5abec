//! The schemas of the tools, as the domain has them: the endpoint adds key and envelope.

use serde_json::{Value, json};

use crate::{
    notes::{BODY_CHARS_MAX, PAGE_DEFAULT, PAGE_MAX},
    operations::listed_words,
};

fn object(properties: Value, required: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn time() -> Value {
    json!({"type": "string", "format": "date-time"})
}

fn maybe(kind: &str) -> Value {
    json!({"type": [kind, "null"]})
}

fn page_properties() -> Value {
    json!({
        "limit": {
            "type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT,
            "description": "How many at most.",
        },
        "cursor": {"type": "string", "description": "next_cursor of the page before."},
    })
}

pub(super) fn new_note() -> Value {
    let body = json!({
        "type": "string", "minLength": 1, "maxLength": BODY_CHARS_MAX,
        "description": "The text of the note.",
    });
    object(json!({ "body": body }), &["body"])
}

fn note_properties() -> Value {
    json!({
        "note_id": {"type": "string"},
        "body": {"type": "string"},
        "author": {"type": "string", "description": "The id of the agent key that made it."},
        "created_at": time(),
    })
}

pub(super) fn note() -> Value {
    object(
        note_properties(),
        &["note_id", "body", "author", "created_at"],
    )
}

pub(super) fn note_ref() -> Value {
    object(json!({"note_id": {"type": "string"}}), &["note_id"])
}

pub(super) fn note_listing() -> Value {
    object(page_properties(), &[])
}

pub(super) fn note_page() -> Value {
    let properties = json!({
        "notes": {"type": "array", "items": note()},
        "next_cursor": maybe("string"),
    });
    object(properties, &["notes", "next_cursor"])
}

pub(super) fn operation_ref() -> Value {
    object(
        json!({"operation_id": {"type": "string"}}),
        &["operation_id"],
    )
}

pub(super) fn operation_listing() -> Value {
    let mut properties = page_properties();
    let states: Vec<_> = listed_words().collect();
    properties["state"] = json!({
        "type": "string", "enum": states,
        "description": "Only operations in this state. `expired`: only the tombstone is left.",
    });
    object(properties, &[])
}

fn summary_properties() -> Value {
    json!({
        "operation_id": {"type": "string"},
        "state": {"type": "string", "description": "`expired` once only the tombstone is left."},
        "effect": {"type": "string", "enum": ["happened", "none", "unknown"]},
        "target": {"type": "string"},
        "principal": {"type": "string"},
        "version": {"type": "integer"},
        "mode": {"type": "string"},
        "attempts": {"type": "integer"},
        "created_at": time(),
        "finished_at": maybe("string"),
        "replay_until": maybe("string"),
        "tombstone_until": maybe("string"),
    })
}

const SUMMARY: [&str; 9] = [
    "operation_id",
    "state",
    "effect",
    "target",
    "principal",
    "version",
    "mode",
    "attempts",
    "created_at",
];

pub(super) fn operation() -> Value {
    let mut properties = summary_properties();
    properties["meaning"] = json!({"type": "string"});
    properties["result_kept"] = json!({"type": "string"});
    properties["result"] = json!({
        "type": ["object", "null"],
        "properties": {
            "status": {"type": "integer"},
            "content_type": maybe("string"),
            "body": {},
        },
    });
    let event = object(
        json!({
            "at": time(),
            "attempt": {"type": "integer"},
            "from": maybe("string"),
            "to": {"type": "string"},
            "reason": {"type": "string"},
            "evidence": maybe("string"),
        }),
        &["at", "attempt", "to", "reason"],
    );
    properties["events"] = json!({"type": "array", "items": event});
    object(properties, &SUMMARY)
}

pub(super) fn operation_page() -> Value {
    let properties = json!({
        "operations": {"type": "array", "items": object(summary_properties(), &SUMMARY)},
        "next_cursor": maybe("string"),
    });
    object(properties, &["operations", "next_cursor"])
}
