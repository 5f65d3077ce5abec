use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Extension, Router,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::post,
};
use counterfoil_core::{Policy, PrincipalId, WorkspaceId};
use counterfoil_engine::{Caller, Engine, Open, Operation};
use counterfoil_http::IdempotencyLayer;
use counterfoil_sqlite::{Options, SqliteStore};

use crate::Error;

static MADE: AtomicU64 = AtomicU64::new(0);

/// An ordinary route that does nothing itself, behind the layer: what is measured is what the two
/// durable commits of a guarded call cost.
pub(super) fn router(data: &Path) -> Result<Router, Error> {
    let store = SqliteStore::open(data.join("guarded.db"), Options::default())?;
    let engine = Engine::new(Arc::new(store));
    let operation = Operation::new(1, Policy::default()).map_err(|_| Error::Form("policy"))?;
    let caller = Caller {
        workspace: WorkspaceId::new("bench").map_err(|_| Error::Form("workspace"))?,
        principal: PrincipalId::new("bench").map_err(|_| Error::Form("principal"))?,
        authority: Arc::new(Open),
    };
    Ok(Router::new()
        .route("/api/v1/notes", post(create))
        .route_layer(IdempotencyLayer::new(engine, operation))
        .layer(Extension(caller)))
}

async fn create() -> impl IntoResponse {
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    (
        StatusCode::CREATED,
        [(header::CONTENT_TYPE, "application/json")],
        format!("{{\"note_id\":{number}}}"),
    )
}
