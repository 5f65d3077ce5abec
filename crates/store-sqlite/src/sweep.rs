//! Deleting what is past its time, in bounded steps.
//!
//! What may go is looked for on a reading connection, so that the writer is only asked for what
//! there is to delete; it judges each row again before it does.

use counterfoil_core::{Kept, Phase, Timestamp};
use counterfoil_store::{SweepPlan, Swept};
use rusqlite::Connection;

use crate::{
    rows::{self, Stored, Unreadable, receipt_columns, receipt_tables},
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

/// The receipts after `plan.after` that something is to be deleted of.
pub(crate) fn due(connection: &Connection, plan: SweepPlan) -> Result<Due, Unreadable> {
    let limit = i64::from(plan.limit.max(1));
    let mut statement = connection.prepare_cached(concat!(
        "SELECT ",
        receipt_columns!(),
        receipt_tables!(),
        "WHERE r.id > ?1 ORDER BY r.id LIMIT ?2"
    ))?;
    let mut found = statement.query([plan.after, limit])?;
    let mut due = Due::default();
    let mut looked_at = 0;
    let mut last = plan.after;
    let mut any_old = false;
    while let Some(row) = found.next()? {
        last = row.get(0)?;
        looked_at += 1;
        // Not the first young row ends the sweep but a whole step of them: a clock that jumped
        // may have left some among old ones.
        any_old |= row.get::<_, i64>(15)? <= plan.horizon.as_millis();
        // What neither finished nor was released never ages: no need to read all of it.
        if row.get::<_, Option<i64>>(18)?.is_none() {
            continue;
        }
        let stored = rows::decode(row)?;
        let wanted = match stored.receipt.phase(plan.horizon) {
            Phase::Live => false,
            Phase::Tombstone => {
                stored.receipt.kept == Kept::Stored || has_questions(connection, stored.id)?
            }
            Phase::Gone => true,
        };
        if wanted {
            due.ids.push(stored.id);
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

fn of_id(connection: &Connection, id: i64) -> Result<Option<Stored>, Unreadable> {
    let mut statement = connection.prepare_cached(concat!(
        "SELECT ",
        receipt_columns!(),
        receipt_tables!(),
        "WHERE r.id = ?1"
    ))?;
    let mut found = statement.query([id])?;
    match found.next()? {
        Some(row) => rows::decode(row).map(Some),
        None => Ok(None),
    }
}

/// Deletes what is past its time of these receipts.
pub(crate) fn sweep(tx: &mut Tx<'_>, ids: &[i64], horizon: Timestamp) -> Stepped<Swept> {
    let mut swept = Swept::default();
    for id in ids {
        let Some(stored) = of_id(tx.sqlite(), *id)? else {
            continue;
        };
        match stored.receipt.phase(horizon) {
            Phase::Live => {}
            Phase::Tombstone => {
                if rows::delete_answers(tx.sqlite(), *id)? > 0 {
                    tx.sqlite()
                        .prepare_cached("UPDATE counterfoil_receipts SET kept = ?2 WHERE id = ?1")?
                        .execute((*id, Kept::Nothing.to_byte()))?;
                    swept.results += 1;
                }
            }
            // Only finished and released receipts age, so the tally of unresolved ones stays.
            Phase::Gone => {
                rows::delete(tx.sqlite(), *id)?;
                swept.receipts += 1;
            }
        }
    }
    Ok(swept)
}
