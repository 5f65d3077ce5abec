//! What the tools say of themselves. Most say nothing of what they change, as most servers' do.

use serde_json::{Map, Value, json};

/// Tools without arguments.
const PLAIN: &[(&str, &str)] = &[
    ("test_simple_text", "Answers with text."),
    (
        "test_multiple_content_types",
        "Answers with several kinds of content.",
    ),
    ("test_error_handling", "Always fails."),
    ("test_tool_with_logging", "Logs to its client."),
    ("test_tool_with_progress", "Tells of its progress."),
    (
        "test_elicitation_sep1034_defaults",
        "Asks the user, with defaults.",
    ),
    ("test_elicitation_sep1330_enums", "Asks the user to choose."),
    ("test_missing_capability", "Needs a client that samples."),
    (
        "test_streaming_elicitation",
        "Needs a client that asks its user.",
    ),
    ("test_logging_tool", "Logs to clients that want it."),
    ("test_trigger_tool_change", "Changes the list of tools."),
    ("test_trigger_prompt_change", "Changes the list of prompts."),
    ("test_input_required_result_elicitation", "Wants a name."),
    (
        "test_input_required_result_sampling",
        "Wants a text from a model.",
    ),
    (
        "test_input_required_result_list_roots",
        "Wants the client's roots.",
    ),
    (
        "test_input_required_result_request_state",
        "Wants its state back.",
    ),
    (
        "test_input_required_result_multiple_inputs",
        "Wants three things.",
    ),
    (
        "test_input_required_result_multi_round",
        "Wants one thing after the other.",
    ),
    (
        "test_input_required_result_tampered_state",
        "Looks at its state.",
    ),
    (
        "test_input_required_result_capabilities",
        "Wants what the client can do.",
    ),
    ("failing_job", "A task that fails."),
    ("protocol_error_job", "A task that breaks."),
    ("multi_input", "A task that wants two things."),
    ("test_tool_with_task", "Wants a name, then becomes a task."),
];

/// Tools without arguments that change nothing and say so.
const READ_ONLY: &[(&str, &str)] = &[
    ("test_image_content", "Answers with an image."),
    ("test_audio_content", "Answers with a sound."),
    (
        "test_embedded_resource",
        "Answers with an embedded resource.",
    ),
];

/// Tools with one argument: its name and type.
const WITH_ONE: &[(&str, &str, &str, &str)] = &[
    ("test_sampling", "Asks a model.", "prompt", "string"),
    ("test_elicitation", "Asks the user.", "message", "string"),
    ("greet", "Greets.", "name", "string"),
    (
        "slow_compute",
        "A task that takes its time.",
        "seconds",
        "number",
    ),
    (
        "confirm_delete",
        "A task that asks first.",
        "filename",
        "string",
    ),
];

/// Tools that only a client with tasks can call.
const TASKS_ONLY: &[&str] = &["failing_job", "test_tool_with_task"];

pub(crate) fn all() -> Vec<Value> {
    let mut all = Vec::new();
    for (name, description) in PLAIN {
        all.push(tool(name, description, json!({"type": "object"})));
    }
    for (name, description) in READ_ONLY {
        let mut tool = tool(
            name,
            description,
            json!({"type": "object", "properties": {}}),
        );
        tool["annotations"] = json!({"readOnlyHint": true});
        all.push(tool);
    }
    for (name, description, argument, kind) in WITH_ONE {
        let mut properties = Map::new();
        properties.insert((*argument).to_owned(), json!({"type": kind}));
        let schema = json!({
            "type": "object", "properties": properties, "required": [argument],
        });
        all.push(tool(name, description, schema));
    }
    all.push(tool(
        "test_headers",
        "Has an argument that clients mirror into a header.",
        json!({
            "type": "object",
            "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        }),
    ));
    all.push(tool(
        "json_schema_2020_12_tool",
        "Tool with JSON Schema 2020-12 features",
        wide_schema(),
    ));
    for tool in &mut all {
        if TASKS_ONLY.iter().any(|name| tool["name"] == *name) {
            tool["execution"] = json!({"taskSupport": "required"});
        }
    }
    all
}

fn tool(name: &str, description: &str, schema: Value) -> Value {
    json!({"name": name, "description": description, "inputSchema": schema})
}

/// With the words of JSON Schema 2020-12 that the suite looks for.
fn wide_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            },
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}
