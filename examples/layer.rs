//! Any axum router honours `Idempotency-Key`, with one layer around its routes.
//!
//! curl -i localhost:3000/transfers -H 'idempotency-key: rent-july' -d '900 euro'
//! The same line again: the same answer, and the handler did not run.
use std::{net::Ipv4Addr, sync::Arc};

use axum::{Extension, Router, extract::Request, middleware, response::Response, routing::post};
use counterfoil_core::{Policy, PrincipalId, WorkspaceId};
use counterfoil_engine::{Attempt, Caller, Engine, Open, Operation};
use counterfoil_http::{Bounds, IdempotencyLayer, serve};
use counterfoil_sqlite::{Options, SqliteStore};
use tokio::net::TcpListener;

/// What must not happen twice. It is an opaque handler: its reservation is durable before it
/// starts, its answer before the caller has it.
async fn transfer(attempt: Option<Extension<Attempt>>, body: String) -> String {
    let operation = attempt.map(|attempt| attempt.operation_id().to_string());
    println!("sending {body} as {operation:?}");
    format!("sent {body}\n")
}

/// The application's authentication says who calls; here everybody is one principal.
async fn authenticate(mut request: Request, next: middleware::Next) -> Response {
    if let (Ok(workspace), Ok(principal)) = (WorkspaceId::new("home"), PrincipalId::new("me")) {
        request.extensions_mut().insert(Caller {
            workspace,
            principal,
            authority: Arc::new(Open),
        });
    }
    next.run(request).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = SqliteStore::open("transfers.db", Options::default())?;
    let engine = Engine::new(Arc::new(store));
    let operation = Operation::new(1, Policy::default())?;
    let router = Router::new()
        .route("/transfers", post(transfer))
        .route_layer(IdempotencyLayer::new(engine.clone(), operation))
        .route_layer(middleware::from_fn(authenticate));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 3000)).await?;
    let bounds = Bounds::default();
    serve(listener, router, bounds, async {
        let _ = tokio::signal::ctrl_c().await;
    })
    .await;
    engine.drain(bounds.drain_for).await;
    Ok(())
}
