//! What the tools say of themselves.

use serde_json::{Value, json};

/// A page of the list.
pub(crate) fn list(params: &Value, page: usize, modern: bool) -> Value {
    let all = all();
    let from = params["cursor"]
        .as_str()
        .and_then(|cursor| cursor.parse().ok());
    let from: usize = from.unwrap_or(0).min(all.len());
    let to = from.saturating_add(page).min(all.len());
    let mut result = json!({"tools": all[from..to], "x-unknown": 1.50});
    if to < all.len() {
        result["nextCursor"] = json!(to.to_string());
    }
    if modern {
        result["resultType"] = json!("complete");
        result["ttlMs"] = json!(1000);
        result["cacheScope"] = json!("private");
    }
    result
}

/// Whether there is a tool of this name.
pub(crate) fn is_known(name: &str) -> bool {
    all().iter().any(|tool| tool["name"] == name)
}

/// An argument that a tool does not know, if its schema is closed.
pub(crate) fn unexpected(name: &str, arguments: &Value) -> Option<String> {
    let tool = all().into_iter().find(|tool| tool["name"] == name)?;
    if tool["inputSchema"]["additionalProperties"] != false {
        return None;
    }
    let known = &tool["inputSchema"]["properties"];
    let mut names = arguments.as_object()?.keys();
    names.find(|name| known.get(name).is_none()).cloned()
}

fn all() -> Vec<Value> {
    let text = json!({"type": "string"});
    let number = number();
    let read_only = json!({"readOnlyHint": true});
    vec![
        tool("append", &["id"], &[("text", &text)], None, true),
        {
            let region = json!({"type": "string", "x-mcp-header": "Region"});
            let says = json!({"readOnlyHint": false, "destructiveHint": false, "title": "Deploy"});
            tool("deploy", &["id"], &[("region", &region)], Some(says), false)
        },
        tool("read", &[], &[], Some(read_only.clone()), false),
        tool("query", &[], &[("question", &text)], None, false),
        tool(
            "pay",
            &["id"],
            &[("idempotency_key", &text), ("amount", &number)],
            None,
            false,
        ),
        tool("count", &["id"], &[], Some(read_only.clone()), false),
        tool("slow", &["id", "ms"], &[("ms", &number)], None, false),
        tool(
            "progress",
            &["id", "steps"],
            &[("steps", &number), ("ms", &number)],
            None,
            false,
        ),
        tool("ask", &["id"], &[], None, false),
        {
            let mut task = tool("task", &["id"], &[("ms", &number)], None, false);
            task["execution"] = json!({"taskSupport": "optional"});
            task
        },
        tool("echo", &[], &[], Some(read_only.clone()), false),
        tool("notify", &[], &[], Some(read_only), false),
    ]
}

fn number() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn tool(
    name: &str,
    required: &[&str],
    own: &[(&str, &Value)],
    annotations: Option<Value>,
    closed: bool,
) -> Value {
    let mut properties = json!({
        "id": {"type": "string"},
        "fault": {"type": "string"},
        "once": {"type": "boolean"},
        "hold": number(),
    });
    for (name, schema) in own {
        properties[*name] = (*schema).clone();
    }
    let mut tool = json!({
        "name": name,
        "description": format!("The test tool {name}."),
        "inputSchema": {"type": "object", "properties": properties, "required": required},
        "x-unknown": {"spelled": 10.0},
    });
    if closed {
        tool["inputSchema"]["additionalProperties"] = json!(false);
    }
    if let Some(annotations) = annotations {
        tool["annotations"] = annotations;
    }
    tool
}
