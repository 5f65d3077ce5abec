use std::collections::{BTreeMap, HashMap, btree_map::Entry};

use counterfoil_core::{
    Decision, Event, Identity, Kept, OperationId, Phase, Receipt, State, Timestamp,
};
use counterfoil_store::{
    Admission, Admitted, Census, Change, Clash, Completion, Cursor, EXPORT_BYTES, Error, Fence,
    Granted, Imported, Page, Part, Query, Slot, SweepPlan, Swept, Whole, lapsed, recorded, renewed,
};

use super::row::StoredRow;
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
        let found = self.of_identity(&admission.identity);
        let (decision, overtaken) = admission.judge(found.map(|row| &row.receipt))?;
        if let Some(change) = overtaken {
            self.write(change);
        }
        Ok(decision)
    }

    /// The row that an admission goes on with, if it does not replace it.
    pub(super) fn standing(&self, admission: &Admission, replaces: bool) -> Option<&Receipt> {
        let row = self
            .of_identity(&admission.identity)
            .filter(|_| !replaces)?;
        Some(&row.receipt)
    }

    pub(super) fn admit(
        &mut self,
        admission: &Admission,
        slot: impl FnOnce() -> Slot,
    ) -> Result<Admitted, Error> {
        let decision = self.decide(admission)?;
        if let Decision::Run { replaces } = decision {
            let change = admission.reserve(self.standing(admission, replaces))?;
            let row = self.write(change);
            return Ok(Admitted::Run(granted(row, slot())));
        }
        let row = self.of_identity(&admission.identity);
        let row = row.ok_or_else(|| Error::Corrupt("decided on nothing".to_owned()))?;
        if decision == Decision::Own && row.receipt.is_open() {
            return Ok(Admitted::Run(granted(row, slot())));
        }
        let decision = if decision == Decision::Own {
            admission.judge_as_another(&row.receipt)
        } else {
            decision
        };
        let found = row.found_for(decision);
        Ok(Admitted::Decided(decision, Box::new(found)))
    }

    /// Writes a row; one that begins, in the place of whatever stood under its identity.
    pub(super) fn write(&mut self, change: Change<'_>) -> &StoredRow {
        let identity = change.receipt.identity.clone();
        let operation_id = change.receipt.operation_id;
        let standing = self.by_identity.get(&identity).copied();
        // An admission repeated after all its windows is still one operation.
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
        if change.event.from.is_none() {
            self.rows.remove(&id);
        }
        match self.rows.entry(id) {
            Entry::Occupied(entry) => {
                let row = entry.into_mut();
                row.write(change);
                row
            }
            Entry::Vacant(entry) => entry.insert(StoredRow::new(change)),
        }
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
        completion: &Completion,
    ) -> Result<Receipt, Error> {
        let row = self.of_operation_mut(fence.operation_id)?;
        if let Some(change) = completion.apply(fence, &row.receipt)? {
            row.write(change);
        }
        Ok(row.receipt.clone())
    }

    pub(super) fn renew(&mut self, fence: Fence, until: Timestamp) -> Result<Timestamp, Error> {
        let row = self.of_operation_mut(fence.operation_id)?;
        row.receipt.lease_until = renewed(&row.receipt, fence, until)?;
        Ok(row.receipt.lease_until)
    }

    pub(super) fn lapse(&mut self, now: Timestamp, limit: u32) -> Result<u32, Error> {
        let mut count = 0;
        for row in self.rows.values_mut() {
            if count == limit {
                break;
            }
            if let Some(change) = lapsed(&row.receipt, now)? {
                row.write(change);
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
        reason: &str,
        evidence: Option<&str>,
    ) -> Result<Receipt, Error> {
        let row = self.of_operation_mut(operation_id)?;
        if let Some(change) = recorded(&row.receipt, event, at, reason, evidence)? {
            row.write(change);
        }
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

    pub(super) fn export(&self, after: i64, limit: u32) -> Part {
        let limit = usize::try_from(limit.max(1)).unwrap_or(1);
        let mut part = Part::default();
        let mut bytes = 0;
        for (id, row) in self.rows.range(after.saturating_add(1)..) {
            let whole = row.whole();
            bytes += whole.size();
            part.rows.push(whole);
            if bytes >= EXPORT_BYTES || part.rows.len() == limit {
                part.next = Some(*id);
                break;
            }
        }
        part
    }

    pub(super) fn import(&mut self, brought: Vec<Whole>) -> Result<Imported, Clash> {
        let mut new = Vec::new();
        let mut same = 0;
        let stands = |row: Option<&StoredRow>| row.map(|row| row.whole().portable());
        for whole in brought {
            let of_operation = stands(self.of_operation(whole.receipt.operation_id));
            let of_identity = stands(self.of_identity(&whole.receipt.identity));
            if whole.is_new(of_operation.as_ref(), of_identity.as_ref())? {
                new.push(whole);
            } else {
                same += 1;
            }
        }
        let imported = Imported {
            new: u64::try_from(new.len()).unwrap_or(u64::MAX),
            same,
        };
        for whole in new {
            self.last_id += 1;
            let receipt = &whole.receipt;
            self.by_identity
                .insert(receipt.identity.clone(), self.last_id);
            self.by_operation.insert(receipt.operation_id, self.last_id);
            self.rows.insert(self.last_id, StoredRow::of_whole(whole));
        }
        Ok(imported)
    }

    pub(super) fn census(&self) -> Census {
        let count = |state: &State| {
            let in_state = |row: &&StoredRow| row.receipt.status.state == *state;
            u64::try_from(self.receipts().filter(in_state).count()).unwrap_or(u64::MAX)
        };
        let counted = State::all().map(|state| (state, count(&state)));
        Census {
            receipts: counted.filter(|(_, count)| *count > 0).collect(),
            ..Census::default()
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
