//! A handler inside the receipt's own transaction: note and receipt are durable together.
//!
//! curl -i localhost:3000/notes -H 'idempotency-key: n1' --json '{"body": "hello"}'
use std::{net::Ipv4Addr, sync::Arc};

use axum::{Router, extract::State, response::Response, routing::post};
use counterfoil_core::{Policy, PrincipalId, Reply, WorkspaceId};
use counterfoil_engine::{Caller, Engine, Open, Operation, store::Migration};
use counterfoil_http::{Bounds, Mutation, serve};
use counterfoil_sqlite::{Options, SqliteStore};
use serde_json::json;
use tokio::net::TcpListener;

const TABLES: &[Migration] = &[Migration {
    version: 1,
    sqlite: "CREATE TABLE note (id INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT",
    postgres: "CREATE TABLE note (id BIGSERIAL PRIMARY KEY, body TEXT NOT NULL)",
}];

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NewNote {
    body: String,
}

type App = (Engine, Arc<Operation>);

async fn create(State((engine, operation)): State<App>, call: Mutation) -> Response {
    let insert = "INSERT INTO note (body) VALUES ($1) RETURNING id";
    call.atomically(&engine, &operation, Mutation::json::<NewNote>, move |tx| {
        Box::pin(async move {
            let body = tx.input.body.as_str();
            let rows = tx.sql.query(insert, &[body.into()]).await?;
            let id = rows.first().map(|row| row.int(0)).transpose()?;
            Ok(Reply::json(201, &json!({ "id": id, "body": body })))
        })
    })
    .await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = SqliteStore::open("notes.db", Options::default())?;
    let engine = Engine::new(Arc::new(store));
    engine.store().migrate("notes", TABLES).await?;
    // The application's authentication says who calls; here everybody is one principal.
    let caller = Caller {
        workspace: WorkspaceId::new("home")?,
        principal: PrincipalId::new("me")?,
        authority: Arc::new(Open),
    };
    let router = Router::new()
        .route("/notes", post(create))
        .with_state((engine, Operation::new(1, Policy::atomic())?))
        .layer(axum::Extension(caller));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 3000)).await?;
    serve(listener, router, Bounds::default(), std::future::pending()).await;
    Ok(())
}
