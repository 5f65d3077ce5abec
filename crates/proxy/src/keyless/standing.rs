//! What the receipts of earlier calls say.

use counterfoil_core::{Effect, Identity, Key, Phase, Receipt, State, Target, Timestamp};
use counterfoil_store::{Error, Query, Store};

use super::{KeylessCall, judge::Standing};

/// Receipts in one part of a list.
const PAGE: u32 = 100;
/// Parts that are looked at for a mutation since; what is newer than all of them counts as one.
const PAGES_MAX: usize = 5;

impl KeylessCall {
    /// The identity of this call under a key.
    pub(super) fn identity(&self, operation: &str, key: &Key) -> Identity {
        Identity {
            workspace: self.workspace.clone(),
            principal: self.principal.clone(),
            target: Target {
                operation: operation.to_owned(),
                parameters: Vec::new(),
                upstream: self.upstream.clone(),
            },
            key: key.clone(),
        }
    }

    /// The receipt is one of an identical call. Where the target names the tool the fingerprints
    /// must agree; under `*` they cover the tool's name as well, and the digest has told already.
    fn is_same(&self, receipt: &Receipt) -> bool {
        receipt.identity.target.operation != self.operation
            || receipt.fingerprint == self.fingerprint
    }
}

/// Where the receipt of an earlier call stands.
pub(super) async fn standing(
    store: &dyn Store,
    call: &KeylessCall,
    receipt: &Receipt,
    now: Timestamp,
) -> Result<Standing, Error> {
    if !call.is_same(receipt) || receipt.phase(now) == Phase::Gone {
        return Ok(Standing::Nothing);
    }
    let overdue = receipt.overdue(now).is_some();
    Ok(match receipt.status.state {
        State::Free | State::Cancelled => Standing::Nothing,
        State::Running | State::CancelRequested if overdue => Standing::Unknown {
            since: receipt.lease_until,
        },
        State::Accepted | State::Running | State::CancelRequested => Standing::Running,
        State::InputRequired | State::Succeeded | State::Failed
            if receipt.effect() == Effect::None =>
        {
            Standing::Nothing
        }
        State::InputRequired if overdue => Standing::Unknown {
            since: receipt.lease_until,
        },
        State::InputRequired => Standing::Asking,
        State::Succeeded | State::Failed => Standing::Finished {
            at: receipt.finished_at.unwrap_or(receipt.created_at),
        },
        State::OutcomeUnknown => Standing::Unknown {
            since: unknown_since(store, receipt).await?,
        },
    })
}

/// When it became unknown: the row of its log says so.
async fn unknown_since(store: &dyn Store, receipt: &Receipt) -> Result<Timestamp, Error> {
    let events = store.events(receipt.operation_id).await?;
    let turned = events
        .iter()
        .rev()
        .find(|event| {
            event.to == State::OutcomeUnknown && event.from != Some(State::OutcomeUnknown)
        })
        .map(|event| event.at);
    Ok(turned.unwrap_or(receipt.created_at))
}

/// Whether another mutating call of this principal to this upstream started after `earlier`. From
/// the receipts, which are durable before anything is sent, whoever sent it. If too many are newer
/// it counts as yes.
pub(super) async fn mutated_since(
    store: &dyn Store,
    call: &KeylessCall,
    earlier: &Receipt,
) -> Result<bool, Error> {
    let mut query = Query {
        workspace: call.workspace.clone(),
        principal: Some(call.principal.clone()),
        states: Vec::new(),
        cursor: None,
        limit: PAGE,
    };
    let mut passed = false;
    for _ in 0..PAGES_MAX {
        let page = store.list(&query).await?;
        for receipt in &page.receipts {
            if receipt.operation_id == earlier.operation_id {
                passed = true;
            } else if receipt.identity.target.upstream == call.upstream
                && (!passed || began_anew(receipt, earlier.created_at))
            {
                return Ok(true);
            }
        }
        query.cursor = page.next;
        if query.cursor.is_none() {
            break;
        }
    }
    Ok(!passed)
}

/// An older receipt may have had another attempt since: after a release, or in a later round.
fn began_anew(receipt: &Receipt, since: Timestamp) -> bool {
    let ended_before =
        receipt.status.state.is_finished() && receipt.finished_at.is_some_and(|at| at < since);
    receipt.status.attempts.latest() > 1 && !ended_before
}
