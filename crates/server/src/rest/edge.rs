use std::net::SocketAddr;

use axum::{
    extract::{ConnectInfo, FromRequestParts, MatchedPath, Path, Request, State},
    http::{header, request::Parts},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use counterfoil_core::Code;
use counterfoil_http::Problem;
use tracing::{Instrument as _, field};

use super::refusal::problem_of_store;
use crate::{AgentKey, Role, gate::Refused, state::Shared};

/// The authenticated principal of a request.
#[derive(Clone)]
pub(super) struct Principal(pub(super) AgentKey);

/// A principal with the role admin; everybody else is refused before the key is looked at.
pub(super) struct Admin(pub(super) AgentKey);

/// Authenticates, limits, and puts [`Principal`] and the engine's caller among the extensions.
pub(super) async fn authenticate(
    State(shared): State<Shared>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut lines = request.headers().get_all(header::AUTHORIZATION).iter();
    // Of several, a proxy in front may have checked another one than the one taken here.
    let header = match (lines.next(), lines.next()) {
        (Some(only), None) => only.to_str().ok(),
        (None, _) | (Some(_), Some(_)) => None,
    };
    let remote = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let remote = remote.map(|ConnectInfo(address)| address.ip());
    match shared.gate.admit(header, remote).await {
        Ok((key, read_at)) => {
            let caller = shared.gate.caller(&key, read_at);
            let extensions = request.extensions_mut();
            extensions.insert(caller);
            extensions.insert(Principal(key));
            next.run(request).await
        }
        Err(refused) => shared.rest.refuse(problem_of_refused(&shared, refused)),
    }
}

fn problem_of_refused(shared: &Shared, refused: Refused) -> Problem {
    match refused {
        Refused::Unauthorized => Problem::new(Code::Unauthorized),
        Refused::RateLimited(wait) => Problem::new(Code::RateLimited).retry_after(Some(wait)),
        Refused::Store(error) => problem_of_store(&shared.rest, error),
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Principal {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let found = parts.extensions.get::<Self>().cloned();
        found.ok_or_else(|| Problem::new(Code::Unauthorized).into_response())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Admin {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let Principal(key) = Principal::from_request_parts(parts, state).await?;
        match key.role {
            Role::Admin => Ok(Self(key)),
            Role::Member => Err(Problem::new(Code::Forbidden)
                .detail("Only an agent key with the role admin may do this.")
                .into_response()),
        }
    }
}

/// The decoded `{id}` of the path.
pub(super) struct Id(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(id)) => Ok(Self(id)),
            Err(_) => Err(Problem::new(Code::MalformedRequest)
                .detail("The path is not percent-encoded UTF-8.")
                .into_response()),
        }
    }
}

struct InFlight;

impl InFlight {
    fn begin() -> Self {
        metrics::gauge!("counterfoil_http_in_flight").increment(1);
        Self
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        metrics::gauge!("counterfoil_http_in_flight").decrement(1);
    }
}

/// Counts requests by route template, never by path: what no route matches is one line. Traces
/// hold the template and the operation's id, nothing of what was sent.
pub(super) async fn measure(request: Request, next: Next) -> Response {
    let in_flight = InFlight::begin();
    let method = method_name(request.method());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.map_or_else(|| "none".to_owned(), |route| route.as_str().to_owned());
    let span = tracing::info_span!(
        "http_request",
        method,
        route,
        status = field::Empty,
        operation_id = field::Empty
    );
    let response = next.run(request).instrument(span.clone()).await;
    drop(in_flight);
    let status = response.status().as_u16();
    span.record("status", status);
    let operation_id = response.headers().get("operation-id");
    if let Some(Ok(operation_id)) = operation_id.map(|id| id.to_str()) {
        span.record("operation_id", operation_id);
    }
    span.in_scope(|| tracing::debug!("answered"));
    metrics::counter!(
        "counterfoil_http_requests_total",
        "method" => method, "route" => route, "status" => status.to_string()
    )
    .increment(1);
    response
}

/// A method as a label: a caller can make methods up.
fn method_name(method: &axum::http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}
