//! Admission: look, decide, reserve, in one transaction.

use counterfoil_core::{
    Decision, Event, EventRecord, Kept, Presented, Receipt, State, Status, Timestamp, decide, next,
};
use counterfoil_store::{Admission, Error, Fence, Found};

use crate::{
    record::{is_open, lapse_one},
    rows::{self, Stored},
    tx::{Halt, Stepped, Tx, is_unresolved},
};

/// A reservation, before its slot is put to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserved {
    pub(crate) fence: Fence,
    pub(crate) round: u16,
    pub(crate) lease_until: Timestamp,
    pub(crate) hard_deadline: Timestamp,
}

/// What an admission comes to.
#[derive(Debug)]
pub(crate) enum Admittance {
    Run(Reserved),
    Decided(Decision, Box<Found>),
}

/// What was decided on what.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) decision: Decision,
    pub(crate) stored: Option<Stored>,
    pub(crate) presented: Presented,
}

/// Decides, and records a lapsed lease on the way.
pub(crate) fn judge(tx: &mut Tx<'_>, admission: &Admission) -> Stepped<Judged> {
    let presented = Presented {
        fingerprint: admission.fingerprint,
        inputs: admission.inputs,
        token: Some(admission.token),
    };
    let now = admission.now;
    let mut stored = tx.of_identity(&admission.identity)?;
    let found = stored.as_ref().map(|stored| &stored.receipt);
    let mut decision = decide(found, &presented, now);
    let lapsed = match decision {
        Decision::Unknown { lapsed, .. } => lapsed,
        Decision::Committed { retry_after } => retry_after.is_none(),
        Decision::Run { .. }
        | Decision::Own
        | Decision::Conflict
        | Decision::Replay
        | Decision::ReplayQuestion { .. }
        | Decision::ResultUnavailable
        | Decision::InProgress { .. }
        | Decision::Expired => false,
    };
    if lapsed
        && let Some(stored) = &mut stored
        && lapse_one(tx, stored, now)?
    {
        decision = decide(Some(&stored.receipt), &presented, now);
    }
    Ok(Judged {
        decision,
        stored,
        presented,
    })
}

/// The reservation of a guarded or dispatched operation.
pub(crate) fn admit(tx: &mut Tx<'_>, admission: &Admission) -> Stepped<Admittance> {
    let Judged {
        mut decision,
        stored,
        mut presented,
    } = judge(tx, admission)?;
    if let Decision::Run { replaces } = decision {
        let mode = admission.policy.mode;
        let draft = draft(admission, stored, replaces, Event::Admitted { mode })?;
        let receipt = write(tx, admission, draft, "admitted")?.receipt;
        return Ok(Admittance::Run(reserved(&receipt)));
    }
    let stored = stored.ok_or_else(nothing_found)?;
    if decision == Decision::Own {
        if is_open(&stored.receipt) {
            return Ok(Admittance::Run(reserved(&stored.receipt)));
        }
        presented.token = None;
        decision = decide(Some(&stored.receipt), &presented, admission.now);
    }
    let found = found_for(tx, stored, decision)?;
    Ok(Admittance::Decided(decision, Box::new(found)))
}

pub(crate) fn nothing_found() -> Halt {
    Halt::Said(Error::Corrupt("decided on nothing".to_owned()))
}

/// The receipt with the answer that belongs to a decision.
pub(crate) fn found_for(tx: &Tx<'_>, stored: Stored, decision: Decision) -> Stepped<Found> {
    let round = match decision {
        Decision::ReplayQuestion { round } => Some(round),
        Decision::Run { .. }
        | Decision::Own
        | Decision::Conflict
        | Decision::Replay
        | Decision::ResultUnavailable
        | Decision::Committed { .. }
        | Decision::InProgress { .. }
        | Decision::Unknown { .. }
        | Decision::Expired => None,
    };
    Ok(rows::found(tx.sqlite(), stored, round)?)
}

fn reserved(receipt: &Receipt) -> Reserved {
    Reserved {
        fence: Fence {
            operation_id: receipt.operation_id,
            attempt: receipt.status.attempts.latest(),
        },
        round: receipt.status.round,
        lease_until: receipt.lease_until,
        hard_deadline: receipt.hard_deadline,
    }
}

/// A row that is about to be written, and what stands in its place.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    /// The row goes on; it keeps its id, operation id and attempts.
    standing: Option<Stored>,
    /// The row is over and past every window; it goes.
    replaced: Option<Stored>,
    before: Status,
    pub(crate) receipt: Receipt,
}

/// The receipt as it will be, by the transition function.
pub(crate) fn draft(
    admission: &Admission,
    stored: Option<Stored>,
    replaces: bool,
    event: Event,
) -> Stepped<Draft> {
    let (standing, replaced) = if replaces {
        (None, stored)
    } else {
        (stored, None)
    };
    let mut receipt = match &standing {
        Some(stored) => stored.receipt.clone(),
        None => fresh(admission),
    };
    let before = receipt.status.clone();
    let after = next(&before, event).map_err(|illegal| Halt::Said(Error::Fenced(illegal)))?;
    if after.round > before.round
        && let Some(inputs) = admission.inputs
    {
        receipt.rounds.push(inputs);
    }
    let policy = &admission.policy;
    receipt.status = after;
    receipt.version = admission.version;
    receipt.mode = policy.mode;
    receipt.token = admission.token;
    receipt.hard_deadline = admission.now.plus(policy.attempt_limit);
    receipt.lease_until = admission.now.plus(policy.lease).min(receipt.hard_deadline);
    receipt.finished_at = None;
    receipt.retention = policy.retention;
    Ok(Draft {
        standing,
        replaced,
        before,
        receipt,
    })
}

fn fresh(admission: &Admission) -> Receipt {
    Receipt {
        operation_id: admission.operation_id,
        identity: admission.identity.clone(),
        fingerprint: admission.fingerprint,
        version: admission.version,
        mode: admission.policy.mode,
        status: Status::new(),
        token: admission.token,
        created_at: admission.now,
        lease_until: admission.now,
        hard_deadline: admission.now,
        finished_at: None,
        retention: admission.policy.retention,
        kept: Kept::Nothing,
        rounds: Vec::new(),
        provider_window: admission.policy.resend_window(),
    }
}

/// Writes a drafted row with its event.
pub(crate) fn write(
    tx: &mut Tx<'_>,
    admission: &Admission,
    draft: Draft,
    reason: &str,
) -> Stepped<Stored> {
    let after = draft.receipt.status.state;
    let scope = tx.scope_or_create(&admission.identity)?;
    if is_unresolved(after) && !is_unresolved(draft.before.state) {
        let limit = tx.shared.options.unresolved_max;
        if tx.unresolved(scope.workspace)? >= limit {
            return Err(Halt::Said(Error::Quota { limit }));
        }
    }
    let mut place = None;
    if let Some(replaced) = &draft.replaced {
        // An admission repeated after all its windows is still one operation.
        let same = replaced.receipt.operation_id == draft.receipt.operation_id;
        place = same.then_some(replaced.id);
        rows::delete(tx.sqlite(), replaced.id)?;
        tx.count(
            replaced.workspace,
            replaced.receipt.status.state,
            State::Free,
        );
    }
    let goes_on = draft.standing.is_some();
    let event = EventRecord {
        at: admission.now,
        attempt: draft.receipt.status.attempts.latest(),
        from: goes_on.then_some(draft.before.state),
        to: after,
        reason: reason.to_owned(),
        evidence: None,
    };
    let stored = match draft.standing {
        Some(standing) => {
            let mut stored = Stored {
                receipt: draft.receipt,
                ..standing
            };
            rows::put_event(tx.sqlite(), &mut stored, &event)?;
            rows::update(tx.sqlite(), &stored)?;
            stored
        }
        None => {
            let parameters = rows::parameters_of(&admission.identity);
            let key = admission.identity.key.as_str();
            let locator = tx.shared.locator(scope.id, parameters.as_deref(), key);
            let mut stored = Stored {
                id: 0,
                scope: scope.id,
                workspace: scope.workspace,
                event_count: 1,
                receipt: draft.receipt,
            };
            stored.id = rows::insert(tx.sqlite(), place, &stored, locator, parameters.as_deref())?;
            stored.event_count = 0;
            rows::put_event(tx.sqlite(), &mut stored, &event)?;
            stored
        }
    };
    tx.count(stored.workspace, draft.before.state, after);
    Ok(stored)
}
