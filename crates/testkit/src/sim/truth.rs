use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use counterfoil_core::{Identity, OperationId, Receipt, Retention, State, Timestamp};

/// What really happened, told by those who did it: the upstream, the store's rows as they were
/// written, the callers' answers.
#[derive(Debug, Default)]
pub(super) struct Truth {
    /// Effects at the upstream.
    pub(super) counted: HashMap<OperationId, u32>,
    /// Attempts that may have sent.
    pub(super) sent: HashMap<OperationId, Vec<u32>>,
    /// The latest attempt that a row was seen to be reserved for.
    pub(super) reserved: HashMap<OperationId, u32>,
    /// The latest attempt whose handler began.
    pub(super) begun: HashMap<OperationId, u32>,
    /// The answer of an operation, as first acknowledged.
    pub(super) answers: HashMap<OperationId, Acknowledged>,
    /// When an operation ended, and how long it is good for.
    pub(super) ended: HashMap<OperationId, (Timestamp, Retention)>,
    /// Every payload ever sent under an identity.
    pub(super) payloads: HashMap<Identity, HashSet<u8>>,
    /// Calls that were told that nothing was done.
    pub(super) nothing_done: HashSet<u64>,
    pub(super) violations: Vec<String>,
    pub(super) trace: Vec<String>,
    pub(super) answered: BTreeMap<&'static str, u64>,
    pub(super) faults: u64,
    pub(super) serial: u64,
}

/// An acknowledged answer.
#[derive(Clone, Debug)]
pub(super) struct Acknowledged {
    pub(super) identity: Identity,
    pub(super) payload: u8,
    pub(super) body: Bytes,
    pub(super) atomic: bool,
}

impl Truth {
    pub(super) fn effects(&self, operation_id: OperationId) -> u32 {
        self.counted.get(&operation_id).copied().unwrap_or(0)
    }

    /// A row as it was just written: what it establishes must be so.
    pub(super) fn judge_row(&mut self, receipt: &Receipt) {
        let id = receipt.operation_id;
        let reserved = self.reserved.entry(id).or_default();
        *reserved = receipt.status.attempts.latest().max(*reserved);
        let effects = self.effects(id);
        let none = receipt.effect() == counterfoil_core::Effect::None;
        if none && effects > 0 {
            self.violations.push(format!(
                "I3: {id} is {:?} with effect none, and the upstream counted {effects}",
                receipt.status
            ));
        }
        match receipt.status.state {
            State::Succeeded | State::Failed | State::Cancelled => {
                if let Some(at) = receipt.finished_at {
                    self.ended.entry(id).or_insert((at, receipt.retention));
                } else {
                    let state = receipt.status.state;
                    self.violations
                        .push(format!("I6: {id} is {state:?} and has no end"));
                }
            }
            State::Free => {
                if let Some(at) = receipt.finished_at {
                    self.ended.insert(id, (at, receipt.retention));
                }
            }
            State::Accepted
            | State::Running
            | State::CancelRequested
            | State::InputRequired
            | State::OutcomeUnknown => {
                self.ended.remove(&id);
            }
        }
    }
}

/// The end of both windows of something that ended at `at`.
pub(super) fn gone_at(at: Timestamp, retention: Retention) -> Timestamp {
    at.plus(retention.replay_for.max(retention.tombstone_for))
}
