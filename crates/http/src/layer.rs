use std::{
    collections::HashMap,
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{body::Body, extract::Request, response::Response};
use bytes::Bytes;
use counterfoil_core::{Code, Pointer};
use counterfoil_engine::{
    Answer, Attempt, Call, Caller, Engine, Lookup, Operation, Outcome, Reason, Refusal,
    store::BoxFuture,
};
use http::request::Parts;
use tower::{Layer, Service, ServiceExt as _};

use crate::{
    FingerprintBy, Problem, Rest,
    body::collect,
    headers::{IDEMPOTENCY_KEY, is_mutation, key_of, misplaced_key, wait_of},
    mutation::{Route, route_of},
    reply::{Overflow, outcome_of},
};

/// Largest response held in memory unless told otherwise, in bytes: 8 MiB.
const RESPONSE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How the keyed calls of a route are kept.
#[derive(Clone, Debug)]
pub struct KeyedRoute {
    operation: Arc<Operation>,
    by: FingerprintBy,
    key_required: bool,
}

impl KeyedRoute {
    /// Kept as `operation` says; requests are compared byte for byte.
    #[must_use]
    pub const fn new(operation: Arc<Operation>) -> Self {
        Self {
            operation,
            by: FingerprintBy::RawBytes,
            key_required: false,
        }
    }

    /// Bodies are compared as JSON values, without the fields the pointers name.
    #[must_use]
    pub fn canonical_json(mut self, except: impl IntoIterator<Item = Pointer>) -> Self {
        self.by = FingerprintBy::CanonicalJson {
            except: except.into_iter().collect(),
        };
        self
    }

    /// A call without a key is refused (400 `idempotency_key_required`) instead of simply run.
    #[must_use]
    pub const fn require_key(mut self) -> Self {
        self.key_required = true;
        self
    }
}

/// Makes any axum router honour `Idempotency-Key` on POST, PATCH, PUT and DELETE.
///
/// ```text
/// let app = Router::new()
///     .route("/transfers", post(transfer))
///     .route_layer(IdempotencyLayer::new(engine, operation))   // inner
///     .route_layer(middleware::from_fn(authenticate));         // outer: puts the Caller there
/// ```
///
/// - A call with a key runs once. The handler runs on the engine's task: a caller that goes away
///   stops nothing, and its retry gets the first answer. Without the header a mutation simply
///   runs, each time; other methods always pass through. A key in another place, such as
///   `X-Idempotency-Key` or the query, is refused (422 `invalid_key`) and not ignored.
/// - The [`Caller`] is a request extension that the application's authentication put there;
///   without one a keyed call is refused with 401.
/// - The target is the method, the route's template and the *decoded* path parameters, so that
///   `nd_1` and `nd%5F1` are one. Apply it with `route_layer`: what no route matches reserves
///   nothing (the layer also refuses to reserve for a request without a matched path, and answers
///   404 to a keyed call whose path has an empty segment). Services
///   mounted with `nest_service` have no matched path of their own and pass through: put the
///   layer inside them.
/// - The handler finds its [`Attempt`] among the request's extensions, and passes its fence to
///   `Sql::mark_committed` in the transaction of its effect.
/// - Answers 2xx, 3xx and definite judgements (400, 404, 405, 409, 410, 412, 413, 415, 422, …) are
///   kept and replayed. 401, 402 and 403 of the handler say that it did not let the caller in
///   before doing anything: never kept. What 408, 429 and 5xx prove is the policy's `on_error`;
///   a panic or a response that breaks off proves nothing: the outcome is unknown.
/// - Put compression outside of it, and no `Set-Cookie` relies on a replay: cookies reach the
///   first caller only.
#[derive(Clone)]
pub struct IdempotencyLayer {
    shared: Arc<Shared>,
}

#[derive(Clone)]
struct Shared {
    engine: Engine,
    standard: KeyedRoute,
    routes: HashMap<String, KeyedRoute>,
    rest: Rest,
    response_bytes_max: usize,
}

impl IdempotencyLayer {
    /// Every route is kept as `operation` says, unless [`IdempotencyLayer::route`] names it.
    #[must_use]
    pub fn new(engine: Engine, operation: Arc<Operation>) -> Self {
        Self {
            shared: Arc::new(Shared {
                engine,
                standard: KeyedRoute::new(operation),
                routes: HashMap::new(),
                rest: Rest::default(),
                response_bytes_max: RESPONSE_BYTES_MAX,
            }),
        }
    }

    /// Keeps one route differently. `target` is the method and the template, as in
    /// `POST /notes/{id}`.
    #[must_use]
    pub fn route(mut self, target: impl Into<String>, route: KeyedRoute) -> Self {
        Arc::make_mut(&mut self.shared)
            .routes
            .insert(target.into(), route);
        self
    }

    /// Keeps every route that is not named as `route` says.
    #[must_use]
    pub fn standard(mut self, route: KeyedRoute) -> Self {
        Arc::make_mut(&mut self.shared).standard = route;
        self
    }

    /// How answers are said, and how large a request may be.
    #[must_use]
    pub fn rest(mut self, rest: Rest) -> Self {
        Arc::make_mut(&mut self.shared).rest = rest;
        self
    }

    /// Largest response of a keyed call that is held in memory, in bytes; default 8 MiB, never
    /// less than the operation's largest stored result. A larger one cannot be handed over: the
    /// call happened, and is answered 409 `idempotency_result_unavailable`.
    #[must_use]
    pub fn response_bytes_max(mut self, bytes: usize) -> Self {
        Arc::make_mut(&mut self.shared).response_bytes_max = bytes;
        self
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency {
            shared: Arc::clone(&self.shared),
            inner,
        }
    }
}

/// What [`IdempotencyLayer`] makes of a service.
#[derive(Clone)]
pub struct Idempotency<S> {
    shared: Arc<Shared>,
    inner: S,
}

impl<S> Service<Request> for Idempotency<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // `oneshot` waits for the inner service on the clone that is called.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let inner = self.inner.clone();
        if !is_mutation(request.method()) {
            return Box::pin(inner.oneshot(request));
        }
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let rest = shared.rest.clone();
            shared
                .mutation(inner, request)
                .await
                .or_else(|problem| Ok(rest.refuse(problem)))
        })
    }
}

impl Shared {
    async fn mutation<S>(&self, inner: S, request: Request) -> Result<Response, Problem>
    where
        S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
    {
        let (mut parts, body) = request.into_parts();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        // One in a wrong place is refused like a malformed one, not ignored.
        let keyed = parts.headers.contains_key(IDEMPOTENCY_KEY)
            || misplaced_key(&parts.headers, &query).is_some();
        if !keyed && !self.requires_keys() {
            return pass(inner, Request::from_parts(parts, body)).await;
        }
        let route = route_of(&mut parts).await;
        let kept = match &route {
            Ok(Some(route)) => self.kept(route),
            Ok(None) | Err(_) => &self.standard,
        };
        let route = match route {
            Ok(Some(route)) if keyed || kept.key_required => route,
            Err(problem) if keyed || kept.key_required => return Err(problem),
            // No key, or no route: nothing is reserved for what does not exist.
            Ok(_) | Err(_) => return pass(inner, Request::from_parts(parts, body)).await,
        };
        let caller = parts.extensions.get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Problem::new(Code::Unauthorized))?;
        let key = key_of(&parts.headers, &query)?
            .ok_or_else(|| Problem::new(Code::IdempotencyKeyRequired))?;
        let wait = wait_of(&parts.headers);
        let body = collect(body, self.rest.body_bytes_max).await?;
        let fingerprint = kept.by.of(&query, &body)?;
        let policy = &kept.operation.policy;
        let wait_max = policy.wait_max;
        let bytes_max = self
            .response_bytes_max
            .max(policy.result_bytes_max.saturating_add(1));
        let call = Call {
            identity: caller.identity(route.target, key),
            fingerprint,
            operation: Arc::clone(&kept.operation),
            authority: caller.authority,
            wait,
            inputs: None,
        };
        let overflow = Overflow::default();
        let answer = match self.engine.look_up(call).await {
            Lookup::Answered(answer) => answer,
            Lookup::Ready(ready) => {
                let overflow = overflow.clone();
                ready
                    .run(move |attempt| execute(inner, parts, body, attempt, bytes_max, overflow))
                    .await
            }
        };
        let answer = if overflow.happened() {
            without_body(answer)
        } else {
            answer
        };
        Ok(self
            .rest
            .respond_waited(answer, fingerprint.rule, wait, wait_max))
    }

    fn requires_keys(&self) -> bool {
        self.standard.key_required || self.routes.values().any(|route| route.key_required)
    }

    fn kept(&self, route: &Route) -> &KeyedRoute {
        self.routes
            .get(&route.target.operation)
            .unwrap_or(&self.standard)
    }
}

async fn pass<S>(inner: S, request: Request) -> Result<Response, Problem>
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    match inner.oneshot(request).await {
        Ok(response) => Ok(response),
        Err(never) => match never {},
    }
}

/// One execution of the handler, on the engine's task.
async fn execute<S>(
    inner: S,
    parts: Parts,
    body: Bytes,
    attempt: Attempt,
    bytes_max: usize,
    overflow: Overflow,
) -> Outcome
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    let mut request = Request::from_parts(parts, Body::from(body));
    request.extensions_mut().insert(attempt);
    match inner.oneshot(request).await {
        Ok(response) => outcome_of(response, bytes_max, overflow).await,
        Err(never) => match never {},
    }
}

/// An answer that was too large to be read whole is never handed over in part.
fn without_body(answer: Answer) -> Answer {
    match answer {
        Answer::Ran { operation_id, .. } | Answer::NotRecorded { operation_id, .. } => {
            Answer::Refused(Refusal {
                reason: Reason::ResultUnavailable,
                operation_id: Some(operation_id),
            })
        }
        Answer::Failed { .. } => Reason::Internal(
            "a failure answer was larger than the layer's response bound".to_owned(),
        )
        .into(),
        other @ (Answer::Replayed { .. } | Answer::Asked { .. } | Answer::Refused(_)) => other,
    }
}
