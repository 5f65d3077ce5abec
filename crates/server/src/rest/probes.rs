use std::time::Duration;

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse as _, Response},
};
use counterfoil_core::Code;
use counterfoil_http::Problem;

use crate::{meters, state::Shared};

/// How long the store may take to say how it is.
const HEALTH_FOR: Duration = Duration::from_secs(2);

/// When to ask again whether calls are accepted.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The process lives.
pub(super) async fn healthz() -> Response {
    "ok\n".into_response()
}

/// Calls are accepted: the store answers and nobody asked the process to stop.
pub(super) async fn readyz(State(shared): State<Shared>) -> Response {
    let refuse = |why: &'static str| {
        let problem = Problem::new(Code::Unavailable).detail(why);
        shared.rest.refuse(problem.retry_after(Some(ASK_AGAIN)))
    };
    if shared.is_draining() {
        return refuse("The server is stopping.");
    }
    match tokio::time::timeout(HEALTH_FOR, shared.engine.store().health()).await {
        Ok(Ok(_)) => "ready\n".into_response(),
        Ok(Err(error)) => {
            tracing::warn!(%error, "not ready: the store does not say how it is");
            refuse("The store cannot be used.")
        }
        Err(_) => refuse("The store does not answer."),
    }
}

/// The figures, for Prometheus.
pub(super) async fn metrics(State(shared): State<Shared>) -> Response {
    if let Ok(Ok(health)) = tokio::time::timeout(HEALTH_FOR, shared.engine.store().health()).await {
        metrics::gauge!("counterfoil_store_queue_depth").set(to_f64(health.queue_depth));
        metrics::gauge!("counterfoil_store_reservations").set(to_f64(health.slots_booked));
        metrics::gauge!("counterfoil_operations_unresolved").set(to_f64(health.unresolved));
    }
    let text = meters::recorder().map(|handle| {
        handle.run_upkeep();
        handle.render()
    });
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    (
        [(header::CONTENT_TYPE, content_type)],
        text.unwrap_or_default(),
    )
        .into_response()
}

/// Exact up to 2^32, which no queue here exceeds.
fn to_f64(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// What the surface takes and answers.
pub(super) async fn openapi(State(shared): State<Shared>) -> Response {
    (
        [(header::CONTENT_TYPE, "application/json")],
        shared.openapi.clone(),
    )
        .into_response()
}
