//! The tables, and how they come to their newest version.
//!
//! Receipts are rows in the order of their making. One narrow index finds an identity: over a
//! 64-bit locator, not unique, because the whole identity decides; BEGIN IMMEDIATE makes the look
//! and the insert one step. Results, questions and events lie apart, each beside its neighbours in
//! time. `counterfoil_lapsing` and `counterfoil_doubt` hold the few rows that are not finished.

use rusqlite::{Connection, Error as Sqlite, OptionalExtension as _};

/// "CFOI": written into the header of the file.
pub(crate) const APPLICATION_ID: i64 = 0x4346_4f49;

/// The events of receipt `r` have the row ids from `r << EVENT_BITS`, so that they lie together
/// and need no index.
pub(crate) const EVENT_BITS: u32 = 20;

const FIRST: &str = "
CREATE TABLE counterfoil_meta(
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;
INSERT INTO counterfoil_meta(name, value) VALUES ('locator_secret', randomblob(32));

CREATE TABLE counterfoil_notes(
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE counterfoil_components(
    name TEXT PRIMARY KEY,
    version INTEGER NOT NULL
) WITHOUT ROWID;

-- The number of the last transaction of each writer: what says whether a COMMIT whose answer was
-- lost took effect.
CREATE TABLE counterfoil_writers(
    id INTEGER PRIMARY KEY,
    sequence INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
);

CREATE TABLE counterfoil_workspaces(
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    unresolved INTEGER NOT NULL
);

CREATE TABLE counterfoil_scopes(
    id INTEGER PRIMARY KEY,
    workspace INTEGER NOT NULL,
    principal TEXT NOT NULL,
    operation TEXT NOT NULL,
    upstream TEXT NOT NULL,
    UNIQUE (workspace, principal, operation, upstream)
);

CREATE TABLE counterfoil_receipts(
    id INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL,
    workspace INTEGER NOT NULL,
    locator INTEGER NOT NULL,
    operation_id BLOB NOT NULL,
    token BLOB NOT NULL,
    fingerprint BLOB NOT NULL,
    state INTEGER NOT NULL,
    mode INTEGER NOT NULL,
    kept INTEGER NOT NULL,
    committed INTEGER NOT NULL,
    version INTEGER NOT NULL,
    event_count INTEGER NOT NULL,
    attempts BLOB NOT NULL,
    round INTEGER NOT NULL,
    rounds BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    hard_deadline INTEGER NOT NULL,
    finished_at INTEGER,
    replay_ms INTEGER NOT NULL,
    tombstone_ms INTEGER NOT NULL,
    provider_ms INTEGER NOT NULL,
    parameters TEXT,
    key TEXT NOT NULL
);
CREATE INDEX counterfoil_identity ON counterfoil_receipts(locator);
CREATE INDEX counterfoil_handle ON counterfoil_receipts(operation_id);
CREATE INDEX counterfoil_listing ON counterfoil_receipts(workspace);
CREATE INDEX counterfoil_lapsing ON counterfoil_receipts(lease_until)
    WHERE state BETWEEN 2 AND 4 AND mode <> 2;
CREATE INDEX counterfoil_doubt ON counterfoil_receipts(workspace)
    WHERE (state = 4 OR state = 8);

CREATE TABLE counterfoil_results(
    receipt INTEGER PRIMARY KEY,
    status INTEGER NOT NULL,
    sealed INTEGER,
    content_type TEXT,
    headers TEXT,
    body BLOB NOT NULL
);

CREATE TABLE counterfoil_questions(
    receipt INTEGER NOT NULL,
    round INTEGER NOT NULL,
    status INTEGER NOT NULL,
    sealed INTEGER,
    content_type TEXT,
    headers TEXT,
    body BLOB NOT NULL,
    PRIMARY KEY (receipt, round)
) WITHOUT ROWID;

CREATE TABLE counterfoil_events(
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    from_state INTEGER,
    to_state INTEGER NOT NULL,
    reason TEXT NOT NULL,
    evidence TEXT
);
";

/// What brings the schema from each version to the next. Only ever appended to.
const STEPS: [&str; 1] = [FIRST];

/// The version this program writes.
pub(crate) const VERSION: i64 = STEPS.len() as i64;

/// Brings the store's own tables up, inside the caller's transaction; the version before.
pub(crate) fn bring_up(connection: &Connection) -> Result<i64, Sqlite> {
    let found = version(connection)?;
    let done = usize::try_from(found).unwrap_or(usize::MAX);
    if done < STEPS.len() {
        for step in &STEPS[done..] {
            connection.execute_batch(step)?;
        }
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        connection.pragma_update(None, "user_version", VERSION)?;
    }
    Ok(found)
}

pub(crate) fn version(connection: &Connection) -> Result<i64, Sqlite> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

pub(crate) fn application_id(connection: &Connection) -> Result<i64, Sqlite> {
    connection.pragma_query_value(None, "application_id", |row| row.get(0))
}

/// Whether there is any table at all.
pub(crate) fn is_empty(connection: &Connection) -> Result<bool, Sqlite> {
    connection.query_row(
        "SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)",
        [],
        |row| row.get(0),
    )
}

/// The secret of the locators.
pub(crate) fn secret(connection: &Connection) -> Result<[u8; 32], Sqlite> {
    connection.query_row(
        "SELECT value FROM counterfoil_meta WHERE name = 'locator_secret'",
        [],
        |row| row.get(0),
    )
}

/// The version of an application's component; 0 if it was never brought up.
pub(crate) fn component(connection: &Connection, name: &str) -> Result<i64, Sqlite> {
    connection
        .query_row(
            "SELECT version FROM counterfoil_components WHERE name = ?1",
            [name],
            |row| row.get(0),
        )
        .optional()
        .map(Option::unwrap_or_default)
}

pub(crate) fn set_component(
    connection: &Connection,
    name: &str,
    version: u32,
) -> Result<(), Sqlite> {
    connection
        .execute(
            "INSERT INTO counterfoil_components(name, version) VALUES (?1, ?2)
             ON CONFLICT (name) DO UPDATE SET version = excluded.version",
            (name, version),
        )
        .map(drop)
}
