//! A handler the store knows nothing of: its reservation is durable before it starts, its result
//! before anybody sees it. `cargo run -p counterfoil-examples --example guarded`
#![allow(clippy::wildcard_enum_match_arm)]

use std::{error::Error, sync::Arc};

use counterfoil_engine::{
    Answer, Attempt, Call, Engine, Operation, Outcome,
    core::{Fingerprint, Identity, Key, Policy, PrincipalId, Reply, Target, WorkspaceId},
};
use counterfoil_sqlite::{Options, SqliteStore};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("receipts.db"), Options::default())?;
    let engine = Engine::new(Arc::new(store));

    // The key is made when the intention is formed, and kept for every retry of it.
    let request = json!({"to": "ada@example.org", "subject": "Invoice 17"}).to_string();
    let call = Call::new(
        Identity {
            workspace: WorkspaceId::new("default")?,
            principal: PrincipalId::new("billing")?,
            target: Target::new("send_mail"),
            key: Key::new("invoice-17")?,
        },
        Fingerprint::raw("", request.as_bytes()),
        Operation::new(1, Policy::default())?,
    );

    for attempt in ["first", "retry"] {
        match engine.run(call.clone(), send_mail).await {
            Answer::Ran { operation_id, .. } => println!("{attempt}: sent, {operation_id}"),
            Answer::Replayed { operation_id, .. } => {
                println!("{attempt}: already sent, {operation_id}");
            }
            other => println!("{attempt}: {other:?}"),
        }
    }
    Ok(())
}

/// Says what it can prove: an answer, nothing sent, or (time-outs, resets) `Outcome::Lost`.
async fn send_mail(_attempt: Attempt) -> Outcome {
    Outcome::Succeeded(Reply::json(202, &json!({"message_id": "m-1"})))
}
