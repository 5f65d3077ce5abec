use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::post,
};
use bytes::Bytes;
use rusqlite::{Connection, TransactionBehavior};

use crate::Error;

/// How long a request waits for its turn.
const BUSY: Duration = Duration::from_secs(30);

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS receipts(
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    request BLOB NOT NULL,
    status INTEGER NOT NULL,
    answer TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS notes(
    id INTEGER PRIMARY KEY,
    body TEXT NOT NULL
);";

thread_local! {
    static CONNECTION: RefCell<Option<Connection>> = const { RefCell::new(None) };
}

#[derive(Clone)]
struct Database {
    path: Arc<PathBuf>,
    one: Option<Arc<Mutex<Connection>>>,
}

/// What most services do: BEGIN IMMEDIATE, the receipt, the note, COMMIT; for each request.
pub(super) fn router(data: &Path, one_connection: bool) -> Result<Router, Error> {
    let path = data.join("transaction.db");
    let connection = open(&path)?;
    connection.execute_batch(TABLES)?;
    let database = Database {
        path: Arc::new(path),
        one: one_connection.then(|| Arc::new(Mutex::new(connection))),
    };
    Ok(Router::new()
        .route("/api/v1/notes", post(create))
        .with_state(database))
}

fn open(path: &Path) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

async fn create(State(database): State<Database>, headers: HeaderMap, body: Bytes) -> Response {
    let key = headers
        .get("idempotency-key")
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let Some(key) = key else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let done = tokio::task::spawn_blocking(move || match &database.one {
        Some(one) => {
            let mut connection = one.lock().unwrap_or_else(PoisonError::into_inner);
            insert(&mut connection, &key, &body)
        }
        None => CONNECTION.with_borrow_mut(|slot| {
            let connection = match slot {
                Some(connection) => connection,
                None => slot.insert(open(&database.path)?),
            };
            insert(connection, &key, &body)
        }),
    });
    match done.await {
        Ok(Ok(answer)) => (
            StatusCode::CREATED,
            [(header::CONTENT_TYPE, "application/json")],
            answer,
        )
            .into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn insert(connection: &mut Connection, key: &str, body: &[u8]) -> Result<String, rusqlite::Error> {
    let text = String::from_utf8_lossy(body);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction
        .prepare_cached("INSERT INTO notes(body) VALUES (?1)")?
        .execute([&text])?;
    let answer = format!("{{\"note_id\":{}}}", transaction.last_insert_rowid());
    transaction
        .prepare_cached(
            "INSERT INTO receipts(key, request, status, answer) VALUES (?1, ?2, 201, ?3)",
        )?
        .execute((key, body, &answer))?;
    transaction.commit()?;
    Ok(answer)
}
