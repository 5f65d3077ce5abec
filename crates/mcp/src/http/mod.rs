//! Streamable HTTP: one route, and where to find out about its credentials.

pub(crate) mod guard;
pub(crate) mod stream;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request, State},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use bytes::Bytes;
use counterfoil_core::Code;
use counterfoil_engine::Caller;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::{Value, json};

use crate::{
    AuthError, Authenticate, Endpoint,
    endpoint::{Context, Inbound, Outgoing, WaitKey},
    era::{self, HeaderFacts, LEGACY},
    framing::{Incoming, Message, Notification, RpcError, Unreadable, codes, error_text, read},
    key::names_a_key,
    say::whole_seconds,
    stdio::{cancelled_id, joined},
};
use guard::{Accepts, Guard};

/// What the HTTP side needs to know.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// Host names that clients may address beside the loopback ones. An entry with a port
    /// (`mcp.example:8443`) means that port only, one without means all. No wildcards.
    pub allowed_hosts: Vec<String>,
    /// Origins (`https://app.example`) that web pages may call from, beside those of the hosts
    /// above. Case, a slash at the end and the usual port do not count. No wildcards.
    pub allowed_origins: Vec<String>,
    /// The address clients know this endpoint by, such as `https://mcp.example/mcp`. Without it
    /// the metadata names the host that was asked.
    pub public_url: Option<String>,
    /// Authorization servers whose tokens [`Authenticate`] takes. Named in the metadata.
    pub authorization_servers: Vec<String>,
}

impl HttpOptions {
    /// Whether [`Endpoint::router`] takes them.
    ///
    /// # Errors
    /// As [`Endpoint::router`].
    pub fn check(&self) -> Result<(), InvalidHttpOptions> {
        Guard::new(self).map(drop)
    }
}

/// What is wrong with [`HttpOptions`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHttpOptions {
    /// An entry of the allowed hosts.
    #[error("`{entry}` cannot be an allowed host: {why}")]
    Host {
        /// The entry.
        entry: String,
        /// Why.
        why: &'static str,
    },
    /// An entry of the allowed origins.
    #[error("`{entry}` cannot be an allowed origin: {why}")]
    Origin {
        /// The entry.
        entry: String,
        /// Why.
        why: &'static str,
    },
}

const METADATA: &str = "/.well-known/oauth-protected-resource";
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

struct Shared {
    endpoint: Endpoint,
    authenticate: Arc<dyn Authenticate>,
    guard: Guard,
    options: HttpOptions,
}

impl Endpoint {
    /// Routes for `/mcp` and the metadata of its protection (RFC 9728). Every request is checked
    /// for its host and origin, then authenticated, before its body is read.
    ///
    /// # Errors
    /// [`InvalidHttpOptions`] names the entry that can match nothing, or too much.
    pub fn router(
        &self,
        authenticate: Arc<dyn Authenticate>,
        options: HttpOptions,
    ) -> Result<Router, InvalidHttpOptions> {
        let shared = Arc::new(Shared {
            endpoint: self.clone(),
            authenticate,
            guard: Guard::new(&options)?,
            options,
        });
        Ok(Router::new()
            .route("/mcp", any(serve))
            .route(METADATA, get(metadata))
            .route(&format!("{METADATA}/mcp"), get(metadata))
            .with_state(shared))
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if let Err(why) = shared.guard.check(request.headers(), request.uri()) {
        return plain(StatusCode::FORBIDDEN, Code::Forbidden, why);
    }
    // No stream is offered (GET), and no session needs an end (DELETE).
    if request.method() != Method::POST {
        let why = "this endpoint takes POST only";
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, Code::MethodNotAllowed, why);
        let allow = HeaderValue::from_static("POST");
        response.headers_mut().insert(header::ALLOW, allow);
        return response;
    }
    let remote = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let remote = remote.map(|ConnectInfo(address)| *address);
    let authenticate = &shared.authenticate;
    let caller = match authenticate.authenticate(request.headers(), remote).await {
        Ok(caller) => caller,
        Err(error) => {
            return shared.unauthenticated(&error, request.headers(), request.uri());
        }
    };
    if let Err(response) = guard::content_type(request.headers()) {
        return *response;
    }
    let Some(accepts) = Accepts::of(request.headers()) else {
        let why = "accept application/json, text/event-stream or both";
        return plain(StatusCode::NOT_ACCEPTABLE, Code::MalformedRequest, why);
    };
    let (parts, body) = request.into_parts();
    let limits = shared.endpoint.inner.limits;
    let body = match whole(body, limits.framing.message_bytes_max, limits.body_for).await {
        Ok(body) => body,
        Err(response) => return *response,
    };
    let exchange = Exchange {
        shared,
        caller,
        headers: Arc::new(facts(&parts.headers, &parts.uri)),
        accepts,
    };
    exchange.body(&body).await
}

/// The body, of at most `size` bytes, all of them within `body_for`.
///
/// # Errors
/// The refusal: 413, 408, or 400 if it broke off.
pub async fn whole(body: Body, size: usize, body_for: Duration) -> Result<Bytes, Box<Response>> {
    let collected = Limited::new(body, size).collect();
    let refused = |status, code, why: &str| Err(Box::new(plain(status, code, why)));
    match tokio::time::timeout(body_for, collected).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let why = format!("the body is larger than {size} bytes");
            refused(StatusCode::PAYLOAD_TOO_LARGE, Code::TooLarge, &why)
        }
        Ok(Err(error)) if timed_out(error.as_ref()) => Err(Box::new(slow())),
        Ok(Err(_)) => {
            let why = "the body broke off";
            refused(StatusCode::BAD_REQUEST, Code::MalformedRequest, why)
        }
        Err(_) => Err(Box::new(slow())),
    }
}

/// Whether a body ended because the server that reads it would wait no longer.
fn timed_out(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn slow() -> Response {
    let data = json!({
        "code": Code::MalformedRequest.as_str(),
        "retryable": true,
        "next_action": "Send the same call with the same key",
    });
    let why = "the body did not arrive in time; nothing was done";
    with_facts(StatusCode::REQUEST_TIMEOUT, data, why)
}

/// One authenticated request.
struct Exchange {
    shared: Arc<Shared>,
    caller: Caller,
    headers: Arc<HeaderFacts>,
    accepts: Accepts,
}

impl Exchange {
    async fn body(self, body: &Bytes) -> Response {
        let endpoint = &self.shared.endpoint;
        match read(body, endpoint.inner.limits.framing) {
            Err(unreadable) => refuse(&unreadable),
            Ok(Incoming::Single(Message::Request(request))) => match endpoint.inbound(request) {
                Ok(inbound) => self.request(inbound).await,
                Err(unreadable) => refuse(&unreadable),
            },
            Ok(Incoming::Single(Message::Notification(notification))) => {
                self.notified(&notification);
                StatusCode::ACCEPTED.into_response()
            }
            Ok(Incoming::Single(Message::Response(_))) => StatusCode::ACCEPTED.into_response(),
            Ok(Incoming::Batch(messages)) => self.batch(messages).await,
        }
    }

    /// `counted`: the first request is counted with the HTTP request it came in.
    fn context(&self, counted: bool) -> Context {
        Context {
            caller: self.caller.clone(),
            counted,
            headers: Some(Arc::clone(&self.headers)),
            progress: None,
        }
    }

    /// Who waits: ids are only unique to one client, and a session tells clients apart.
    fn wait_key(&self, id: crate::framing::Id) -> Option<WaitKey> {
        let session = self.headers.session.clone()?;
        Some((
            self.caller.workspace.as_str().to_owned(),
            self.caller.principal.as_str().to_owned(),
            session,
            id,
        ))
    }

    fn notified(&self, notification: &Notification<'_>) {
        if let Some(key) = cancelled_id(notification).and_then(|id| self.wait_key(id)) {
            self.shared.endpoint.inner.waits.stop(&key);
        }
    }

    async fn request(self, inbound: Inbound) -> Response {
        let endpoint = self.shared.endpoint.clone();
        let starts = inbound.method == "initialize";
        let wants_progress = inbound.method == "tools/call"
            && inbound
                .params
                .get("_meta")
                .is_some_and(|meta| meta.get("progressToken").is_some());
        if wants_progress && self.accepts.stream {
            // What is refused before it starts has its own status, so that comes first.
            let checked = era::of(&inbound.method, &inbound.params, Some(&self.headers));
            if let Err(error) = checked {
                return refuse(&Unreadable {
                    id: Some(inbound.id),
                    error,
                });
            }
            let wait_key = self.wait_key(inbound.id.clone());
            return stream::serve(endpoint, inbound, self.context(true), wait_key);
        }
        let wait_key = self.wait_key(inbound.id.clone());
        let context = self.context(true);
        let answer = endpoint.answer(inbound, context);
        let outgoing = match wait_key {
            None => answer.await,
            Some(key) => {
                let (_open, stopped) = endpoint.inner.waits.open(key);
                tokio::select! {
                    biased;
                    // Cancelled: nothing more is said for this id.
                    Ok(()) = stopped => return StatusCode::ACCEPTED.into_response(),
                    outgoing = answer => outgoing,
                }
            }
        };
        let mut response = self.written(outgoing);
        if starts && response.status() == StatusCode::OK {
            self.shared.name_session(response.headers_mut());
        }
        response
    }

    fn written(&self, outgoing: Outgoing) -> Response {
        let status =
            StatusCode::from_u16(outgoing.http_status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if self.accepts.json || status != StatusCode::OK {
            json_response(status, outgoing.text)
        } else {
            stream::single(&outgoing.text)
        }
    }

    /// Only revision 2025-03-26 has batches; it is what a request without a version speaks.
    async fn batch(self, messages: Vec<Result<Message<'_>, Unreadable>>) -> Response {
        let version = self.headers.version.as_deref();
        if version.is_some_and(|version| version != LEGACY[2]) {
            let error = RpcError::new(
                codes::INVALID_REQUEST,
                "Invalid request: this revision has no batches; send one message at a time",
            );
            return json_response(StatusCode::BAD_REQUEST, error_text(None, &error));
        }
        let endpoint = &self.shared.endpoint;
        let mut answers = Vec::new();
        let mut counted = true;
        for message in messages {
            match message {
                Err(unreadable) => {
                    answers.push(error_text(unreadable.id.as_ref(), &unreadable.error));
                }
                Ok(Message::Request(request)) => match endpoint.inbound(request) {
                    Ok(inbound) => {
                        let context = self.context(std::mem::take(&mut counted));
                        answers.push(endpoint.answer(inbound, context).await.text);
                    }
                    Err(unreadable) => {
                        answers.push(error_text(unreadable.id.as_ref(), &unreadable.error));
                    }
                },
                Ok(Message::Notification(notification)) => self.notified(&notification),
                Ok(Message::Response(_)) => {}
            }
        }
        if answers.is_empty() {
            return StatusCode::ACCEPTED.into_response();
        }
        json_response(StatusCode::OK, joined(&answers))
    }
}

fn facts(headers: &HeaderMap, uri: &http::Uri) -> HeaderFacts {
    let text = |name: &str| {
        let value = headers.get(name)?.to_str().ok()?;
        Some(value.trim().to_owned())
    };
    let params = headers
        .iter()
        .filter(|(name, _)| name.as_str().starts_with("mcp-param-"))
        .take(64)
        .filter_map(|(name, value)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        });
    HeaderFacts {
        version: text("mcp-protocol-version"),
        method: text("mcp-method"),
        name: text("mcp-name"),
        key: key_outside(headers, uri),
        params: params.collect(),
        session: text("mcp-session-id"),
    }
}

/// Where a key stands that no MCP call can have: in a header or in the query.
fn key_outside(headers: &HeaderMap, uri: &http::Uri) -> Option<&'static str> {
    let is_key = |name: &str| {
        let bare = name.strip_prefix("x-").unwrap_or(name);
        names_a_key(bare)
    };
    if headers.keys().any(|name| is_key(name.as_str())) {
        return Some("in an HTTP header of an MCP call");
    }
    let mut parameters = uri.query().unwrap_or_default().split('&');
    parameters
        .any(|parameter| names_a_key(parameter.split('=').next().unwrap_or_default()))
        .then_some("in the query of an MCP call")
}

/// One message as the body of a response.
pub fn json_response(status: StatusCode, text: Bytes) -> Response {
    let kind = HeaderValue::from_static("application/json");
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// What is told about a text that is no message.
#[must_use]
pub fn refuse(unreadable: &Unreadable) -> Response {
    let status = StatusCode::from_u16(unreadable.error.http_status);
    json_response(
        status.unwrap_or(StatusCode::BAD_REQUEST),
        error_text(unreadable.id.as_ref(), &unreadable.error),
    )
}

/// A refusal of HTTP's own, in the shape of a JSON-RPC error without an id.
#[must_use]
pub fn plain(status: StatusCode, code: Code, why: &str) -> Response {
    with_facts(status, json!({"code": code.as_str()}), why)
}

fn with_facts(status: StatusCode, data: Value, why: &str) -> Response {
    let error = RpcError::new(codes::INVALID_REQUEST, why.to_owned()).with_data(data);
    json_response(status, error_text(None, &error))
}

/// A refusal of HTTP's own that ends by itself.
#[must_use]
pub fn for_now(status: StatusCode, code: Code, why: &str, retry_after: Duration) -> Response {
    let millis = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
    let data = json!({
        "code": code.as_str(),
        "retryable": true,
        "retry_after_ms": millis.max(1),
        "next_action": "Wait, then send the same call with the same key",
    });
    let mut response = with_facts(status, data, why);
    let seconds = HeaderValue::from(whole_seconds(retry_after));
    response.headers_mut().insert(header::RETRY_AFTER, seconds);
    response
}

async fn metadata(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if let Err(why) = shared.guard.check(request.headers(), request.uri()) {
        return plain(StatusCode::FORBIDDEN, Code::Forbidden, why);
    }
    let mut facts = json!({
        "resource": shared.resource(request.headers(), request.uri()),
        "bearer_methods_supported": ["header"],
        "resource_name": shared.endpoint.inner.server["name"],
    });
    if !shared.options.authorization_servers.is_empty() {
        facts["authorization_servers"] = json!(shared.options.authorization_servers);
    }
    json_response(StatusCode::OK, Bytes::from(facts.to_string()))
}

impl Shared {
    /// The address of `/mcp`: as configured, else at the (allowed) host that was asked.
    fn resource(&self, headers: &HeaderMap, uri: &http::Uri) -> String {
        match &self.options.public_url {
            Some(url) => url.clone(),
            None => format!(
                "http://{}/mcp",
                guard::host(headers, uri).unwrap_or("localhost")
            ),
        }
    }

    fn unauthenticated(&self, error: &AuthError, headers: &HeaderMap, uri: &http::Uri) -> Response {
        let why = error.to_string();
        match error {
            AuthError::Missing => self.challenged("", &why, headers, uri),
            AuthError::Invalid => self.challenged("error=\"invalid_token\", ", &why, headers, uri),
            AuthError::Forbidden => plain(StatusCode::FORBIDDEN, Code::Forbidden, &why),
            AuthError::RateLimited { retry_after } => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                for_now(status, Code::RateLimited, &why, *retry_after)
            }
            AuthError::Unavailable { retry_after } => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                for_now(status, Code::Unavailable, &why, *retry_after)
            }
        }
    }

    fn challenged(
        &self,
        problem: &str,
        why: &str,
        headers: &HeaderMap,
        uri: &http::Uri,
    ) -> Response {
        let mut response = plain(StatusCode::UNAUTHORIZED, Code::Unauthorized, why);
        let resource = self.resource(headers, uri);
        let origin = resource.trim_end_matches("/mcp");
        let challenge = format!("Bearer {problem}resource_metadata=\"{origin}{METADATA}/mcp\"");
        if let Ok(challenge) = HeaderValue::try_from(challenge) {
            let headers = response.headers_mut();
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }

    /// Names a session, so that a cancel can be told apart from another client's. Nothing is kept:
    /// any name is taken, and none ever ends.
    fn name_session(&self, headers: &mut HeaderMap) {
        let mut random = [0; 16];
        if !self.endpoint.inner.engine.random(&mut random) {
            return;
        }
        let name: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        if let Ok(name) = HeaderValue::try_from(name) {
            headers.insert(SESSION, name);
        }
    }
}
