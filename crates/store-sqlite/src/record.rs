//! What becomes of a receipt when something is learned about it.

use counterfoil_core::{
    Event, EventRecord, Illegal, Kept, Knowledge, Mode, OperationId, Receipt, State, Timestamp,
    Verdict, next,
};
use counterfoil_store::{Completion, Error, Fence, StoredReply};

use crate::{
    rows::{self, Stored, receipt_columns, receipt_tables},
    tx::{Halt, Stepped, Tx},
};

/// What comes with an event.
#[derive(Debug)]
pub(crate) struct Circumstances<'a> {
    at: Timestamp,
    reason: &'a str,
    evidence: Option<&'a str>,
    reply: Option<&'a StoredReply>,
    /// What becomes of the result if the event finishes the operation and brings no reply.
    without_reply: Kept,
    /// Until when a question stands, if the event leaves one open.
    question_until: Timestamp,
}

impl<'a> Circumstances<'a> {
    fn bare(at: Timestamp, reason: &'a str) -> Self {
        Self {
            at,
            reason,
            evidence: None,
            reply: None,
            without_reply: Kept::Nothing,
            question_until: at,
        }
    }
}

/// Applies an event by the one transition function. An event that says nothing new changes
/// nothing and leaves no row in the log.
fn learn(
    tx: &mut Tx<'_>,
    stored: &mut Stored,
    event: Event,
    with: &Circumstances<'_>,
) -> Stepped<()> {
    let before = stored.receipt.status.clone();
    let after = next(&before, event).map_err(|illegal| Halt::Said(Error::Fenced(illegal)))?;
    if after == before {
        return Ok(());
    }
    let state = after.state;
    let record = EventRecord {
        at: with.at,
        attempt: attempt_of(event).unwrap_or_default(),
        from: Some(before.state),
        to: state,
        reason: with.reason.to_owned(),
        evidence: with.evidence.map(ToOwned::to_owned),
    };
    rows::put_event(tx.sqlite(), stored, &record)?;
    let receipt = &mut stored.receipt;
    receipt.rounds.truncate(usize::from(after.round));
    receipt.status = after;
    if state == State::InputRequired {
        receipt.lease_until = receipt.lease_until.max(with.question_until);
        if matches!(event, Event::Asked { .. }) {
            let round = receipt.status.round;
            rows::put_question(tx.sqlite(), stored.id, round, with.reply)?;
        }
    } else if state.is_finished() && !before.state.is_finished() {
        receipt.finished_at = Some(with.at);
        receipt.kept = match with.reply {
            Some(_) => Kept::Stored,
            None if with.without_reply == Kept::Stored => Kept::Nothing,
            None => with.without_reply,
        };
        if let Some(reply) = with.reply {
            rows::put_result(tx.sqlite(), stored.id, reply)?;
        }
    } else if state == State::Free {
        receipt.finished_at = Some(with.at);
    }
    rows::update(tx.sqlite(), stored)?;
    tx.count(stored.workspace, before.state, state);
    Ok(())
}

/// Evidence about an attempt, in time or late.
pub(crate) fn complete(tx: &mut Tx<'_>, fence: Fence, completion: &Completion) -> Stepped<Receipt> {
    let mut stored = tx.of_operation(fence.operation_id)?;
    if attempt_of(completion.event) != Some(fence.attempt) {
        return Err(Halt::Said(Error::Fenced(Illegal::Fenced)));
    }
    let with = Circumstances {
        at: completion.at,
        reason: completion.reason,
        evidence: completion.evidence.as_deref(),
        reply: completion.reply.as_ref(),
        without_reply: completion.kept,
        question_until: completion.at.plus(completion.question_for),
    };
    learn(tx, &mut stored, completion.event, &with)?;
    Ok(stored.receipt)
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
    let mut stored = tx.of_operation(operation_id)?;
    let without_reply = match event {
        Event::Resolved {
            verdict: Verdict::Happened,
        } => Kept::AnswerLost,
        Event::Resolved {
            verdict: Verdict::NotHappened,
        }
        | Event::CancelRequested
        | Event::Abandoned => Kept::Nothing,
        Event::Admitted { .. }
        | Event::Executed { .. }
        | Event::Taken { .. }
        | Event::Committed { .. }
        | Event::Succeeded { .. }
        | Event::Refused { .. }
        | Event::NotApplied { .. }
        | Event::Lost { .. }
        | Event::Asked { .. }
        | Event::Stopped { .. } => {
            return Err(Halt::Said(Error::Fenced(Illegal::NotPossible)));
        }
    };
    let with = Circumstances {
        evidence,
        without_reply,
        ..Circumstances::bare(at, reason)
    };
    learn(tx, &mut stored, event, &with)?;
    Ok(stored.receipt)
}

/// The committed flag, in the transaction of the write it speaks of.
pub(crate) fn mark_committed(tx: &mut Tx<'_>, fence: Fence) -> Stepped<()> {
    let mut stored = tx.of_operation(fence.operation_id)?;
    let attempt = fence.attempt;
    // The application's transaction has no time of its own; the log keeps the order.
    let at = rows::last_event_at(tx.sqlite(), &stored)?.unwrap_or(stored.receipt.created_at);
    let with = Circumstances::bare(at, "write committed");
    learn(tx, &mut stored, Event::Committed { attempt }, &with)
}

/// Records a lapsed lease or an abandoned question as what it is; whether there was one.
pub(crate) fn lapse_one(tx: &mut Tx<'_>, stored: &mut Stored, now: Timestamp) -> Stepped<bool> {
    if stored.receipt.mode == Mode::Dispatched {
        // Its worker takes it up.
        return Ok(false);
    }
    let Some(event) = stored.receipt.overdue(now) else {
        return Ok(false);
    };
    let reason = if event == Event::Abandoned {
        "question abandoned"
    } else {
        "lease lapsed"
    };
    let with = Circumstances {
        without_reply: Kept::AnswerLost,
        ..Circumstances::bare(now, reason)
    };
    learn(tx, stored, event, &with)?;
    Ok(true)
}

/// Records up to `limit` of them, the longest lapsed first; how many.
pub(crate) fn lapse(tx: &mut Tx<'_>, now: Timestamp, limit: u32) -> Stepped<u32> {
    let mut lapsed = Vec::new();
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
            lapsed.push(rows::decode(row)?);
        }
    }
    let mut count = 0;
    for stored in &mut lapsed {
        if lapse_one(tx, stored, now)? {
            count += 1;
        }
    }
    Ok(count)
}

/// The new end of a running attempt's lease.
pub(crate) fn renew(tx: &mut Tx<'_>, fence: Fence, until: Timestamp) -> Stepped<Timestamp> {
    let stored = tx.of_operation(fence.operation_id)?;
    let receipt = &stored.receipt;
    if receipt.status.attempts.latest() != fence.attempt || !is_open(receipt) {
        return Err(Halt::Said(Error::Fenced(Illegal::Fenced)));
    }
    let until = receipt.lease_until.max(until).min(receipt.hard_deadline);
    if until != receipt.lease_until {
        tx.sqlite()
            .prepare_cached("UPDATE counterfoil_receipts SET lease_until = ?2 WHERE id = ?1")?
            .execute([stored.id, until.as_millis()])?;
    }
    Ok(until)
}

/// The latest attempt is under way, or waits for its first one, and nothing is known of it.
pub(crate) fn is_open(receipt: &Receipt) -> bool {
    let status = &receipt.status;
    match status.state {
        State::Accepted => true,
        State::Running | State::CancelRequested => {
            status.attempts.get(status.attempts.latest()) == Some(Knowledge::Open)
        }
        State::Free
        | State::InputRequired
        | State::Succeeded
        | State::Failed
        | State::Cancelled
        | State::OutcomeUnknown => false,
    }
}

/// The attempt an event speaks of.
fn attempt_of(event: Event) -> Option<u32> {
    match event {
        Event::Committed { attempt }
        | Event::Succeeded { attempt }
        | Event::Refused { attempt, .. }
        | Event::NotApplied { attempt }
        | Event::Lost { attempt }
        | Event::Asked { attempt, .. }
        | Event::Stopped { attempt } => Some(attempt),
        Event::Admitted { .. }
        | Event::Executed { .. }
        | Event::Taken { .. }
        | Event::Abandoned
        | Event::CancelRequested
        | Event::Resolved { .. } => None,
    }
}
