//! How the proxy's own tools are described to a model.

use serde_json::{Value, json};

use super::{LIST_DEFAULT, LIST_MAX, OwnTool, REASON_CHARS_MAX};

/// The definition of a tool, under its prefix.
pub(super) fn of(tool: OwnTool, prefix: &str) -> Value {
    json!({
        "name": format!("{prefix}{}", tool.name()),
        "title": title(tool),
        "description": description(tool, prefix),
        "inputSchema": schema(tool),
        "annotations": annotations(tool),
    })
}

const fn title(tool: OwnTool) -> &'static str {
    match tool {
        OwnTool::Get => "What became of a call",
        OwnTool::List => "Recorded calls",
        OwnTool::Cancel => "Stop a call",
        OwnTool::Resolve => "Settle a call in doubt",
    }
}

fn description(tool: OwnTool, prefix: &str) -> String {
    match tool {
        OwnTool::Get => "Shows what became of an earlier tool call: whether it happened, whether it still runs, its stored result, and what to do next. Takes the operation_id from that call's answer. Changes nothing.".to_owned(),
        OwnTool::List => format!(
            "Lists earlier tool calls that change something, those whose outcome is not known first. Each with its state, its age and the key that came with it, but not its arguments. Use it to find an operation_id for {prefix}get_operation. Changes nothing."
        ),
        OwnTool::Cancel => "Asks the server to stop a tool call that still runs, and tells what really happened: it may have been carried out all the same. Undoes nothing.".to_owned(),
        OwnTool::Resolve => "Settles a call whose outcome is not known, for good. Use it only after you have looked at the target itself and seen whether the call had its effect.".to_owned(),
    }
}

fn annotations(tool: OwnTool) -> Value {
    match tool {
        OwnTool::Get | OwnTool::List => json!({"readOnlyHint": true, "openWorldHint": false}),
        OwnTool::Cancel | OwnTool::Resolve => json!({
            "readOnlyHint": false,
            "destructiveHint": false,
            "idempotentHint": true,
            "openWorldHint": false,
        }),
    }
}

fn schema(tool: OwnTool) -> Value {
    let id = json!({"type": "string", "description": "Such as op_0198c2a4-6c1e-7d3a-9f54-2b7c8e1d0a63."});
    match tool {
        OwnTool::Get | OwnTool::Cancel => json!({
            "type": "object",
            "properties": {"operation_id": id},
            "required": ["operation_id"],
        }),
        OwnTool::List => json!({
            "type": "object",
            "properties": {
                "limit": {"type": "integer", "minimum": 1, "maximum": LIST_MAX, "default": LIST_DEFAULT},
                "in_doubt_only": {
                    "type": "boolean",
                    "default": false,
                    "description": "Only calls whose outcome is not known.",
                },
            },
        }),
        OwnTool::Resolve => json!({
            "type": "object",
            "properties": {
                "operation_id": id,
                "verdict": {
                    "type": "string",
                    "enum": ["happened", "not_happened"],
                    "description": "not_happened only if it did not happen and no longer can.",
                },
                "reason": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": REASON_CHARS_MAX,
                    "description": "How you found out, in one line.",
                },
            },
            "required": ["operation_id", "verdict", "reason"],
        }),
    }
}
