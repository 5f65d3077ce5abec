//! Handlers that run inside the transaction of their receipt.

use std::panic::{AssertUnwindSafe, catch_unwind};

use counterfoil_core::{Decision, Kept, OperationId, Reply};
use counterfoil_store::{
    Admission, Atomic, AtomicHandler, Error, Failure, Migration, StoredReply, Work,
};

use futures_util::FutureExt as _;

use crate::{
    guard::Running,
    handler::{ended, keep_savepoint, open_savepoint, run, undo_savepoint},
    schema,
    steps::{Spot, enter, found_for, judge, nothing_found},
    tx::{Halt, Stepped, Tx},
};

/// Admission, effect, result and event in one.
pub(crate) fn atomically(
    tx: &mut Tx<'_>,
    admission: &Admission,
    handler: &dyn AtomicHandler,
) -> Stepped<Atomic> {
    let (decision, stored) = judge(tx, admission)?;
    let Decision::Run { replaces } = decision else {
        let stored = stored.ok_or_else(nothing_found)?;
        let found = Box::new(found_for(tx, stored, decision)?);
        return Ok(if decision == Decision::Own {
            Atomic::Own(found)
        } else {
            Atomic::Decided(decision, found)
        });
    };
    let spot = Spot::new(stored, replaces);
    // What could not be recorded is not run.
    let operation_id = admission
        .execute(spot.standing(), false, Err(Kept::Nothing))
        .map_err(Halt::Said)?
        .receipt
        .operation_id;
    open_savepoint(tx)?;
    let (reply, refused) = match outcome(tx, handler, operation_id) {
        Ok(Ok(reply)) => (reply, false),
        Ok(Err(Failure::Refused(reply))) => (reply, true),
        Ok(Err(Failure::Aborted(reply))) => {
            undo(tx, None)?;
            return Ok(Atomic::Aborted(reply));
        }
        Ok(Err(Failure::Store(error))) | Err(error) => return Err(undo_with(tx, error)),
    };
    if tx.has_ended() {
        return Err(Halt::Broke(ended()));
    }
    let kept = match keep(handler, operation_id, &reply) {
        Ok(kept) => kept,
        Err(error) => return Err(undo_with(tx, error)),
    };
    let kept = kept.as_ref().map_err(|marker| *marker);
    let change = match admission.execute(spot.standing(), refused, kept) {
        Ok(change) => change,
        Err(error) => return Err(undo_with(tx, error)),
    };
    if refused {
        undo(tx, None)?;
    } else {
        keep_savepoint(tx)?;
    }
    let receipt = enter(tx, admission, &spot, change)?.receipt;
    Ok(Atomic::Ran(Box::new(receipt), reply))
}

fn outcome(
    tx: &mut Tx<'_>,
    handler: &dyn AtomicHandler,
    operation_id: OperationId,
) -> Result<Result<Reply, Failure>, Error> {
    let (outcome, failed) = run(tx, |session| {
        handler.call(operation_id, session).now_or_never()
    })?;
    Ok(match (outcome, failed) {
        (Ok(_), Some(error)) => Err(Failure::Store(error)),
        (outcome, _) => outcome,
    })
}

fn keep(
    handler: &dyn AtomicHandler,
    operation_id: OperationId,
    reply: &Reply,
) -> Result<Result<StoredReply, Kept>, Error> {
    catch_unwind(AssertUnwindSafe(|| handler.keep(operation_id, reply)))
        .map_err(|_| Error::Handler("it panicked while its answer was prepared".to_owned()))
}

/// Undoes a handler's writes. If its transaction is gone, the others' writes are gone with it.
fn undo(tx: &Tx<'_>, because: Option<&Error>) -> Stepped<()> {
    if tx.has_ended() {
        return Err(Halt::Broke(because.cloned().unwrap_or_else(ended)));
    }
    undo_savepoint(tx)
}

fn undo_with(tx: &Tx<'_>, error: Error) -> Halt {
    match undo(tx, Some(&error)) {
        Ok(()) => Halt::Said(error),
        Err(halt) => halt,
    }
}

/// An application's statements without a receipt.
pub(crate) fn transact(tx: &mut Tx<'_>, work: &dyn Work) -> Stepped<()> {
    open_savepoint(tx)?;
    match run(tx, |session| work.call(session).now_or_never()) {
        Ok((Ok(()), _)) if tx.has_ended() => Err(Halt::Broke(ended())),
        Ok((Ok(()), None)) => keep_savepoint(tx),
        Ok((Err(error), _) | (Ok(()), Some(error))) | Err(error) => Err(undo_with(tx, error)),
    }
}

/// Brings an application's tables up.
pub(crate) fn migrate(tx: &mut Tx<'_>, component: &str, steps: &[Migration]) -> Stepped<()> {
    let gapless = (1..)
        .zip(steps)
        .all(|(number, step)| step.version == number);
    if !gapless {
        return Err(Halt::Said(Error::Corrupt(format!(
            "the migrations of {component} are not numbered 1, 2, …"
        ))));
    }
    let newest = steps.last().map_or(0, |step| step.version);
    let found = schema::component(tx.sqlite(), component)?;
    if found > i64::from(newest) {
        return Err(Halt::Said(Error::Unavailable(format!(
            "the tables of {component} are of version {found}, this program knows {newest}; \
             start the newer version of the program"
        ))));
    }
    if found == i64::from(newest) {
        return Ok(());
    }
    open_savepoint(tx)?;
    for step in steps.iter().filter(|step| i64::from(step.version) > found) {
        tx.guard().enter(Running::Handler, MIGRATION_LIMIT);
        let ran = tx.sqlite().execute_batch(step.sqlite);
        tx.guard().leave();
        if let Err(error) = ran {
            return Err(undo_with(tx, crate::error::map(&error)));
        }
        if tx.has_ended() {
            return Err(Halt::Broke(ended()));
        }
    }
    schema::set_component(tx.sqlite(), component, newest)?;
    keep_savepoint(tx)
}

/// A migration may rewrite large tables.
const MIGRATION_LIMIT: std::time::Duration = std::time::Duration::from_secs(3600);
