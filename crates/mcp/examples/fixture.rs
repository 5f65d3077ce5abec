//! An MCP server with the tools that the official conformance suite calls, and a few that make
//! trouble on purpose.
//!
//! ```text
//! cargo run -p counterfoil-mcp --example fixture -- 8931 [--meta-prefix assay] [--data FILE]
//!     [--store postgres://…|memory] [--effects FILE]
//! ```
//!
//! Serves `http://127.0.0.1:8931/mcp` for one fixed caller, without credentials. Without `--data`
//! and `--store` its database is a temporary file. `--effects` names the file that the tool
//! `append` writes to.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    fs::OpenOptions, io::Write as _, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration,
};

use counterfoil_core::{Policy, PrincipalId, WorkspaceId};
use counterfoil_engine::{
    Caller, Engine, Open, Operation,
    store::{BoxFuture, Migration, Store, Value as Sql, transact},
};
use counterfoil_mcp::{
    AuthError, Authenticate, Ending, Endpoint, HttpOptions, Output, Tool, ToolError,
};
use counterfoil_postgres::PostgresStore;
use counterfoil_sqlite::{Options, SqliteStore};
use counterfoil_testkit::MemoryStore;
use http::HeaderMap;
use serde_json::{Value, json};

const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
const SILENCE: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=";

const EFFECTS: Migration = Migration {
    version: 1,
    sqlite: "CREATE TABLE fixture_effects (id INTEGER PRIMARY KEY, label TEXT NOT NULL) STRICT",
    postgres: "CREATE TABLE fixture_effects (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, label text NOT NULL)",
};

struct Fixed;

impl Authenticate for Fixed {
    fn authenticate<'a>(
        &'a self,
        _: &'a HeaderMap,
        _: Option<SocketAddr>,
    ) -> BoxFuture<'a, Result<Caller, AuthError>> {
        Box::pin(async {
            Ok(Caller {
                workspace: WorkspaceId::new("default").unwrap(),
                principal: PrincipalId::new("fixture").unwrap(),
                authority: Arc::new(Open),
            })
        })
    }
}

fn nothing() -> Value {
    json!({"type": "object", "additionalProperties": false})
}

fn blocks(content: Value) -> Output {
    let Value::Array(content) = content else {
        panic!("content is an array");
    };
    Output::Blocks {
        content,
        structured: None,
    }
}

fn fixed(name: &str, description: &str, content: Value) -> Tool {
    Tool::read(name, description, nothing(), move |_| {
        let content = content.clone();
        async move { Ok(blocks(content)) }
    })
}

fn conformance_tools() -> Vec<Tool> {
    let image = json!({"type": "image", "data": PIXEL, "mimeType": "image/png"});
    let text = |text: &str| json!({"type": "text", "text": text});
    vec![
        fixed(
            "test_simple_text",
            "Answers with text.",
            json!([text("This is a simple text response for testing.")]),
        ),
        fixed(
            "test_image_content",
            "Answers with an image.",
            json!([image]),
        ),
        fixed(
            "test_audio_content",
            "Answers with a sound.",
            json!([{"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}]),
        ),
        fixed(
            "test_embedded_resource",
            "Answers with an embedded resource.",
            json!([{"type": "resource", "resource": {
                "uri": "test://embedded-resource",
                "mimeType": "text/plain",
                "text": "This is an embedded resource content.",
            }}]),
        ),
        fixed(
            "test_multiple_content_types",
            "Answers with several kinds of content.",
            json!([text("Multiple content types test:"), image, {"type": "resource", "resource": {
                "uri": "test://mixed-content-resource",
                "mimeType": "application/json",
                "text": "{\"test\":\"data\",\"value\":123}",
            }}]),
        ),
        Tool::read(
            "test_error_handling",
            "Always fails.",
            nothing(),
            |_| async {
                let message = "This tool intentionally returns an error for testing";
                Err(ToolError::new(500, "intended", message))
            },
        ),
        Tool::read(
            "test_tool_with_progress",
            "Tells of its progress.",
            nothing(),
            |request| async move {
                for done in [0.0, 50.0, 100.0] {
                    request.progress.tell(done, Some(100.0), None);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Ok(Output::text("done"))
            },
        ),
        Tool::read(
            "test_headers",
            "Has an argument that clients mirror into a header.",
            json!({
                "type": "object",
                "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
            }),
            |request| async move { Ok(Output::Json(request.arguments)) },
        ),
        Tool::read(
            "json_schema_2020_12_tool",
            "Tool with JSON Schema 2020-12 features",
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
            }),
            |request| async move { Ok(Output::Json(request.arguments)) },
        ),
    ]
}

/// Counts an effect under `label`; how many there are now.
async fn effect(store: &dyn Store, label: String) -> Result<i64, ToolError> {
    let counted = transact(store, None, move |tx| {
        let label = label.clone();
        Box::pin(async move {
            let insert = "INSERT INTO fixture_effects (label) VALUES ($1)";
            tx.execute(insert, &[Sql::from(label.as_str())]).await?;
            // Counted here: the memory store keeps rows and knows no `count`.
            let list = "SELECT label FROM fixture_effects WHERE label = $1";
            let rows = tx.query(list, &[Sql::from(label.as_str())]).await?;
            let same = rows.iter().filter(|row| row.text(0) == Ok(label.as_str()));
            Ok(i64::try_from(same.count()).unwrap_or(i64::MAX))
        })
    });
    counted
        .await
        .map_err(|error| ToolError::new(503, "unavailable", error.to_string()))
}

fn label(arguments: &Value) -> String {
    arguments["label"].as_str().unwrap_or("default").to_owned()
}

fn troublesome_tools(store: &Arc<dyn Store>) -> Vec<Tool> {
    let operation = || Operation::new(1, Policy::default()).unwrap();
    let labelled = json!({"type": "object", "properties": {"label": {"type": "string"}}});
    let (counting, slow) = (Arc::clone(store), Arc::clone(store));
    vec![
        Tool::guarded(
            "counter",
            "Counts one effect in the database and answers with how many there are.",
            labelled,
            operation(),
            move |request, _| {
                let store = Arc::clone(&counting);
                async move {
                    match effect(store.as_ref(), label(&request.arguments)).await {
                        Ok(count) => Ending::Done(json!({"count": count}).into()),
                        Err(error) => Ending::NotApplied(error),
                    }
                }
            },
        )
        .output_schema(json!({"type": "object", "properties": {"count": {"type": "integer"}}}))
        .open_world(false),
        Tool::guarded(
            "slow",
            "Counts one effect, then sleeps for some milliseconds.",
            json!({
                "type": "object",
                "properties": {
                    "label": {"type": "string"},
                    "ms": {"type": "integer", "minimum": 0, "maximum": 600_000},
                },
                "required": ["ms"],
            }),
            operation(),
            move |request, _| {
                let store = Arc::clone(&slow);
                async move {
                    let ms = request.arguments["ms"].as_u64().unwrap_or_default();
                    let counted = effect(store.as_ref(), label(&request.arguments)).await;
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    match counted {
                        Ok(count) => Ending::Done(json!({"count": count}).into()),
                        Err(error) => Ending::NotApplied(error),
                    }
                }
            },
        ),
        Tool::guarded(
            "large",
            "Answers with more than is stored.",
            nothing(),
            operation(),
            |_, _| async {
                let text = "x".repeat(262_145);
                Ending::Done(json!({"text": text}).into())
            },
        ),
        Tool::guarded(
            "fail",
            "Always refuses.",
            nothing(),
            operation(),
            |_, _| async {
                Ending::Refused {
                    error: ToolError::new(409, "not_today", "This tool always refuses"),
                    effect_none: true,
                }
            },
        ),
    ]
}

/// An upstream of its own, as it were: its effects are lines of a file that no database knows of.
fn appending_tool(effects: PathBuf) -> Tool {
    Tool::guarded(
        "append",
        "Appends a line to a file, then sleeps for some milliseconds.",
        json!({
            "type": "object",
            "properties": {
                "label": {"type": "string"},
                "ms": {"type": "integer", "minimum": 0, "maximum": 600_000},
            },
            "required": ["label", "ms"],
        }),
        Operation::new(1, Policy::default()).unwrap(),
        move |request, _| {
            let effects = effects.clone();
            async move {
                let line = format!("{}\n", label(&request.arguments));
                let mut options = OpenOptions::new();
                let file = options.create(true).append(true).open(&effects);
                if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
                    panic!("{}: {error}", effects.display());
                }
                let ms = request.arguments["ms"].as_u64().unwrap_or_default();
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ending::Done(json!({"line": line.trim_end()}).into())
            }
        },
    )
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let port: u16 = arguments
        .next()
        .and_then(|port| port.parse().ok())
        .expect("the first argument is a port");
    let folder = tempfile::tempdir().unwrap();
    let mut data = folder.path().join("fixture.db");
    let mut prefix = "dev.counterfoil".to_owned();
    let mut address = None;
    let mut effects = None;
    while let Some(flag) = arguments.next() {
        let value = arguments.next().expect("every flag has a value");
        match flag.as_str() {
            "--meta-prefix" => prefix = value,
            "--data" => data = value.into(),
            "--store" => address = Some(value),
            "--effects" => effects = Some(PathBuf::from(value)),
            _ => panic!(
                "unknown flag {flag}; there are --meta-prefix, --data, --store and --effects"
            ),
        }
    }
    let store: Arc<dyn Store> = match address.as_deref() {
        None => Arc::new(SqliteStore::open(data, Options::default()).unwrap()),
        Some("memory") => Arc::new(MemoryStore::new()),
        Some(url) => Arc::new(PostgresStore::open(url, Default::default()).await.unwrap()),
    };
    store.migrate("fixture", &[EFFECTS]).await.unwrap();
    let engine = Engine::new(Arc::clone(&store));
    tokio::spawn({
        let engine = engine.clone();
        async move { engine.maintain().await }
    });
    let endpoint = Endpoint::builder(engine)
        .server("counterfoil-fixture", env!("CARGO_PKG_VERSION"))
        .meta_prefix(&prefix)
        .tools(conformance_tools())
        .tools(troublesome_tools(&store))
        .tools(effects.map(appending_tool))
        .build()
        .unwrap();
    let router = endpoint
        .router(Arc::new(Fixed), HttpOptions::default())
        .unwrap();
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .unwrap();
    let address = listener.local_addr().unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "listening on http://{address}/mcp").unwrap();
    out.flush().unwrap();
    axum::serve(listener, router).await.unwrap();
}
