//! Admission: look, decide, reserve, in one transaction.

use counterfoil_core::{Decision, Receipt, Timestamp};
use counterfoil_store::{Admission, Change, Error, Fence, Found};

use crate::{
    record::{Place, put},
    rows::{self, Stored},
    tx::{Halt, Stepped, Tx},
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

/// Decides on what stands, and records a lapsed lease on the way.
pub(crate) fn judge(tx: &mut Tx<'_>, admission: &Admission) -> Stepped<(Decision, Option<Stored>)> {
    let mut stored = tx.of_identity(&admission.identity)?;
    let found = stored.as_ref().map(|stored| &stored.receipt);
    let (decision, change) = admission.judge(found).map_err(Halt::Said)?;
    if let (Some(change), Some(overtaken)) = (change, &stored) {
        stored = Some(put(tx, Place::Of(overtaken), change)?);
    }
    Ok((decision, stored))
}

/// The reservation of a guarded or dispatched operation.
pub(crate) fn admit(tx: &mut Tx<'_>, admission: &Admission) -> Stepped<Admittance> {
    let (mut decision, stored) = judge(tx, admission)?;
    if let Decision::Run { replaces } = decision {
        let spot = Spot::new(stored, replaces);
        let change = admission.reserve(spot.standing()).map_err(Halt::Said)?;
        let receipt = enter(tx, admission, &spot, change)?.receipt;
        return Ok(Admittance::Run(reserved(&receipt)));
    }
    let stored = stored.ok_or_else(nothing_found)?;
    if decision == Decision::Own {
        if stored.receipt.is_open() {
            return Ok(Admittance::Run(reserved(&stored.receipt)));
        }
        decision = admission.judge_as_another(&stored.receipt);
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

/// What an admission that runs has found.
#[derive(Debug)]
pub(crate) enum Spot {
    /// Nothing.
    Empty,
    /// A row that goes on.
    Standing(Stored),
    /// A row that is over and past every window; it goes.
    Replaced(Stored),
}

impl Spot {
    pub(crate) fn new(stored: Option<Stored>, replaces: bool) -> Self {
        match stored {
            None => Self::Empty,
            Some(stored) if replaces => Self::Replaced(stored),
            Some(stored) => Self::Standing(stored),
        }
    }

    /// The row that goes on, if there is one.
    pub(crate) fn standing(&self) -> Option<&Receipt> {
        match self {
            Self::Standing(stored) => Some(&stored.receipt),
            Self::Empty | Self::Replaced(_) => None,
        }
    }
}

/// Writes what an admission makes of its spot, if the workspace may hold one more.
pub(crate) fn enter(
    tx: &mut Tx<'_>,
    admission: &Admission,
    spot: &Spot,
    change: Change<'_>,
) -> Stepped<Stored> {
    let scope = tx.scope_or_create(&admission.identity)?;
    if change.unresolved() > 0 {
        let limit = tx.shared.options.unresolved_max;
        if tx.unresolved(scope.workspace)? >= limit {
            return Err(Halt::Said(Error::Quota { limit }));
        }
    }
    let place = match spot {
        Spot::Empty => Place::New { scope, id: None },
        Spot::Standing(stored) => Place::Of(stored),
        // Only finished and released receipts age, so the tally of unresolved ones stays.
        Spot::Replaced(replaced) => {
            rows::delete(tx.sqlite(), replaced.id)?;
            // An admission repeated after all its windows is still one operation.
            let same = replaced.receipt.operation_id == change.receipt.operation_id;
            let id = same.then_some(replaced.id);
            Place::New { scope, id }
        }
    };
    put(tx, place, change)
}
