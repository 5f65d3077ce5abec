use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
};
use counterfoil_core::{Pointer, Policy, PrincipalId, Reply, Timestamp, WorkspaceId};
use counterfoil_engine::{
    Authority, Caller, Denied, Engine, Entropy, Operation, TxHandler,
    store::{BoxFuture, Failure, Sql, Store, Value as SqlValue},
};
use counterfoil_mcp::{
    AuthError, Authenticate, Builder, Ending, Endpoint, HttpOptions, Output, Tool, ToolError,
    ToolRequest,
};
use counterfoil_testkit::{MemoryStore, VirtualClock};
use http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

pub const MODERN: &str = "2026-07-28";

/// The revisions a test goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    Legacy,
    Modern,
}

pub const ERAS: [Era; 2] = [Era::Legacy, Era::Modern];

/// Counts up, so that ids are the same in every run.
struct Counting(AtomicU64);

impl Entropy for Counting {
    fn fill(&self, buffer: &mut [u8]) -> bool {
        let number = self.0.fetch_add(1, Ordering::SeqCst).to_be_bytes();
        buffer.fill(0);
        let start = buffer.len() - number.len();
        buffer[start..].copy_from_slice(&number);
        true
    }
}

/// What the tools share with the test.
#[derive(Clone)]
pub struct Stage {
    /// How often `send` had its effect.
    pub sent: Arc<AtomicU64>,
    /// `send` with `hold` waits for a permit.
    pub gate: Arc<Semaphore>,
    /// A permit for every `send` that has begun to hold.
    pub holding: Arc<Semaphore>,
    /// The principal is authorized.
    pub authorized: Arc<AtomicBool>,
    /// Whether it is can be read.
    pub readable: Arc<AtomicBool>,
}

impl Authority for Stage {
    fn check(&self) -> BoxFuture<'_, Result<(), Denied>> {
        let authorized = self.authorized.load(Ordering::SeqCst);
        let readable = self.readable.load(Ordering::SeqCst);
        Box::pin(async move {
            match (readable, authorized) {
                (false, _) => Err(Denied::Unsettled),
                (true, false) => Err(Denied::Withdrawn),
                (true, true) => Ok(()),
            }
        })
    }
}

impl Stage {
    pub fn caller(&self, principal: &str) -> Caller {
        Caller {
            workspace: WorkspaceId::new("default").unwrap(),
            principal: PrincipalId::new(principal).unwrap(),
            authority: Arc::new(self.clone()),
        }
    }
}

impl Authenticate for Stage {
    fn authenticate<'a>(
        &'a self,
        headers: &'a HeaderMap,
        _: Option<SocketAddr>,
    ) -> BoxFuture<'a, Result<Caller, AuthError>> {
        Box::pin(async move {
            let retry_after = Duration::from_millis(1500);
            match headers.get("authorization").map(|v| v.to_str().unwrap()) {
                None => Err(AuthError::Missing),
                Some("Bearer limited") => Err(AuthError::RateLimited { retry_after }),
                Some("Bearer down") => Err(AuthError::Unavailable { retry_after }),
                Some("Bearer narrow") => Err(AuthError::Forbidden),
                Some("Bearer alice") => Ok(self.caller("alice")),
                Some("Bearer bob") => Ok(self.caller("bob")),
                Some(_) => Err(AuthError::Invalid),
            }
        })
    }
}

struct Insert(String);

impl TxHandler for Insert {
    fn call<'t>(
        &'t self,
        _: Option<counterfoil_core::OperationId>,
        tx: &'t mut dyn Sql,
    ) -> BoxFuture<'t, Result<Reply, Failure>> {
        Box::pin(async move {
            if self.0 == "forbidden word" {
                let error = ToolError::new(409, "not_here", "Such a note cannot be made");
                return Err(error.detail("word", "forbidden").into());
            }
            let insert = "INSERT INTO notes (body) VALUES ($1)";
            tx.execute(insert, &[SqlValue::from(self.0.as_str())])
                .await?;
            Ok(Reply::json(
                201,
                &json!({"note_id": "nt_1", "body": self.0}),
            ))
        })
    }
}

fn create_note() -> Tool {
    Tool::atomic(
        "create_note",
        "Creates a note.",
        json!({
            "type": "object",
            "properties": {"body": {"type": "string", "minLength": 1, "maxLength": 10_000}},
            "required": ["body"],
            "additionalProperties": false,
        }),
        Operation::new(1, Policy::atomic()).unwrap(),
        |request: ToolRequest| async move {
            let body = request.arguments["body"].as_str().unwrap().to_owned();
            if body == "over the plan" {
                return Err(ToolError::new(402, "plan", "The plan is used up"));
            }
            Ok(Box::new(Insert(body)) as Box<dyn TxHandler>)
        },
    )
    .title("Create a note")
    .output_schema(json!({
        "type": "object",
        "properties": {"note_id": {"type": "string"}, "body": {"type": "string"}},
        "required": ["note_id", "body"],
    }))
}

fn send(stage: &Stage) -> Tool {
    let stage = stage.clone();
    Tool::guarded(
        "send",
        "Sends a message.",
        json!({"type": "object", "properties": {
            "to": {"type": "string"},
            "n": {"type": "number"},
            "hold": {"type": "boolean"},
        }}),
        Operation::new(1, Policy::default()).unwrap(),
        move |request, _| {
            let stage = stage.clone();
            async move {
                let count = stage.sent.fetch_add(1, Ordering::SeqCst) + 1;
                if request.arguments["hold"] == json!(true) {
                    stage.holding.add_permits(1);
                    stage.gate.acquire().await.unwrap().forget();
                }
                match request.arguments["to"].as_str() {
                    Some("nobody") => Ending::Refused {
                        error: ToolError::not_found("There is no such receiver")
                            .next_action("Correct the receiver and send it again"),
                        effect_none: true,
                    },
                    Some("nowhere") => Ending::Lost { timed_out: false },
                    Some("busy") => {
                        Ending::NotApplied(ToolError::new(503, "upstream_busy", "Not now"))
                    }
                    Some("crash") => panic!("as asked"),
                    _ => Ending::Done(json!({"count": count}).into()),
                }
            }
        },
    )
    .destructive()
}

fn others() -> Vec<Tool> {
    let plain = || json!({"type": "object"});
    let redacting = Policy {
        redact: vec![Pointer::new("/key").unwrap()],
        ..Policy::default()
    };
    vec![
        Tool::guarded(
            "issue_key",
            "Issues a key.",
            plain(),
            Operation::new(1, redacting).unwrap(),
            |_, _| async { Ending::Done(json!({"id": "ak_1", "key": "s3cret"}).into()) },
        ),
        Tool::guarded(
            "large",
            "Answers with more than is stored.",
            plain(),
            Operation::new(1, Policy::default()).unwrap(),
            |_, _| async { Ending::Done(json!({"text": "x".repeat(262_144)}).into()) },
        ),
        Tool::guarded(
            "picture",
            "Draws.",
            plain(),
            Operation::new(1, Policy::default()).unwrap(),
            |_, _| async {
                Ending::Done(Output::Blocks {
                    content: vec![
                        json!({"type": "image", "data": "AA==", "mimeType": "image/png"}),
                    ],
                    structured: None,
                })
            },
        ),
        Tool::read(
            "get_operation",
            "Shows an operation.",
            json!({
                "type": "object",
                "properties": {"operation_id": {"type": "string"}},
                "required": ["operation_id"],
            }),
            |request| async move {
                match request.arguments["operation_id"].as_str().unwrap() {
                    "op_slow" => {
                        tokio::time::sleep(Duration::from_secs(3)).await;
                        Ok(json!({"slow": true}).into())
                    }
                    "op_none" => Err(ToolError::not_found("No such operation")),
                    id => Ok(json!({"operation_id": id, "arguments": request.arguments}).into()),
                }
            },
        )
        .output_schema(json!({
            "type": "object",
            "properties": {"operation_id": {"type": "string"}},
        })),
    ]
}

pub struct Server {
    pub endpoint: Endpoint,
    pub router: Router,
    pub store: Arc<MemoryStore>,
    pub clock: Arc<VirtualClock>,
    pub stage: Stage,
}

impl Server {
    pub fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub fn with(change: impl FnOnce(Builder) -> Builder) -> Self {
        let store = Arc::new(MemoryStore::new());
        Self::on(Arc::clone(&store) as Arc<dyn Store>, store, change)
    }

    pub fn on(
        used: Arc<dyn Store>,
        store: Arc<MemoryStore>,
        change: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        let clock = Arc::new(VirtualClock::new(Timestamp::from_millis(1_800_000_000_000)));
        let engine = Engine::builder(used)
            .clock(Arc::clone(&clock) as _)
            .entropy(Arc::new(Counting(AtomicU64::new(1))))
            .build();
        let stage = Stage {
            sent: Arc::new(AtomicU64::new(0)),
            gate: Arc::new(Semaphore::new(0)),
            holding: Arc::new(Semaphore::new(0)),
            authorized: Arc::new(AtomicBool::new(true)),
            readable: Arc::new(AtomicBool::new(true)),
        };
        let builder = Endpoint::builder(engine)
            .server("test", "1.2.3")
            .tool(create_note())
            .tool(send(&stage))
            .tools(others());
        let endpoint = change(builder).build().unwrap();
        let options = HttpOptions {
            allowed_hosts: vec!["mcp.example".to_owned()],
            ..HttpOptions::default()
        };
        let router = endpoint.router(Arc::new(stage.clone()), options).unwrap();
        Self {
            endpoint,
            router,
            store,
            clock,
            stage,
        }
    }

    pub fn sent(&self) -> u64 {
        self.stage.sent.load(Ordering::SeqCst)
    }

    /// Waits until one more `send` holds.
    pub async fn holds(&self) {
        self.stage.holding.acquire().await.unwrap().forget();
    }

    pub fn client(&self, era: Era) -> Client {
        Client {
            router: self.router.clone(),
            era,
            token: "alice",
            headers: Vec::new(),
        }
    }
}

#[derive(Clone)]
pub struct Client {
    pub router: Router,
    pub era: Era,
    pub token: &'static str,
    pub headers: Vec<(&'static str, String)>,
}

#[derive(Clone, Debug)]
pub struct Got {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Got {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub fn result(&self) -> Value {
        let body = self.json();
        assert!(body.get("result").is_some(), "{body}");
        body["result"].clone()
    }

    pub fn error(&self) -> Value {
        let body = self.json();
        assert!(body.get("error").is_some(), "{body}");
        body["error"].clone()
    }
}

impl Client {
    pub fn with(mut self, header: &'static str, value: &str) -> Self {
        self.headers.push((header, value.to_owned()));
        self
    }

    pub fn by(mut self, token: &'static str) -> Self {
        self.token = token;
        self
    }

    /// The headers a client of this era sends with `body`.
    pub fn request(&self, body: &[u8]) -> http::request::Builder {
        let mut request = Request::post("/mcp")
            .header("host", "127.0.0.1:8080")
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        match self.era {
            Era::Legacy => request = request.header("mcp-protocol-version", "2025-11-25"),
            Era::Modern => {
                request = request.header("mcp-protocol-version", MODERN);
                let body: Value = serde_json::from_slice(body).unwrap_or_default();
                if let Some(method) = body["method"].as_str() {
                    request = request.header("mcp-method", method);
                }
                if let Some(name) = body["params"]["name"].as_str() {
                    request = request.header("mcp-name", name);
                }
            }
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request
    }

    pub async fn raw(&self, body: impl Into<Vec<u8>>) -> Got {
        let body = body.into();
        let request = self.request(&body);
        self.send(request.body(Body::from(body)).unwrap()).await
    }

    pub async fn send(&self, request: Request<Body>) -> Got {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        Got {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    /// A request's body in this era.
    pub fn body(&self, method: &str, mut params: Value) -> Value {
        if self.era == Era::Modern {
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
        }
        json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
    }

    pub async fn ask(&self, method: &str, params: Value) -> Got {
        self.raw(self.body(method, params).to_string()).await
    }

    pub async fn call(&self, params: Value) -> Got {
        self.ask("tools/call", params).await
    }

    /// A call with a key among the arguments.
    pub async fn keyed(&self, tool: &str, key: &str, mut arguments: Value) -> Got {
        arguments["idempotency_key"] = json!(key);
        self.call(json!({"name": tool, "arguments": arguments}))
            .await
    }

    /// A call with a key in `_meta`.
    pub async fn meta_keyed(&self, tool: &str, key: &str, arguments: Value) -> Got {
        let meta = json!({"dev.counterfoil/idempotency-key": key});
        self.call(json!({"name": tool, "arguments": arguments, "_meta": meta}))
            .await
    }
}

/// A result without what may differ between a first answer and its replay.
pub fn without_meta(mut result: Value) -> Value {
    result.as_object_mut().unwrap().shift_remove("_meta");
    result
}
