//! A handler inside the receipt's own transaction: the effect, the receipt and the result are
//! durable together or not at all. `cargo run -p counterfoil-examples --example atomic`

use std::{error::Error, sync::Arc};

use counterfoil_engine::{
    Call, Engine, Operation,
    core::{
        Fingerprint, Identity, Key, OperationId, Policy, PrincipalId, Reply, Target, WorkspaceId,
    },
    store::{BoxFuture, Failure, Migration, Sql, Store as _},
};
use counterfoil_sqlite::{Options, SqliteStore};
use serde_json::json;

const TABLES: &[Migration] = &[Migration {
    version: 1,
    sqlite: "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)",
    postgres: "CREATE TABLE orders (id BIGSERIAL PRIMARY KEY, item TEXT NOT NULL)",
}];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("shop.db"), Options::default())?;
    store.migrate("shop", TABLES).await?;
    let engine = Engine::new(Arc::new(store));

    let call = Call::new(
        Identity {
            workspace: WorkspaceId::new("default")?,
            principal: PrincipalId::new("shop")?,
            target: Target::new("create_order"),
            key: Key::new("order-of-ada-1")?,
        },
        Fingerprint::raw("", b"lamp"),
        Operation::new(1, Policy::atomic())?,
    );
    for attempt in ["first", "retry"] {
        // `Ran` the first time, `Replayed` the second, with the same body.
        let answer = engine.atomically(call.clone(), create_order).await;
        println!("{attempt}: {answer:?}");
    }
    Ok(())
}

fn create_order<'t>(
    _operation: Option<OperationId>,
    tx: &'t mut dyn Sql,
) -> BoxFuture<'t, Result<Reply, Failure>> {
    Box::pin(async move {
        let insert = "INSERT INTO orders (item) VALUES ($1) RETURNING id";
        let rows = tx.query(insert, &["lamp".into()]).await?;
        let id = rows.first().map_or(Ok(0), |row| row.int(0))?;
        Ok(Reply::json(201, &json!({"order_id": id})))
    })
}
