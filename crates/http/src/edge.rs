use std::panic::AssertUnwindSafe;

use axum::{
    Router,
    body::{Body, HttpBody as _},
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use counterfoil_core::Code;
use futures_util::FutureExt as _;
use http_body_util::Limited;

use crate::{Problem, Rest, body::too_large};

/// Middleware: a panic of a handler becomes a 500 problem instead of a broken connection. For
/// routes without a receipt; the engine catches the panics of guarded handlers itself.
///
/// `middleware::from_fn(catch_panics)`
pub async fn catch_panics(request: Request, next: Next) -> Response {
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        // The panic hook has said where; its payload may hold what must not be logged.
        Err(_payload) => {
            tracing::error!("a handler panicked");
            Problem::new(Code::Internal).into_response()
        }
    }
}

/// Middleware: bodies beyond so many bytes are refused with a 413 problem if their length is
/// announced, and end in an error at the bound if it is not.
///
/// `middleware::from_fn_with_state(1 << 20, bound_body)`
pub async fn bound_body(State(bytes_max): State<usize>, request: Request, next: Next) -> Response {
    let announced = usize::try_from(request.body().size_hint().lower()).unwrap_or(usize::MAX);
    if announced > bytes_max {
        return too_large(bytes_max).into_response();
    }
    next.run(request.map(|body| Body::new(Limited::new(body, bytes_max))))
        .await
}

/// Unmatched paths and methods are answered with 404 and 405 problems.
pub fn with_fallbacks<S: Clone + Send + Sync + 'static>(
    router: Router<S>,
    rest: &Rest,
) -> Router<S> {
    let (not_found, not_allowed) = (rest.clone(), rest.clone());
    router
        .fallback(move || {
            let rest = not_found.clone();
            async move { rest.refuse(Problem::new(Code::NotFound)) }
        })
        .method_not_allowed_fallback(move || {
            let rest = not_allowed.clone();
            async move { rest.refuse(Problem::new(Code::MethodNotAllowed)) }
        })
}
