//! Deleting what is past its time, in bounded steps.
//!
//! What may go is looked for on a reading connection, so that the writer is only asked for what
//! there is to delete; it judges each row again before it does.

use counterfoil_core::{Kept, Phase, Retention, Timestamp};
use counterfoil_store::{SweepPlan, Swept};
use rusqlite::{Connection, OptionalExtension as _};

use crate::{
    rows::{self, Unreadable},
    tx::{Stepped, Tx},
};

/// Most rows one transaction of a sweep deletes, so that it delays nobody for long.
pub(crate) const ROWS_PER_STEP: usize = 100;

/// What a look found.
#[derive(Debug, Default)]
pub(crate) struct Due {
    pub(crate) ids: Vec<i64>,
    pub(crate) next: Option<i64>,
}

struct Aged {
    created_at: Timestamp,
    finished_at: Option<Timestamp>,
    retention: Retention,
    kept: Option<Kept>,
}

impl Aged {
    /// From id, created, finished, replay, tombstone and kept.
    fn decode(row: &rusqlite::Row<'_>) -> Result<Self, rusqlite::Error> {
        Ok(Self {
            created_at: Timestamp::from_millis(row.get(1)?),
            finished_at: row.get::<_, Option<i64>>(2)?.map(Timestamp::from_millis),
            retention: Retention {
                replay_for: rows::duration(row.get(3)?),
                tombstone_for: rows::duration(row.get(4)?),
            },
            kept: Kept::from_byte(row.get(5)?),
        })
    }

    fn phase(&self, horizon: Timestamp) -> Phase {
        self.retention.phase(self.finished_at, horizon)
    }
}

/// The receipts after `plan.after` that something is to be deleted of.
pub(crate) fn due(connection: &Connection, plan: SweepPlan) -> Result<Due, Unreadable> {
    let limit = i64::from(plan.limit.max(1));
    let mut statement = connection.prepare_cached(
        "SELECT id, created_at, finished_at, replay_ms, tombstone_ms, kept
         FROM counterfoil_receipts WHERE id > ?1 ORDER BY id LIMIT ?2",
    )?;
    let mut found = statement.query([plan.after, limit])?;
    let mut due = Due::default();
    let mut looked_at = 0;
    let mut last = plan.after;
    let mut any_old = false;
    while let Some(row) = found.next()? {
        let id: i64 = row.get(0)?;
        let aged = Aged::decode(row)?;
        looked_at += 1;
        last = id;
        // Not the first young row ends the sweep but a whole step of them: a clock that jumped
        // may have left some among old ones.
        any_old |= aged.created_at <= plan.horizon;
        let wanted = match aged.phase(plan.horizon) {
            Phase::Live => false,
            Phase::Tombstone => aged.kept == Some(Kept::Stored) || has_questions(connection, id)?,
            Phase::Gone => true,
        };
        if wanted {
            due.ids.push(id);
        }
    }
    let more = looked_at == limit && any_old && exists_after(connection, last)?;
    due.next = more.then_some(last);
    Ok(due)
}

fn has_questions(connection: &Connection, id: i64) -> Result<bool, rusqlite::Error> {
    connection
        .prepare_cached("SELECT 1 FROM counterfoil_questions WHERE receipt = ?1")?
        .exists([id])
}

fn exists_after(connection: &Connection, id: i64) -> Result<bool, rusqlite::Error> {
    connection
        .prepare_cached("SELECT 1 FROM counterfoil_receipts WHERE id > ?1 LIMIT 1")?
        .exists([id])
}

/// Deletes what is past its time of these receipts.
pub(crate) fn sweep(tx: &mut Tx<'_>, ids: &[i64], horizon: Timestamp) -> Stepped<Swept> {
    let mut swept = Swept::default();
    for id in ids {
        let aged = tx
            .sqlite()
            .prepare_cached(
                "SELECT id, created_at, finished_at, replay_ms, tombstone_ms, kept
                 FROM counterfoil_receipts WHERE id = ?1",
            )?
            .query_row([id], Aged::decode)
            .optional()?;
        let Some(aged) = aged else {
            continue;
        };
        match aged.phase(horizon) {
            Phase::Live => {}
            Phase::Tombstone => {
                if rows::delete_answers(tx.sqlite(), *id)? > 0 {
                    tx.sqlite()
                        .prepare_cached("UPDATE counterfoil_receipts SET kept = 0 WHERE id = ?1")?
                        .execute([id])?;
                    swept.results += 1;
                }
            }
            // Only finished receipts age, so the tally of unresolved ones does not change.
            Phase::Gone => {
                rows::delete(tx.sqlite(), *id)?;
                swept.receipts += 1;
            }
        }
    }
    Ok(swept)
}
