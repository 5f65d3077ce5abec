use std::collections::{BTreeMap, HashMap};

use counterfoil_core::{
    Decision, Event, Identity, Kept, OperationId, Phase, Presented, Receipt, State, Status,
    Timestamp, decide, next,
};
use counterfoil_store::{
    Admission, Admitted, Completion, Cursor, Error, Fence, Granted, Page, Query, Slot, SweepPlan,
    Swept,
};

use super::row::{Circumstances, StoredRow, attempt_of};
use super::tx::Statement;

/// Everything a memory store holds. Each method is one whole step.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    last_id: i64,
    by_identity: HashMap<Identity, i64>,
    by_operation: HashMap<OperationId, i64>,
    rows: BTreeMap<i64, StoredRow>,
    pub(super) effects: Vec<Statement>,
    pub(super) versions: HashMap<String, u32>,
    pub(super) notes: HashMap<String, Vec<u8>>,
}

impl Rows {
    pub(super) fn of_identity(&self, identity: &Identity) -> Option<&StoredRow> {
        self.rows.get(self.by_identity.get(identity)?)
    }

    pub(super) fn of_operation(&self, operation_id: OperationId) -> Option<&StoredRow> {
        self.rows.get(self.by_operation.get(&operation_id)?)
    }

    fn of_operation_mut(&mut self, operation_id: OperationId) -> Result<&mut StoredRow, Error> {
        self.by_operation
            .get(&operation_id)
            .and_then(|id| self.rows.get_mut(id))
            .ok_or(Error::NotFound)
    }

    pub(super) fn receipts(&self) -> impl Iterator<Item = &StoredRow> {
        self.rows.values()
    }

    /// Decides, and records a lapsed lease on the way.
    pub(super) fn decide(&mut self, admission: &Admission) -> Result<Decision, Error> {
        let presented = Presented {
            fingerprint: admission.fingerprint,
            inputs: admission.inputs,
            token: Some(admission.token),
        };
        let now = admission.now;
        let found = self.of_identity(&admission.identity);
        let mut decision = decide(found.map(|row| &row.receipt), &presented, now);
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
        let id = self.by_identity.get(&admission.identity);
        if let Some(row) = id.and_then(|id| self.rows.get_mut(id))
            && lapsed
            && row.lapse(now)?
        {
            decision = decide(Some(&row.receipt), &presented, now);
        }
        Ok(decision)
    }

    pub(super) fn admit(
        &mut self,
        admission: &Admission,
        slot: impl FnOnce() -> Slot,
    ) -> Result<Admitted, Error> {
        let decision = self.decide(admission)?;
        if let Decision::Run { replaces } = decision {
            let mode = admission.policy.mode;
            let row = self.reserve(admission, replaces, Event::Admitted { mode }, "admitted")?;
            return Ok(Admitted::Run(granted(row, slot())));
        }
        let row = self.of_identity(&admission.identity);
        let row = row.ok_or_else(|| Error::Corrupt("decided on nothing".to_owned()))?;
        if decision == Decision::Own && row.is_open() {
            return Ok(Admitted::Run(granted(row, slot())));
        }
        let decision = if decision == Decision::Own {
            let presented = Presented {
                fingerprint: admission.fingerprint,
                inputs: admission.inputs,
                token: None,
            };
            decide(Some(&row.receipt), &presented, admission.now)
        } else {
            decision
        };
        let found = row.found_for(decision);
        Ok(Admitted::Decided(decision, Box::new(found)))
    }

    /// The row an admission that runs writes, before anything of it is known to commit.
    pub(super) fn draft(
        &self,
        admission: &Admission,
        replaces: bool,
        event: Event,
        reason: &str,
    ) -> Result<StoredRow, Error> {
        let found = self.of_identity(&admission.identity);
        let mut row = match found {
            Some(row) if !replaces => row.clone(),
            Some(_) | None => fresh(admission),
        };
        let first = row.events.is_empty();
        let before = row.receipt.status.clone();
        let after = next(&before, event).map_err(Error::Fenced)?;
        let from = (!first).then_some(before.state);
        let attempt = after.attempts.latest();
        row.log(
            admission.now,
            attempt,
            from,
            after.state,
            reason.to_owned(),
            None,
        );
        if after.round > before.round
            && let Some(inputs) = admission.inputs
        {
            row.receipt.rounds.push(inputs);
        }
        let policy = &admission.policy;
        let hard_deadline = admission.now.plus(policy.attempt_limit);
        row.receipt = Receipt {
            version: admission.version,
            mode: policy.mode,
            status: after,
            token: admission.token,
            lease_until: admission.now.plus(policy.lease).min(hard_deadline),
            hard_deadline,
            finished_at: None,
            retention: policy.retention,
            ..row.receipt
        };
        Ok(row)
    }

    /// Puts a drafted row in the place of whatever stood under its identity.
    pub(super) fn put(&mut self, row: StoredRow) -> &StoredRow {
        let identity = row.receipt.identity.clone();
        let operation_id = row.receipt.operation_id;
        let standing = self.by_identity.get(&identity).copied();
        let same = |id: &i64| {
            let standing = self.rows.get(id);
            standing.is_some_and(|row| row.receipt.operation_id == operation_id)
        };
        let id = match standing.filter(same) {
            Some(id) => id,
            None => {
                if let Some(old) = standing {
                    self.remove(old);
                }
                self.last_id += 1;
                self.last_id
            }
        };
        self.by_identity.insert(identity, id);
        self.by_operation.insert(operation_id, id);
        self.rows
            .entry(id)
            .and_modify(|standing| *standing = row.clone())
            .or_insert(row)
    }

    fn reserve(
        &mut self,
        admission: &Admission,
        replaces: bool,
        event: Event,
        reason: &str,
    ) -> Result<&StoredRow, Error> {
        let row = self.draft(admission, replaces, event, reason)?;
        Ok(self.put(row))
    }

    fn remove(&mut self, id: i64) {
        if let Some(row) = self.rows.remove(&id) {
            self.by_identity.remove(&row.receipt.identity);
            self.by_operation.remove(&row.receipt.operation_id);
        }
    }

    pub(super) fn complete(
        &mut self,
        fence: Fence,
        completion: Completion,
    ) -> Result<Receipt, Error> {
        let row = self.of_operation_mut(fence.operation_id)?;
        if attempt_of(completion.event) != fence.attempt || fence.attempt == 0 {
            return Err(Error::Fenced(counterfoil_core::Illegal::Fenced));
        }
        let with = Circumstances {
            at: completion.at,
            reason: completion.reason.to_owned(),
            evidence: completion.evidence,
            reply: completion.reply,
            without_reply: completion.kept,
            question_until: completion.at.plus(completion.question_for),
        };
        row.learn(completion.event, with)?;
        Ok(row.receipt.clone())
    }

    pub(super) fn renew(&mut self, fence: Fence, until: Timestamp) -> Result<Timestamp, Error> {
        let row = self.of_operation_mut(fence.operation_id)?;
        if row.fence() != fence || !row.is_open() {
            return Err(Error::Fenced(counterfoil_core::Illegal::Fenced));
        }
        let receipt = &mut row.receipt;
        receipt.lease_until = receipt.lease_until.max(until).min(receipt.hard_deadline);
        Ok(receipt.lease_until)
    }

    pub(super) fn lapse(&mut self, now: Timestamp, limit: u32) -> Result<u32, Error> {
        let mut count = 0;
        for row in self.rows.values_mut() {
            if count == limit {
                break;
            }
            if row.lapse(now)? {
                count += 1;
            }
        }
        Ok(count)
    }

    pub(super) fn record(
        &mut self,
        operation_id: OperationId,
        event: Event,
        at: Timestamp,
        reason: String,
        evidence: Option<String>,
    ) -> Result<Receipt, Error> {
        let row = self.of_operation_mut(operation_id)?;
        let is_attempts = !matches!(
            event,
            Event::CancelRequested | Event::Abandoned | Event::Resolved { .. }
        );
        if is_attempts {
            return Err(Error::Fenced(counterfoil_core::Illegal::NotPossible));
        }
        let happened = matches!(
            event,
            Event::Resolved {
                verdict: counterfoil_core::Verdict::Happened
            }
        );
        let with = Circumstances {
            evidence,
            without_reply: if happened {
                Kept::AnswerLost
            } else {
                Kept::Nothing
            },
            ..Circumstances::bare(at, reason)
        };
        row.learn(event, with)?;
        Ok(row.receipt.clone())
    }

    pub(super) fn list(&self, query: &Query) -> Page {
        let limit = usize::try_from(query.limit.clamp(1, 500)).unwrap_or(1);
        let before = query.cursor.map_or(i64::MAX, |cursor| cursor.0);
        let mut wanted = self.rows.range(..before).rev().filter(|(_, row)| {
            let receipt = &row.receipt;
            let state = receipt.status.state;
            receipt.identity.workspace == query.workspace
                && query
                    .principal
                    .as_ref()
                    .is_none_or(|principal| receipt.identity.principal == *principal)
                && if query.states.is_empty() {
                    state != State::Free
                } else {
                    query.states.contains(&state)
                }
        });
        let mut receipts = Vec::new();
        let mut last = None;
        for (id, row) in wanted.by_ref().take(limit) {
            receipts.push(row.receipt.clone());
            last = Some(Cursor(*id));
        }
        let more = wanted.next().is_some();
        Page {
            receipts,
            next: last.filter(|_| more),
        }
    }

    pub(super) fn sweep(&mut self, plan: SweepPlan) -> Swept {
        let limit = usize::try_from(plan.limit.max(1)).unwrap_or(1);
        let from = plan.after.saturating_add(1);
        let looked_at: Vec<i64> = self
            .rows
            .range(from..)
            .take(limit)
            .map(|(id, _)| *id)
            .collect();
        let mut swept = Swept::default();
        for id in &looked_at {
            let Some(row) = self.rows.get_mut(id) else {
                continue;
            };
            match row.receipt.phase(plan.horizon) {
                Phase::Live => {}
                Phase::Tombstone => {
                    let had = row.reply.take().is_some();
                    row.questions.clear();
                    if had {
                        row.receipt.kept = Kept::Nothing;
                        swept.results += 1;
                    }
                }
                Phase::Gone => {
                    self.remove(*id);
                    swept.receipts += 1;
                }
            }
        }
        swept.next = looked_at
            .last()
            .copied()
            .filter(|last| self.rows.range(last.saturating_add(1)..).next().is_some());
        swept
    }

    pub(super) fn apply_mark(&mut self, fence: Fence) -> Result<(), Error> {
        let attempt = fence.attempt;
        let row = self.of_operation_mut(fence.operation_id)?;
        // The flag is set at whatever time its transaction has; the log keeps the order.
        let at = row
            .events
            .last()
            .map_or(row.receipt.created_at, |event| event.at);
        row.learn(
            Event::Committed { attempt },
            Circumstances::bare(at, "write committed"),
        )
    }
}

fn granted(row: &StoredRow, slot: Slot) -> Granted {
    Granted {
        fence: row.fence(),
        round: row.receipt.status.round,
        lease_until: row.receipt.lease_until,
        hard_deadline: row.receipt.hard_deadline,
        slot,
    }
}

fn fresh(admission: &Admission) -> StoredRow {
    StoredRow {
        receipt: Receipt {
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
        },
        reply: None,
        questions: Vec::new(),
        events: Vec::new(),
    }
}
