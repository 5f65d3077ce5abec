use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use counterfoil_core::{Code, Json, JsonLimits, parse_json};
use counterfoil_engine::{Caller, Denied, Engine, Reason};
use serde_json::{Map, Value, json, value::RawValue};
use tokio::sync::{Semaphore, mpsc};

use crate::{
    InvalidMetaPrefix, MetaPrefix, Tool, ToolError,
    cancel::Waits,
    era::{self, Era, HeaderFacts, LEGACY, MODERN},
    framing::{FramingLimits, Id, RpcError, Unreadable, codes, error_text, result_text},
    key,
    listing::Entry,
    say::{SERVER_INFO, Voice, text_of},
};

/// Bounds of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bounds on messages.
    pub framing: FramingLimits,
    /// Deepest nesting of parameters. Default 64.
    pub depth_max: usize,
    /// Calls under way at once; beyond it a call is told `busy` before anything happens.
    /// Default 1,024.
    pub calls_max: usize,
    /// How long a reading tool, or a check before a reservation, may take. Default 60 s.
    pub read_for: Duration,
    /// How long the body of an HTTP request may take to arrive. Default 30 s.
    pub body_for: Duration,
    /// How long calls under way are waited for after the end of standard input. Default 10 s.
    pub drain_for: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            framing: FramingLimits::default(),
            depth_max: 64,
            calls_max: 1024,
            read_for: Duration::from_secs(60),
            body_for: Duration::from_secs(30),
            drain_for: Duration::from_secs(10),
        }
    }
}

/// What is wrong with an endpoint's declaration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEndpoint {
    /// A tool's name.
    #[error("`{0}` is no tool name: 1 to 128 of the characters A-Z a-z 0-9 _ - .")]
    ToolName(String),
    /// Two tools of one name.
    #[error("two tools are called `{0}`")]
    Duplicate(String),
    /// A tool's schema.
    #[error("the schema of tool `{tool}` does not do: {why}")]
    Schema {
        /// Which tool.
        tool: String,
        /// Why.
        why: String,
    },
    /// The `_meta` prefix.
    #[error(transparent)]
    MetaPrefix(#[from] InvalidMetaPrefix),
}

/// Sets an endpoint up.
pub struct Builder {
    engine: Engine,
    tools: Vec<Tool>,
    prefix: Option<String>,
    name: String,
    version: String,
    title: Option<String>,
    instructions: Option<String>,
    look_up: Option<String>,
    limits: Limits,
    limiter: Option<Limiter>,
}

/// Counts one request of a caller; an error says when to try again.
type Limiter = Arc<dyn Fn(&Caller) -> Result<(), Duration> + Send + Sync>;

impl Builder {
    /// Adds a tool.
    #[must_use]
    pub fn tool(mut self, tool: Tool) -> Self {
        self.tools.push(tool);
        self
    }

    /// Adds tools.
    #[must_use]
    pub fn tools(mut self, tools: impl IntoIterator<Item = Tool>) -> Self {
        self.tools.extend(tools);
        self
    }

    /// The prefix of our `_meta` keys, with or without its slash. Default `dev.counterfoil/`.
    #[must_use]
    pub fn meta_prefix(mut self, prefix: &str) -> Self {
        self.prefix = Some(prefix.to_owned());
        self
    }

    /// How the server calls itself. Default `counterfoil` and the version of this crate.
    #[must_use]
    pub fn server(mut self, name: &str, version: &str) -> Self {
        name.clone_into(&mut self.name);
        version.clone_into(&mut self.version);
        self
    }

    /// A title of the server for people.
    #[must_use]
    pub fn title(mut self, title: &str) -> Self {
        self.title = Some(title.to_owned());
        self
    }

    /// How a model best uses this server.
    #[must_use]
    pub fn instructions(mut self, text: &str) -> Self {
        self.instructions = Some(text.to_owned());
        self
    }

    /// Other bounds than the defaults.
    #[must_use]
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Counts a request of a caller, or says when to try again. Asked for every JSON-RPC request on
    /// stdio, and over HTTP for every one of a batch but the first, which [`crate::Authenticate`]
    /// has counted. What it refuses is told so and touches no receipt. Without it there is no limit.
    #[must_use]
    pub fn limiter<L>(mut self, limiter: L) -> Self
    where
        L: Fn(&Caller) -> Result<(), Duration> + Send + Sync + 'static,
    {
        self.limiter = Some(Arc::new(limiter));
        self
    }

    /// The tool that descriptions name for looking an operation up. Without it they name
    /// `get_operation` if there is such a tool.
    #[must_use]
    pub fn look_up_tool(mut self, name: &str) -> Self {
        self.look_up = Some(name.to_owned());
        self
    }

    /// The endpoint.
    ///
    /// # Errors
    /// [`InvalidEndpoint`] says what is wrong with the declaration.
    pub fn build(self) -> Result<Endpoint, InvalidEndpoint> {
        let prefix = match &self.prefix {
            Some(text) => MetaPrefix::new(text)?,
            None => MetaPrefix::default(),
        };
        let standard = "get_operation";
        let has = |name: &str| self.tools.iter().any(|tool| tool.name == name);
        let look_up = self
            .look_up
            .or_else(|| has(standard).then(|| standard.to_owned()));
        let mut entries = Vec::with_capacity(self.tools.len());
        let mut by_name = HashMap::new();
        for tool in self.tools {
            let entry = Arc::new(Entry::new(tool, look_up.as_deref())?);
            if by_name
                .insert(entry.tool.name.clone(), Arc::clone(&entry))
                .is_some()
            {
                return Err(InvalidEndpoint::Duplicate(entry.tool.name.clone()));
            }
            entries.push(entry);
        }
        let mut server = json!({"name": self.name, "version": self.version});
        if let Some(title) = self.title {
            server["title"] = json!(title);
        }
        let listed = entries.iter().map(|entry| entry.listed.clone()).collect();
        Ok(Endpoint {
            inner: Arc::new(Inner {
                engine: self.engine,
                by_name,
                listed,
                prefix,
                server,
                instructions: self.instructions,
                calls: Arc::new(Semaphore::new(self.limits.calls_max)),
                limits: self.limits,
                limiter: self.limiter,
                waits: Arc::new(Waits::new()),
            }),
        })
    }
}

/// An MCP server for our own tools, over HTTP ([`Endpoint::router`]) and stdio
/// ([`Endpoint::serve_stdio`]). Cheap to clone.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) engine: Engine,
    pub(crate) by_name: HashMap<String, Arc<Entry>>,
    listed: Vec<Value>,
    pub(crate) prefix: MetaPrefix,
    pub(crate) server: Value,
    instructions: Option<String>,
    pub(crate) calls: Arc<Semaphore>,
    pub(crate) limits: Limits,
    limiter: Option<Limiter>,
    pub(crate) waits: Arc<Waits<WaitKey>>,
}

/// Workspace, principal, session and request: who waits for what over HTTP.
pub(crate) type WaitKey = (String, String, String, Id);

/// A request, its parameters read strictly.
pub(crate) struct Inbound {
    pub(crate) id: Id,
    pub(crate) method: String,
    pub(crate) params: Json,
    /// Names of further members of its envelope.
    pub(crate) others: Vec<String>,
}

/// Where a request came from.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) caller: Caller,
    /// The rate limit has counted it already.
    pub(crate) counted: bool,
    /// `None` on stdio.
    pub(crate) headers: Option<Arc<HeaderFacts>>,
    /// Where progress goes, if the transport can carry it.
    pub(crate) progress: Option<mpsc::Sender<Bytes>>,
}

/// An answer on its way out.
pub(crate) struct Outgoing {
    pub(crate) text: Bytes,
    pub(crate) http_status: u16,
}

impl Endpoint {
    /// Sets an endpoint up on `engine`.
    #[must_use]
    pub fn builder(engine: Engine) -> Builder {
        Builder {
            engine,
            tools: Vec::new(),
            prefix: None,
            name: "counterfoil".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            title: None,
            instructions: None,
            look_up: None,
            limits: Limits::default(),
            limiter: None,
        }
    }

    /// Reads the parameters strictly: no duplicate keys, no lone surrogates, bounded depth.
    pub(crate) fn params(&self, raw: Option<&RawValue>) -> Result<Json, RpcError> {
        let limits = JsonLimits {
            depth_max: self.inner.limits.depth_max,
        };
        let wrong = |what: String| {
            RpcError::new(codes::INVALID_PARAMS, format!("Invalid params: {what}"))
                .with_http_status(400)
        };
        match raw.map(|raw| parse_json(raw.get().as_bytes(), limits)) {
            None => Ok(Json::Object(Vec::new())),
            Some(Ok(object @ Json::Object(_))) => Ok(object),
            Some(Ok(_)) => Err(wrong("they must be an object".to_owned())),
            Some(Err(malformed)) => Err(wrong(malformed.to_string())),
        }
    }

    pub(crate) fn inbound(
        &self,
        request: crate::framing::Request<'_>,
    ) -> Result<Inbound, Unreadable> {
        match self.params(request.params) {
            Ok(params) => Ok(Inbound {
                id: request.id,
                method: request.method.into_owned(),
                params,
                others: request.others,
            }),
            Err(error) => Err(Unreadable {
                id: Some(request.id),
                error,
            }),
        }
    }

    /// Answers a request.
    pub(crate) async fn answer(&self, inbound: Inbound, context: Context) -> Outgoing {
        let id = inbound.id.clone();
        match self.dispatch(inbound, context).await {
            Ok(result) => Outgoing {
                text: result_text(&id, &text_of(&result)),
                http_status: 200,
            },
            Err(error) => Outgoing {
                text: error_text(Some(&id), &error),
                http_status: error.http_status,
            },
        }
    }

    async fn dispatch(&self, inbound: Inbound, context: Context) -> Result<Value, RpcError> {
        let method = inbound.method.as_str();
        let counted = self.count(&context);
        let era = era::of(method, &inbound.params, context.headers.as_deref())?;
        if let Err(retry_after) = counted {
            return self.limited(era, &inbound, retry_after);
        }
        // Its authority was looked at before the body came, or when a stream began. A tool call
        // looks again by itself; the rest is no secret, so that only a plain no counts.
        if method != "tools/call"
            && context.caller.authority.check().await == Err(Denied::Withdrawn)
        {
            return Err(withdrawn());
        }
        match (era, method) {
            (Era::Legacy, "initialize") => self.initialize(&inbound.params),
            (Era::Legacy, "ping") => Ok(json!({})),
            (Era::Modern, "server/discover") => Ok(self.discover()),
            (_, "tools/list") => self.list(era, &inbound.params),
            (_, "tools/call") => self.call(era, inbound, context).await,
            _ => {
                let status = match era {
                    // There a 404 would mean that the session is over.
                    Era::Legacy => 200,
                    Era::Modern => 404,
                };
                Err(RpcError::new(codes::METHOD_NOT_FOUND, "Method not found")
                    .with_http_status(status))
            }
        }
    }

    fn count(&self, context: &Context) -> Result<(), Duration> {
        match &self.inner.limiter {
            Some(limiter) if !context.counted => limiter(&context.caller),
            Some(_) | None => Ok(()),
        }
    }

    /// Too many requests: a tool error for a tool call, else a protocol error.
    fn limited(
        &self,
        era: Era,
        inbound: &Inbound,
        retry_after: Duration,
    ) -> Result<Value, RpcError> {
        const MESSAGE: &str = "Too many requests; nothing was done";
        let code = Code::RateLimited.as_str();
        let millis = u64::try_from(retry_after.as_millis())
            .unwrap_or(u64::MAX)
            .max(1);
        if inbound.method == "tools/call" {
            let error = ToolError::new(429, code, MESSAGE).detail("retry_after_ms", millis);
            let dialect = key::dialect(&inbound.params, &self.inner.prefix);
            return Ok(self.before_running(era, dialect, error));
        }
        let data = json!({
            "code": code,
            "retryable": true,
            "retry_after_ms": millis,
            "next_action": "Wait, then send it again",
        });
        Err(RpcError::new(codes::INVALID_REQUEST, MESSAGE).with_data(data))
    }

    fn capabilities(&self, era: Era) -> Value {
        let extension = json!({
            self.inner.prefix.key("idempotency"): {
                "key": self.inner.prefix.key("idempotency-key"),
            }
        });
        match era {
            Era::Legacy => json!({"tools": {}, "experimental": extension}),
            Era::Modern => json!({"tools": {}, "extensions": extension}),
        }
    }

    fn initialize(&self, params: &Json) -> Result<Value, RpcError> {
        let Some(Json::String(wanted)) = params.get("protocolVersion") else {
            let message = "Invalid params: `protocolVersion` must be a string";
            return Err(RpcError::new(codes::INVALID_PARAMS, message));
        };
        let known = LEGACY.into_iter().find(|version| version == wanted);
        let mut result = json!({
            "protocolVersion": known.unwrap_or(LEGACY[0]),
            "capabilities": self.capabilities(Era::Legacy),
            "serverInfo": self.inner.server,
        });
        if let Some(instructions) = &self.inner.instructions {
            result["instructions"] = json!(instructions);
        }
        Ok(result)
    }

    fn discover(&self) -> Value {
        let mut result = json!({
            "resultType": "complete",
            "supportedVersions": [MODERN],
            "capabilities": self.capabilities(Era::Modern),
        });
        if let Some(instructions) = &self.inner.instructions {
            result["instructions"] = json!(instructions);
        }
        self.cacheable(result)
    }

    fn list(&self, era: Era, params: &Json) -> Result<Value, RpcError> {
        if params
            .get("cursor")
            .is_some_and(|cursor| *cursor != Json::Null)
        {
            let message = "Invalid params: there is no such cursor; the list has one page";
            return Err(RpcError::new(codes::INVALID_PARAMS, message));
        }
        let tools = Value::Array(self.inner.listed.clone());
        Ok(match era {
            Era::Legacy => json!({"tools": tools}),
            Era::Modern => self.cacheable(json!({"resultType": "complete", "tools": tools})),
        })
    }

    /// The tools are the same for everybody, for as long as the process lives.
    fn cacheable(&self, mut result: Value) -> Value {
        result["ttlMs"] = json!(60_000);
        result["cacheScope"] = json!("public");
        let mut meta = Map::new();
        meta.insert(SERVER_INFO.to_owned(), self.inner.server.clone());
        result["_meta"] = Value::Object(meta);
        result
    }

    pub(crate) fn voice(&self, era: Era) -> Voice<'_> {
        Voice {
            prefix: &self.inner.prefix,
            era,
            server: &self.inner.server,
        }
    }
}

fn withdrawn() -> RpcError {
    let reason = Reason::Denied;
    let data = json!({
        "code": reason.code().as_str(),
        "retryable": reason.is_retryable(),
        "next_action": reason.next_action(),
    });
    RpcError::new(codes::INVALID_REQUEST, reason.message()).with_data(data)
}
