//! Receipts, answers and events as rows.

use std::time::Duration;

use bytes::Bytes;
use counterfoil_core::{
    Attempts, EventRecord, Fingerprint, Identity, Kept, Key, Mode, OperationId, PrincipalId,
    Receipt, Reply, Retention, State, Status, Target, Timestamp, Token, WorkspaceId,
};
use counterfoil_store::{Error, Found, StoredReply};
use rusqlite::{Connection, Error as Sqlite, OptionalExtension as _};

use crate::{
    error::{corrupt, map},
    schema::EVENT_BITS,
};

/// A receipt with what only the store needs.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) id: i64,
    pub(crate) scope: i64,
    pub(crate) workspace: i64,
    pub(crate) event_count: i64,
    pub(crate) receipt: Receipt,
}

/// The columns of [`decode`].
macro_rules! receipt_columns {
    () => {
        "r.id, r.scope, r.workspace, r.event_count, r.operation_id, r.token, r.fingerprint, \
         r.state, r.mode, r.kept, r.committed, r.version, r.attempts, r.round, r.rounds, \
         r.created_at, r.lease_until, r.hard_deadline, r.finished_at, r.replay_ms, \
         r.tombstone_ms, r.provider_ms, r.parameters, r.key, \
         w.name, s.principal, s.operation, s.upstream"
    };
}
macro_rules! receipt_tables {
    () => {
        " FROM counterfoil_receipts AS r JOIN counterfoil_scopes AS s ON s.id = r.scope \
         JOIN counterfoil_workspaces AS w ON w.id = r.workspace "
    };
}
pub(crate) use {receipt_columns, receipt_tables};

/// How many columns [`decode`] reads; others may follow.
pub(crate) const RECEIPT_COLUMNS: usize = 28;

/// Why a row could not be read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    Sqlite(Sqlite),
    Corrupt(Error),
}

impl From<Sqlite> for Unreadable {
    fn from(error: Sqlite) -> Self {
        Self::Sqlite(error)
    }
}

impl From<Error> for Unreadable {
    fn from(error: Error) -> Self {
        Self::Corrupt(error)
    }
}

impl From<Unreadable> for Error {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::Sqlite(error) => map(&error),
            Unreadable::Corrupt(error) => error,
        }
    }
}

pub(crate) fn decode(row: &rusqlite::Row<'_>) -> Result<Stored, Unreadable> {
    let state: u8 = row.get(7)?;
    let kept: u8 = row.get(9)?;
    let fingerprint = row.get_ref(6)?.as_blob().map_err(Sqlite::from)?;
    let attempts = row.get_ref(12)?.as_blob().map_err(Sqlite::from)?;
    let status = Status {
        state: State::from_byte(state).ok_or_else(|| corrupt("state"))?,
        attempts: Attempts::from_bytes(attempts).ok_or_else(|| corrupt("attempt"))?,
        committed: row.get(10)?,
        round: row.get(13)?,
    };
    let rounds = row.get_ref(14)?.as_blob().map_err(Sqlite::from)?;
    let (rounds, rest) = rounds.as_chunks::<32>();
    if !rest.is_empty() {
        return Err(corrupt("round").into());
    }
    let receipt = Receipt {
        operation_id: OperationId::from_bytes(row.get(4)?),
        identity: identity(row)?,
        fingerprint: Fingerprint::from_bytes(fingerprint).ok_or_else(|| corrupt("fingerprint"))?,
        version: row.get(11)?,
        mode: Mode::from_byte(row.get(8)?).ok_or_else(|| corrupt("mode"))?,
        status,
        token: Token::new(row.get(5)?),
        created_at: Timestamp::from_millis(row.get(15)?),
        lease_until: Timestamp::from_millis(row.get(16)?),
        hard_deadline: Timestamp::from_millis(row.get(17)?),
        finished_at: row.get::<_, Option<i64>>(18)?.map(Timestamp::from_millis),
        retention: Retention {
            replay_for: duration(row.get(19)?),
            tombstone_for: duration(row.get(20)?),
        },
        kept: Kept::from_byte(kept).ok_or_else(|| corrupt("result marker"))?,
        rounds: rounds.to_vec(),
        provider_window: duration(row.get(21)?),
    };
    Ok(Stored {
        id: row.get(0)?,
        scope: row.get(1)?,
        workspace: row.get(2)?,
        event_count: row.get(3)?,
        receipt,
    })
}

fn identity(row: &rusqlite::Row<'_>) -> Result<Identity, Unreadable> {
    let parameters = match row.get_ref(22)?.as_str_or_null().map_err(Sqlite::from)? {
        Some(json) => serde_json::from_str(json).map_err(|_| corrupt("path parameter"))?,
        None => Vec::new(),
    };
    let workspace: String = row.get(24)?;
    let principal: String = row.get(25)?;
    let key: String = row.get(23)?;
    Ok(Identity {
        workspace: WorkspaceId::new(workspace).map_err(|_| corrupt("workspace"))?,
        principal: PrincipalId::new(principal).map_err(|_| corrupt("principal"))?,
        target: Target {
            operation: row.get(26)?,
            parameters,
            upstream: row.get(27)?,
        },
        key: Key::new(key).map_err(|_| corrupt("key"))?,
    })
}

/// Path parameters as they are stored and compared.
pub(crate) fn parameters_of(identity: &Identity) -> Option<String> {
    let parameters = &identity.target.parameters;
    // A list of strings always has a JSON form.
    (!parameters.is_empty()).then(|| serde_json::json!(parameters).to_string())
}

pub(crate) fn duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Inserts a receipt at `id`, or after all others; its row id.
pub(crate) fn insert(
    connection: &Connection,
    id: Option<i64>,
    stored: &Stored,
    locator: i64,
    parameters: Option<&str>,
) -> Result<i64, Sqlite> {
    let receipt = &stored.receipt;
    connection
        .prepare_cached(
            "INSERT INTO counterfoil_receipts(scope, workspace, locator, operation_id, token,
                fingerprint, state, mode, kept, committed, version, event_count, attempts, round,
                rounds, created_at, lease_until, hard_deadline, finished_at, replay_ms,
                tombstone_ms, provider_ms, parameters, key, id)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17,
                ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25)",
        )?
        .insert(rusqlite::params![
            stored.scope,
            stored.workspace,
            locator,
            receipt.operation_id.to_bytes(),
            receipt.token.to_bytes(),
            receipt.fingerprint.to_bytes(),
            receipt.status.state.to_byte(),
            receipt.mode.to_byte(),
            receipt.kept.to_byte(),
            receipt.status.committed,
            receipt.version,
            stored.event_count,
            receipt.status.attempts.to_bytes(),
            receipt.status.round,
            receipt.rounds.as_flattened(),
            receipt.created_at.as_millis(),
            receipt.lease_until.as_millis(),
            receipt.hard_deadline.as_millis(),
            receipt.finished_at.map(Timestamp::as_millis),
            millis(receipt.retention.replay_for),
            millis(receipt.retention.tombstone_for),
            millis(receipt.provider_window),
            parameters,
            receipt.identity.key.as_str(),
            id,
        ])
}

/// Writes everything of a receipt that can change.
pub(crate) fn update(connection: &Connection, stored: &Stored) -> Result<(), Sqlite> {
    let receipt = &stored.receipt;
    connection
        .prepare_cached(
            "UPDATE counterfoil_receipts SET token = ?2, state = ?3, mode = ?4, kept = ?5,
                committed = ?6, version = ?7, event_count = ?8, attempts = ?9, round = ?10,
                rounds = ?11, lease_until = ?12, hard_deadline = ?13, finished_at = ?14,
                replay_ms = ?15, tombstone_ms = ?16, provider_ms = ?17
             WHERE id = ?1",
        )?
        .execute(rusqlite::params![
            stored.id,
            receipt.token.to_bytes(),
            receipt.status.state.to_byte(),
            receipt.mode.to_byte(),
            receipt.kept.to_byte(),
            receipt.status.committed,
            receipt.version,
            stored.event_count,
            receipt.status.attempts.to_bytes(),
            receipt.status.round,
            receipt.rounds.as_flattened(),
            receipt.lease_until.as_millis(),
            receipt.hard_deadline.as_millis(),
            receipt.finished_at.map(Timestamp::as_millis),
            millis(receipt.retention.replay_for),
            millis(receipt.retention.tombstone_for),
            millis(receipt.provider_window),
        ])
        .map(drop)
}

/// Deletes a receipt with everything that hangs on it.
pub(crate) fn delete(connection: &Connection, id: i64) -> Result<(), Sqlite> {
    delete_answers(connection, id)?;
    connection
        .prepare_cached("DELETE FROM counterfoil_events WHERE id BETWEEN ?1 AND ?2")?
        .execute([first_event(id), last_event(id)])?;
    connection
        .prepare_cached("DELETE FROM counterfoil_receipts WHERE id = ?1")?
        .execute([id])
        .map(drop)
}

/// Deletes the stored answers of a receipt; how many results there were.
pub(crate) fn delete_answers(connection: &Connection, id: i64) -> Result<usize, Sqlite> {
    connection
        .prepare_cached("DELETE FROM counterfoil_questions WHERE receipt = ?1")?
        .execute([id])?;
    connection
        .prepare_cached("DELETE FROM counterfoil_results WHERE receipt = ?1")?
        .execute([id])
}

pub(crate) fn put_result(
    connection: &Connection,
    id: i64,
    stored: &StoredReply,
) -> Result<(), Sqlite> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO counterfoil_results(receipt, status, sealed, content_type,
                headers, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute((
            id,
            stored.reply.status,
            stored.sealed,
            stored.reply.content_type.as_deref(),
            headers_text(&stored.reply),
            &*stored.reply.body,
        ))
        .map(drop)
}

/// Stores the question of a round, in the place of it and of all later ones.
pub(crate) fn put_question(
    connection: &Connection,
    id: i64,
    round: u16,
    stored: Option<&StoredReply>,
) -> Result<(), Sqlite> {
    connection
        .prepare_cached("DELETE FROM counterfoil_questions WHERE receipt = ?1 AND round >= ?2")?
        .execute((id, round))?;
    let Some(stored) = stored else {
        return Ok(());
    };
    connection
        .prepare_cached(
            "INSERT INTO counterfoil_questions(receipt, round, status, sealed, content_type,
                headers, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute((
            id,
            round,
            stored.reply.status,
            stored.sealed,
            stored.reply.content_type.as_deref(),
            headers_text(&stored.reply),
            &*stored.reply.body,
        ))
        .map(drop)
}

fn headers_text(reply: &Reply) -> Option<String> {
    (!reply.headers.is_empty()).then(|| serde_json::json!(reply.headers).to_string())
}

/// The result of a receipt, if one is stored.
pub(crate) fn result(connection: &Connection, id: i64) -> Result<Option<StoredReply>, Unreadable> {
    let mut statement = connection.prepare_cached(
        "SELECT status, sealed, content_type, headers, body
         FROM counterfoil_results WHERE receipt = ?1",
    )?;
    let mut rows = statement.query([id])?;
    match rows.next()? {
        Some(row) => decode_reply(row, 0),
        None => Ok(None),
    }
}

/// The question of a round, if it is stored.
pub(crate) fn question(
    connection: &Connection,
    id: i64,
    round: u16,
) -> Result<Option<StoredReply>, Unreadable> {
    let mut statement = connection.prepare_cached(
        "SELECT status, sealed, content_type, headers, body
         FROM counterfoil_questions WHERE receipt = ?1 AND round = ?2",
    )?;
    let mut rows = statement.query((id, round))?;
    match rows.next()? {
        Some(row) => decode_reply(row, 0),
        None => Ok(None),
    }
}

/// Status, sealed, content type, headers and body from column `at` on; none if they are NULL.
pub(crate) fn decode_reply(
    row: &rusqlite::Row<'_>,
    at: usize,
) -> Result<Option<StoredReply>, Unreadable> {
    let Some(status) = row.get(at)? else {
        return Ok(None);
    };
    let headers = match row
        .get_ref(at + 3)?
        .as_str_or_null()
        .map_err(Sqlite::from)?
    {
        Some(json) => serde_json::from_str(json).map_err(|_| corrupt("header"))?,
        None => Vec::new(),
    };
    let body = row.get_ref(at + 4)?.as_blob().map_err(Sqlite::from)?;
    Ok(Some(StoredReply {
        reply: Reply {
            status,
            content_type: row.get(at + 2)?,
            headers,
            body: Bytes::copy_from_slice(body),
        },
        sealed: row.get(at + 1)?,
    }))
}

fn first_event(id: i64) -> i64 {
    id << EVENT_BITS
}

fn last_event(id: i64) -> i64 {
    first_event(id) | ((1 << EVENT_BITS) - 1)
}

/// Appends a row to the log of a receipt and counts it. Beyond a million rows the log is full.
pub(crate) fn put_event(
    connection: &Connection,
    stored: &mut Stored,
    event: &EventRecord,
) -> Result<(), Sqlite> {
    let id = first_event(stored.id) + stored.event_count;
    if id > last_event(stored.id) {
        return Ok(());
    }
    stored.event_count += 1;
    connection
        .prepare_cached(
            "INSERT INTO counterfoil_events(id, at, attempt, from_state, to_state, reason, evidence)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute((
            id,
            event.at.as_millis(),
            event.attempt,
            event.from.map(State::to_byte),
            event.to.to_byte(),
            &event.reason,
            event.evidence.as_deref(),
        ))
        .map(drop)
}

/// When the latest row of a receipt's log was written.
pub(crate) fn last_event_at(
    connection: &Connection,
    stored: &Stored,
) -> Result<Option<Timestamp>, Sqlite> {
    connection
        .prepare_cached(
            "SELECT at FROM counterfoil_events WHERE id BETWEEN ?1 AND ?2
             ORDER BY id DESC LIMIT 1",
        )?
        .query_row([first_event(stored.id), last_event(stored.id)], |row| {
            row.get(0)
        })
        .optional()
        .map(|at| at.map(Timestamp::from_millis))
}

/// A receipt as it is handed out, with the answer of the finished operation or the open question;
/// with the question of `round` where one is asked for.
pub(crate) fn found(
    connection: &Connection,
    stored: Stored,
    round: Option<u16>,
) -> Result<Found, Unreadable> {
    let receipt = stored.receipt;
    let asks = receipt.status.state == State::InputRequired;
    let reply = match round.or(asks.then_some(receipt.status.round)) {
        Some(round) => question(connection, stored.id, round)?,
        None if receipt.kept == Kept::Stored => result(connection, stored.id)?,
        None => None,
    };
    Ok(Found { receipt, reply })
}

/// The log of a receipt, the oldest first, at most `limit` rows.
pub(crate) fn events(
    connection: &Connection,
    id: i64,
    limit: i64,
) -> Result<Vec<EventRecord>, Unreadable> {
    let mut statement = connection.prepare_cached(
        "SELECT at, attempt, from_state, to_state, reason, evidence
         FROM counterfoil_events WHERE id BETWEEN ?1 AND ?2 ORDER BY id LIMIT ?3",
    )?;
    let mut rows = statement.query([first_event(id), last_event(id), limit])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        let state = |byte: u8| State::from_byte(byte).ok_or_else(|| corrupt("state"));
        events.push(EventRecord {
            at: Timestamp::from_millis(row.get(0)?),
            attempt: row.get(1)?,
            from: row.get::<_, Option<u8>>(2)?.map(state).transpose()?,
            to: state(row.get(3)?)?,
            reason: row.get(4)?,
            evidence: row.get(5)?,
        });
    }
    Ok(events)
}
