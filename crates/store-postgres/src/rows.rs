//! Receipts, answers and events as rows.

use std::time::Duration;

use bytes::Bytes;
use counterfoil_core::{
    Attempts, EventRecord, Fingerprint, Identity, Kept, Key, Mode, OperationId, PrincipalId,
    Receipt, Reply, Retention, State, Status, Target, Timestamp, Token, WorkspaceId,
};
use counterfoil_store::{Error, StoredReply};
use tokio_postgres::{Row, types::FromSql};
use uuid::Uuid;

use crate::{error::corrupt, schema::EVENT_BITS};

/// A receipt with what only the store needs.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) id: i64,
    pub(crate) workspace: i64,
    pub(crate) event_count: i64,
    pub(crate) receipt: Receipt,
}

/// The columns of [`decode_as`].
macro_rules! receipt_columns {
    () => {
        "r.id, r.scope, r.workspace, r.event_count, r.operation_id, r.token, r.fingerprint, \
         r.state, r.mode, r.kept, r.committed, r.version, r.attempts, r.round, r.rounds, \
         r.created_at, r.lease_until, r.hard_deadline, r.finished_at, r.replay_ms, \
         r.tombstone_ms, r.provider_ms, r.locator, r.parameters, r.key"
    };
}
/// The columns of [`decode`].
macro_rules! named_columns {
    () => {
        concat!(
            $crate::rows::receipt_columns!(),
            ", w.name, s.principal, s.operation, s.upstream"
        )
    };
}
macro_rules! named_tables {
    () => {
        " FROM counterfoil_receipts AS r JOIN counterfoil_scopes AS s ON s.id = r.scope \
         JOIN counterfoil_workspaces AS w ON w.id = r.workspace "
    };
}
/// The columns of [`decode_reply`].
macro_rules! reply_columns {
    () => {
        "a.status, a.sealed, a.content_type, a.headers, a.body"
    };
}
pub(crate) use {named_columns, named_tables, receipt_columns, reply_columns};

/// How many columns [`decode_as`] reads; others may follow.
pub(crate) const RECEIPT_COLUMNS: usize = 25;
/// How many columns [`decode`] reads.
pub(crate) const NAMED_COLUMNS: usize = 29;

/// A row whose identity is known. The locator found it; the whole identity decides (I4).
pub(crate) fn decode_as(row: &Row, scope: i64, identity: &Identity) -> Result<Stored, Error> {
    let parameters: Option<&str> = column(row, 23)?;
    let same = column::<i64>(row, 1)? == scope
        && column::<&str>(row, 24)? == identity.key.as_str()
        && parameters == parameters_of(identity).as_deref();
    if !same {
        return Err(corrupt("identity"));
    }
    decode_with(row, identity.clone())
}

/// A row with its names.
pub(crate) fn decode(row: &Row) -> Result<Stored, Error> {
    decode_with(row, identity(row)?)
}

pub(crate) fn locator_of(row: &Row) -> Uuid {
    row.get(22)
}

/// A column as what it must be; whoever changed the table's types is told so.
fn column<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, Error> {
    row.try_get(index).map_err(|_| corrupt("column"))
}

fn decode_with(row: &Row, identity: Identity) -> Result<Stored, Error> {
    let status = Status {
        state: state_of(column(row, 7)?)?,
        attempts: Attempts::from_bytes(column(row, 12)?).ok_or_else(|| corrupt("attempt"))?,
        committed: column(row, 10)?,
        round: u16::try_from(column::<i32>(row, 13)?).map_err(|_| corrupt("round"))?,
    };
    let (rounds, rest) = column::<&[u8]>(row, 14)?.as_chunks::<32>();
    if !rest.is_empty() {
        return Err(corrupt("round"));
    }
    let receipt = Receipt {
        operation_id: OperationId::from_bytes(column::<Uuid>(row, 4)?.into_bytes()),
        identity,
        fingerprint: Fingerprint::from_bytes(column(row, 6)?)
            .ok_or_else(|| corrupt("fingerprint"))?,
        version: u32::try_from(column::<i64>(row, 11)?).map_err(|_| corrupt("version"))?,
        mode: byte(column(row, 8)?)
            .and_then(Mode::from_byte)
            .ok_or_else(|| corrupt("mode"))?,
        status,
        token: Token::new(column::<Uuid>(row, 5)?.into_bytes()),
        created_at: Timestamp::from_millis(column(row, 15)?),
        lease_until: Timestamp::from_millis(column(row, 16)?),
        hard_deadline: Timestamp::from_millis(column(row, 17)?),
        finished_at: column::<Option<i64>>(row, 18)?.map(Timestamp::from_millis),
        retention: Retention {
            replay_for: duration(column(row, 19)?),
            tombstone_for: duration(column(row, 20)?),
        },
        kept: byte(column(row, 9)?)
            .and_then(Kept::from_byte)
            .ok_or_else(|| corrupt("result marker"))?,
        rounds: rounds.to_vec(),
        provider_window: duration(column(row, 21)?),
    };
    Ok(Stored {
        id: column(row, 0)?,
        workspace: column(row, 2)?,
        event_count: column(row, 3)?,
        receipt,
    })
}

fn identity(row: &Row) -> Result<Identity, Error> {
    let parameters = match column::<Option<&str>>(row, 23)? {
        Some(json) => serde_json::from_str(json).map_err(|_| corrupt("path parameter"))?,
        None => Vec::new(),
    };
    Ok(Identity {
        workspace: WorkspaceId::new(column::<String>(row, 25)?)
            .map_err(|_| corrupt("workspace"))?,
        principal: PrincipalId::new(column::<String>(row, 26)?)
            .map_err(|_| corrupt("principal"))?,
        target: Target {
            operation: column(row, 27)?,
            parameters,
            upstream: column(row, 28)?,
        },
        key: Key::new(column::<String>(row, 24)?).map_err(|_| corrupt("key"))?,
    })
}

/// Path parameters as they are stored and compared.
pub(crate) fn parameters_of(identity: &Identity) -> Option<String> {
    let parameters = &identity.target.parameters;
    // A list of strings always has a JSON form.
    (!parameters.is_empty()).then(|| serde_json::json!(parameters).to_string())
}

fn byte(column: i16) -> Option<u8> {
    u8::try_from(column).ok()
}

fn state_of(column: i16) -> Result<State, Error> {
    byte(column)
        .and_then(State::from_byte)
        .ok_or_else(|| corrupt("state"))
}

fn duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) fn uuid_of(operation_id: OperationId) -> Uuid {
    Uuid::from_bytes(operation_id.to_bytes())
}

/// An answer whose columns begin at `at`; `None` if there is none.
pub(crate) fn decode_reply(row: &Row, at: usize) -> Result<Option<StoredReply>, Error> {
    let Some(status) = column::<Option<i32>>(row, at)? else {
        return Ok(None);
    };
    let headers = match column::<Option<&str>>(row, at + 3)? {
        Some(json) => serde_json::from_str(json).map_err(|_| corrupt("header"))?,
        None => Vec::new(),
    };
    let sealed = column::<Option<i64>>(row, at + 1)?.map(u32::try_from);
    Ok(Some(StoredReply {
        reply: Reply {
            status: u16::try_from(status).map_err(|_| corrupt("status"))?,
            content_type: column(row, at + 2)?,
            headers,
            body: Bytes::copy_from_slice(column(row, at + 4)?),
        },
        sealed: sealed.transpose().map_err(|_| corrupt("sealing key"))?,
    }))
}

pub(crate) fn headers_text(reply: &Reply) -> Option<String> {
    // A list of pairs of strings always has a JSON form.
    (!reply.headers.is_empty()).then(|| serde_json::json!(reply.headers).to_string())
}

pub(crate) fn decode_event(row: &Row) -> Result<EventRecord, Error> {
    Ok(EventRecord {
        at: Timestamp::from_millis(column(row, 0)?),
        attempt: u32::try_from(column::<i64>(row, 1)?).map_err(|_| corrupt("attempt"))?,
        from: column::<Option<i16>>(row, 2)?.map(state_of).transpose()?,
        to: state_of(column(row, 3)?)?,
        reason: column(row, 4)?,
        evidence: column(row, 5)?,
    })
}

pub(crate) const fn first_event(id: i64) -> i64 {
    id << EVENT_BITS
}

pub(crate) const fn last_event(id: i64) -> i64 {
    first_event(id) | ((1 << EVENT_BITS) - 1)
}
