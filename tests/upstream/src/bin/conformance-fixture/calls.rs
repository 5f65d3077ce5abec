#![allow(deprecated, reason = "both eras are served")]

use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, ErrorData, LoggingLevel,
    LoggingMessageNotificationParam, ProgressNotificationParam,
};
use rmcp::service::{RequestContext, RoleServer, ServiceError};
use serde_json::{Value, json};

use crate::json::{SILENCE, image, resource, text, typed, value, whole};
use crate::rounds;
use crate::server::{Change, Fixture};

const PAUSE: Duration = Duration::from_millis(50);

type Context = RequestContext<RoleServer>;
type Called = Result<CallToolResponse, ErrorData>;

pub(crate) async fn call(
    fixture: &Fixture,
    request: CallToolRequestParams,
    context: Context,
) -> Called {
    let capabilities = context.client_capabilities();
    let capabilities = capabilities.as_ref();
    if let Some(content) = fixed(&request.name) {
        return Ok(complete(json!({"content": content})));
    }
    if let Some(done) = rounds::call(&request, capabilities) {
        return done;
    }
    if let Some(done) = fixture.tasks.call(&request, capabilities).await {
        return done;
    }
    let argument = |name: &str| {
        let found = request.arguments.as_ref().and_then(|all| all.get(name));
        found.and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    match request.name.as_ref() {
        "test_error_handling" => Ok(failed(
            "This tool intentionally returns an error for testing",
        )),
        "test_tool_with_logging" => logging(&context).await,
        "test_tool_with_progress" => progress(&context).await,
        "test_sampling" => sampling(&context, &argument("prompt")).await,
        "test_elicitation" => {
            let schema = json!({
                "type": "object",
                "properties": {
                    "username": {"type": "string", "description": "User's response"},
                    "email": {"type": "string", "description": "User's email address"},
                },
                "required": ["username", "email"],
            });
            let answer = elicit(&context, &argument("message"), schema).await?;
            Ok(said(&format!("User response: {answer}")))
        }
        "test_elicitation_sep1034_defaults" => {
            let answer = elicit(&context, "Please look over the defaults", defaults()).await?;
            Ok(said(&format!("Elicitation completed: {answer}")))
        }
        "test_elicitation_sep1330_enums" => {
            let answer = elicit(&context, "Please choose", choices()).await?;
            Ok(said(&format!("Elicitation completed: {answer}")))
        }
        "test_missing_capability" => needs(capabilities, "sampling").map(|()| said("It can.")),
        "test_streaming_elicitation" => {
            needs(capabilities, "elicitation")?;
            let name = rounds::answer(request.input_responses.as_ref(), "user_name", "name");
            Ok(match name {
                Some(name) => said(&format!("Hello, {name}!")),
                None => CallToolResponse::InputRequired(rounds::name_wanted(None)),
            })
        }
        "test_logging_tool" => {
            if let Some(level) = context.meta.log_level() {
                log(&context, level, "this was asked for").await?;
            }
            Ok(said("done"))
        }
        "test_trigger_tool_change" => change(fixture, &context, Change::Tools).await,
        "test_trigger_prompt_change" => change(fixture, &context, Change::Prompts).await,
        "greet" => Ok(said(&format!("Hello, {}!", argument("name")))),
        "test_headers" => Ok(said(&argument("region"))),
        "json_schema_2020_12_tool" => Ok(said(&value(&request.arguments).to_string())),
        name => {
            let why = format!("there is no tool {name}");
            Err(ErrorData::invalid_params(why, None))
        }
    }
}

/// The content of tools that always answer the same.
fn fixed(name: &str) -> Option<Value> {
    Some(match name {
        "test_simple_text" => json!([text("This is a simple text response for testing.")]),
        "test_image_content" => json!([image()]),
        "test_audio_content" => {
            json!([{"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}])
        }
        "test_embedded_resource" => {
            let words = "This is an embedded resource content.";
            json!([resource("test://embedded-resource", "text/plain", words)])
        }
        "test_multiple_content_types" => {
            let words = json!({"test": "data", "value": 123}).to_string();
            let found = resource("test://mixed-content-resource", "application/json", &words);
            json!([text("Multiple content types test:"), image(), found])
        }
        _ => return None,
    })
}

async fn logging(context: &Context) -> Called {
    for (pause, words) in [
        (Duration::ZERO, "Tool execution started"),
        (PAUSE, "Tool processing data"),
        (PAUSE, "Tool execution completed"),
    ] {
        tokio::time::sleep(pause).await;
        log(context, LoggingLevel::Info, words).await?;
    }
    Ok(said("three things were logged"))
}

async fn log(context: &Context, level: LoggingLevel, words: &str) -> Result<(), ErrorData> {
    let entry = LoggingMessageNotificationParam::new(level, json!(words));
    context
        .peer
        .notify_logging_message(entry)
        .await
        .map_err(broken)
}

async fn progress(context: &Context) -> Called {
    let token = context.meta.get_progress_token();
    for done in [0.0, 50.0, 100.0] {
        if let Some(token) = token.clone() {
            let told = ProgressNotificationParam::new(token, done).with_total(100.0);
            context.peer.notify_progress(told).await.map_err(broken)?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(said("all of it is done"))
}

async fn sampling(context: &Context, prompt: &str) -> Called {
    let message = json!({"role": "user", "content": {"type": "text", "text": prompt}});
    let wanted = typed(json!({"messages": [message], "maxTokens": 100}));
    let answer = context.peer.create_message(wanted).await.map_err(broken)?;
    let answer = value(&answer);
    let words = answer["content"]["text"].as_str().unwrap_or_default();
    Ok(said(&format!("LLM response: {words}")))
}

async fn elicit(context: &Context, message: &str, schema: Value) -> Result<String, ErrorData> {
    let wanted = typed(json!({"mode": "form", "message": message, "requestedSchema": schema}));
    let answer = context
        .peer
        .create_elicitation(wanted)
        .await
        .map_err(broken)?;
    let answer = value(&answer);
    let action = answer["action"].as_str().unwrap_or_default();
    Ok(format!("action={action}, content={}", answer["content"]))
}

fn defaults() -> Value {
    let states = ["active", "inactive", "pending"];
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": states, "default": "active"},
            "verified": {"type": "boolean", "default": true},
        },
    })
}

fn choices() -> Value {
    let titled = |titles: [&str; 3]| {
        let one = |(at, title)| json!({"const": format!("value{}", at + 1), "title": title});
        let all: Vec<Value> = titles.into_iter().enumerate().map(one).collect();
        all
    };
    let options = ["option1", "option2", "option3"];
    let first = titled(["First Option", "Second Option", "Third Option"]);
    let many = titled(["First Choice", "Second Choice", "Third Choice"]);
    json!({
        "type": "object",
        "properties": {
            "untitledSingle": {"type": "string", "enum": options},
            "titledSingle": {"type": "string", "oneOf": first},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
            "titledMulti": {"type": "array", "items": {"anyOf": many}},
        },
    })
}

/// Tells everybody who wants to know that a list changed.
async fn change(fixture: &Fixture, context: &Context, change: Change) -> Called {
    // Whoever began to listen just now does so by then.
    tokio::time::sleep(PAUSE).await;
    // Nobody may be listening.
    let _ = fixture.changes.send(change);
    if context.meta.protocol_version().is_none() {
        match change {
            Change::Tools => context.peer.notify_tool_list_changed().await,
            Change::Prompts => context.peer.notify_prompt_list_changed().await,
        }
        .map_err(broken)?;
    }
    Ok(said("the list changed"))
}

/// Refuses a client that has not said that it can do this.
fn needs(capabilities: Option<&ClientCapabilities>, name: &str) -> Result<(), ErrorData> {
    if value(&capabilities)[name].is_object() {
        return Ok(());
    }
    let mut needed = serde_json::Map::new();
    needed.insert(name.to_owned(), json!({}));
    let needed = typed(Value::Object(needed));
    Err(ErrorData::missing_required_client_capability(needed))
}

/// A result of one text.
pub(crate) fn said(words: &str) -> CallToolResponse {
    complete(json!({"content": [text(words)], "isError": false}))
}

fn failed(words: &str) -> CallToolResponse {
    complete(json!({"content": [text(words)], "isError": true}))
}

fn complete(result: Value) -> CallToolResponse {
    CallToolResponse::Complete(whole(result))
}

fn broken(why: ServiceError) -> ErrorData {
    ErrorData::internal_error(why.to_string(), None)
}
