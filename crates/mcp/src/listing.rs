//! What `tools/list` says of a tool: its schemas with the key and the envelope, honest hints, and
//! how to use the key.

use std::time::Duration;

use counterfoil_core::KEY_CHARS_MAX;
use counterfoil_engine::Operation;
use jsonschema::{Draft, Validator};
use serde_json::{Map, Value, json};

use crate::{InvalidEndpoint, Tool, schema::annotated_headers, tool::Kind};

/// The members of the envelope around every answer, which a mutating tool's own fields must not
/// be called.
pub(crate) const ENVELOPE: [&str; 7] = [
    "status",
    "operation_id",
    "retryable",
    "retry_after_ms",
    "next_action",
    "code",
    "message",
];

/// A tool as the endpoint serves it.
pub(crate) struct Entry {
    pub(crate) tool: Tool,
    pub(crate) validator: Validator,
    /// As `tools/list` shows it.
    pub(crate) listed: Value,
    /// `x-mcp-header` annotations: the header, and the argument's path.
    pub(crate) headers: Vec<(String, Vec<String>)>,
}

impl Entry {
    pub(crate) fn new(tool: Tool, look_up: Option<&str>) -> Result<Self, InvalidEndpoint> {
        check_name(&tool.name)?;
        let wrong = |why: String| InvalidEndpoint::Schema {
            tool: tool.name.clone(),
            why,
        };
        if tool.input_schema.get("type") != Some(&json!("object")) {
            return Err(wrong(
                "the input schema must be of type `object`".to_owned(),
            ));
        }
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .build(&tool.input_schema)
            .map_err(|error| wrong(error.to_string()))?;
        if tool.operation().is_some() {
            let declared = |schema: &Value, name: &str| schema["properties"].get(name).is_some();
            if declared(&tool.input_schema, "idempotency_key") {
                return Err(wrong(
                    "`idempotency_key` is added by the endpoint; leave it out".to_owned(),
                ));
            }
            let output = tool.output_schema.as_ref().unwrap_or(&Value::Null);
            if let Some(field) = ENVELOPE.into_iter().find(|name| declared(output, name)) {
                return Err(wrong(format!(
                    "the output field `{field}` belongs to the envelope; call it something else"
                )));
            }
        }
        let listed = listed(&tool, look_up);
        let headers = annotated_headers(&tool.input_schema);
        Ok(Self {
            tool,
            validator,
            listed,
            headers,
        })
    }
}

fn check_name(name: &str) -> Result<(), InvalidEndpoint> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if (1..=128).contains(&name.len()) && name.chars().all(fits) {
        Ok(())
    } else {
        Err(InvalidEndpoint::ToolName(name.to_owned()))
    }
}

fn listed(tool: &Tool, look_up: Option<&str>) -> Value {
    let mut entry = Map::new();
    entry.insert("name".to_owned(), json!(tool.name));
    if let Some(title) = &tool.title {
        entry.insert("title".to_owned(), json!(title));
    }
    let (description, input) = match tool.operation() {
        None => (tool.description.clone(), tool.input_schema.clone()),
        Some(operation) => (
            format!(
                "{}\n\n{}",
                tool.description.trim_end(),
                how_to_use(operation, look_up)
            ),
            with_key(&tool.input_schema),
        ),
    };
    entry.insert("description".to_owned(), json!(description));
    entry.insert("inputSchema".to_owned(), input);
    if let Some(schema) = &tool.output_schema {
        entry.insert("outputSchema".to_owned(), with_envelope(schema));
    }
    entry.insert("annotations".to_owned(), annotations(tool));
    Value::Object(entry)
}

fn annotations(tool: &Tool) -> Value {
    match &tool.kind {
        Kind::Read(_) => json!({"readOnlyHint": true, "openWorldHint": tool.open_world}),
        // The same arguments are the same key, and the same key runs once.
        Kind::Guarded { .. } | Kind::Atomic { .. } => json!({
            "readOnlyHint": false,
            "destructiveHint": tool.destructive,
            "idempotentHint": true,
            "openWorldHint": tool.open_world,
        }),
    }
}

fn with_key(schema: &Value) -> Value {
    let mut schema = schema.clone();
    let key = json!({
        "type": "string",
        "minLength": 1,
        "maxLength": KEY_CHARS_MAX,
        "description": "Names this one intended action. Make it when you decide to act, keep it, and send the same key again with every retry of the same action.",
    });
    if let Value::Object(members) = &mut schema {
        let properties = members
            .entry("properties")
            .or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(properties) = properties {
            properties.insert("idempotency_key".to_owned(), key);
        }
        let required = members
            .entry("required")
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(required) = required {
            required.push(json!("idempotency_key"));
        }
    }
    schema
}

/// One envelope for answers and refusals: the tool's own fields become optional, because a refusal
/// has none of them.
fn with_envelope(schema: &Value) -> Value {
    let mut properties = json!({
        "status": {
            "type": "string",
            "description": "`succeeded`, `failed`, or why there is no result.",
        },
        "operation_id": {
            "type": "string",
            "description": "The handle of the operation, the same for every retry.",
        },
        "retryable": {
            "type": "boolean",
            "description": "Sending the same call again with the same key is safe and may help.",
        },
        "retry_after_ms": {
            "type": "integer",
            "minimum": 0,
            "description": "How long to wait before that.",
        },
        "next_action": {"type": "string", "description": "What to do next."},
        "code": {"type": "string", "description": "The permanent code of a refusal or failure."},
        "message": {"type": "string", "description": "What is wrong."},
    });
    if let (Value::Object(all), Some(Value::Object(own))) =
        (&mut properties, schema.get("properties"))
    {
        for (name, property) in own {
            all.insert(name.clone(), property.clone());
        }
    }
    let mut envelope = schema.clone();
    if let Value::Object(members) = &mut envelope {
        members.insert("type".to_owned(), json!("object"));
        members.insert("properties".to_owned(), properties);
        members.insert("required".to_owned(), json!(["status"]));
        // A refusal may carry details of its own.
        members.remove("additionalProperties");
    }
    envelope
}

/// The four things every mutating tool says (contract §11).
fn how_to_use(operation: &Operation, look_up: Option<&str>) -> String {
    let retention = operation.policy.retention;
    let replay = spell(retention.replay_for);
    let after = if retention.tombstone_for > retention.replay_for {
        format!(
            "After that the key is refused, until {} have passed; it does not run again.",
            spell(retention.tombstone_for)
        )
    } else {
        "After that the same key is a new action and runs again, so read the current state first."
            .to_owned()
    };
    let uncertain = match look_up {
        Some(tool) => format!(
            "call {tool} with the operation_id you were given, or send this call again with the same key"
        ),
        None => "send this call again with the same key: it says what is known".to_owned(),
    };
    format!(
        "idempotency_key: make one when you form the intention to act, before the first attempt, and keep it. \
         Reuse that key with the same arguments for every retry of that intention, such as after a time-out or a lost answer: it runs once, and a retry gets the first answer. \
         Another intention, or other arguments, needs another key. \
         A key is good for {replay} after its operation ended. {after} \
         If an outcome is uncertain, {uncertain}; do not make a new key for it."
    )
}

/// A duration in words, in the largest unit it is a whole number of: `48 hours`, `30 days`,
/// `1 minute`. Days only from three of them on. Parts of a second are left out.
#[must_use]
pub fn spell(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (count, unit) = match seconds {
        s if s >= 72 * 3600 && s % 86_400 == 0 => (s / 86_400, "day"),
        s if s >= 3600 && s % 3600 == 0 => (s / 3600, "hour"),
        s if s >= 60 && s % 60 == 0 => (s / 60, "minute"),
        s => (s, "second"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural}")
}
