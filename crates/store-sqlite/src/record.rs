//! Writing what a step makes of a receipt.

use counterfoil_core::{Event, OperationId, Receipt, Timestamp};
use counterfoil_store::{
    Answer, Change, Completion, Error, Fence, lapsed, marked_committed, recorded, renewed,
};

use crate::{
    rows::{self, Stored, receipt_columns, receipt_tables},
    scopes::Scope,
    tx::{Halt, Stepped, Tx},
};

/// Where a receipt is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'s> {
    /// In the row it has.
    Of(&'s Stored),
    /// In a new row with this id, or after all others.
    New { scope: Scope, id: Option<i64> },
}

/// Writes a change: the receipt, its event, its answer, and the tally. The row as it is then.
pub(crate) fn put(tx: &mut Tx<'_>, place: Place<'_>, change: Change<'_>) -> Stepped<Stored> {
    let unresolved = change.unresolved();
    let Change {
        before: _,
        receipt,
        event,
        answer,
    } = change;
    let stored = match place {
        Place::Of(stored) => {
            let mut stored = Stored { receipt, ..*stored };
            rows::put_event(tx.sqlite(), &mut stored, &event)?;
            rows::update(tx.sqlite(), &stored)?;
            stored
        }
        Place::New { scope, id } => {
            let parameters = rows::parameters_of(&receipt.identity);
            let key = receipt.identity.key.as_str();
            let locator = tx.shared.locator(scope.id, parameters.as_deref(), key);
            let mut stored = Stored {
                id: 0,
                scope: scope.id,
                workspace: scope.workspace,
                event_count: 1,
                receipt,
            };
            stored.id = rows::insert(tx.sqlite(), id, &stored, locator, parameters.as_deref())?;
            stored.event_count = 0;
            rows::put_event(tx.sqlite(), &mut stored, &event)?;
            stored
        }
    };
    match answer {
        Answer::Nothing => {}
        Answer::Result(reply) => rows::put_result(tx.sqlite(), stored.id, reply)?,
        Answer::Question(round, reply) => {
            rows::put_question(tx.sqlite(), stored.id, round, reply)?;
        }
    }
    tx.count(stored.workspace, unresolved);
    Ok(stored)
}

/// Writes what was learned about a receipt, if it is new; the receipt as it is then.
fn learn(
    tx: &mut Tx<'_>,
    stored: Stored,
    change: Result<Option<Change<'_>>, Error>,
) -> Stepped<Receipt> {
    Ok(match change.map_err(Halt::Said)? {
        Some(change) => put(tx, Place::Of(&stored), change)?.receipt,
        None => stored.receipt,
    })
}

/// Evidence about an attempt, in time or late.
pub(crate) fn complete(tx: &mut Tx<'_>, fence: Fence, completion: &Completion) -> Stepped<Receipt> {
    let stored = tx.of_operation(fence.operation_id)?;
    let change = completion.apply(fence, &stored.receipt);
    learn(tx, stored, change)
}

/// An event that is not an attempt's.
pub(crate) fn record(
    tx: &mut Tx<'_>,
    operation_id: OperationId,
    event: Event,
    at: Timestamp,
    reason: &str,
    evidence: Option<&str>,
) -> Stepped<Receipt> {
    let stored = tx.of_operation(operation_id)?;
    let change = recorded(&stored.receipt, event, at, reason, evidence);
    learn(tx, stored, change)
}

/// The committed flag, in the transaction of the write it speaks of.
pub(crate) fn mark_committed(tx: &mut Tx<'_>, fence: Fence) -> Stepped<()> {
    let stored = tx.of_operation(fence.operation_id)?;
    let at = rows::last_event_at(tx.sqlite(), &stored)?.unwrap_or(stored.receipt.created_at);
    let change = marked_committed(&stored.receipt, fence, at);
    learn(tx, stored, change).map(drop)
}

/// Records up to `limit` lapsed leases and abandoned questions as what they are, the longest
/// lapsed first; how many.
pub(crate) fn lapse(tx: &mut Tx<'_>, now: Timestamp, limit: u32) -> Stepped<u32> {
    let mut overdue = Vec::new();
    {
        let mut statement = tx.sqlite().prepare_cached(concat!(
            "SELECT ",
            receipt_columns!(),
            receipt_tables!(),
            "WHERE r.state BETWEEN 2 AND 4 AND r.mode <> 2 AND r.lease_until <= ?1
             ORDER BY r.lease_until LIMIT ?2"
        ))?;
        let mut found = statement.query([now.as_millis(), i64::from(limit)])?;
        while let Some(row) = found.next()? {
            overdue.push(rows::decode(row)?);
        }
    }
    let mut count = 0;
    for stored in overdue {
        if let Some(change) = lapsed(&stored.receipt, now).map_err(Halt::Said)? {
            put(tx, Place::Of(&stored), change)?;
            count += 1;
        }
    }
    Ok(count)
}

/// The new end of a running attempt's lease.
pub(crate) fn renew(tx: &mut Tx<'_>, fence: Fence, until: Timestamp) -> Stepped<Timestamp> {
    let stored = tx.of_operation(fence.operation_id)?;
    let until = renewed(&stored.receipt, fence, until).map_err(Halt::Said)?;
    if until != stored.receipt.lease_until {
        tx.sqlite()
            .prepare_cached("UPDATE counterfoil_receipts SET lease_until = ?2 WHERE id = ?1")?
            .execute([stored.id, until.as_millis()])?;
    }
    Ok(until)
}
