use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::{
    Event, EventRecord, Identity, OperationId, Receipt, State, Timestamp, WorkspaceId,
};
use counterfoil_engine::Clock as _;
use counterfoil_store::{
    Admission, Admitted, Atomic, AtomicHandler, BoxFuture, Census, Clash, Completion, Dialect,
    Error, Fence, Found, Health, Imported, Inspection, Migration, Page, Part, Query, ReadWork,
    Store, StoredReply, SweepPlan, Swept, Whole, Work,
};

use super::process::Life;
use super::truth::gone_at;
use super::world::World;
use crate::MemoryStore;

/// How long two sweeps that agree on an expiry are apart at least, less what a clock may be
/// adjusted by in between.
const SWEEPS_APART: Duration = Duration::from_secs(3600 - 300);

/// Longer than any admission is on its way.
const PATIENCE_MAX: Duration = Duration::from_secs(35);

/// Stands between the faults and the memory store: whatever really reaches the rows is judged
/// here, against what the upstream knows.
pub(super) struct Observer {
    world: Arc<World>,
    life: Arc<Life>,
}

impl Observer {
    pub(super) const fn new(world: Arc<World>, life: Arc<Life>) -> Self {
        Self { world, life }
    }

    fn memory(&self) -> &MemoryStore {
        self.world.memory()
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        self.world.trace(what);
    }

    /// A store lets no admission wait beyond its patience: one that was on its way for longer, or
    /// over a jump of the clock, is refused before it is looked at.
    fn check_patience(&self, now: Timestamp) -> Result<(), Error> {
        let waited = self.world.now().as_millis().abs_diff(now.as_millis());
        if Duration::from_millis(waited) <= PATIENCE_MAX {
            return Ok(());
        }
        self.trace(|| format!("  an admission of {now:?} has run out of patience"));
        Err(Error::Busy {
            retry_after: Duration::from_secs(1),
        })
    }

    fn judge(&self, receipt: &Receipt) {
        self.world.truth(|truth| truth.judge_row(receipt));
    }

    fn judge_all(&self) {
        for receipt in self.memory().receipts() {
            self.judge(&receipt);
        }
    }

    fn judge_identity(&self, identity: &Identity, before: Option<&Receipt>, now: Timestamp) {
        let after = self.memory().peek(identity);
        if let (Some(before), Some(after)) = (before, &after)
            && before.operation_id != after.operation_id
        {
            self.judge_replaced(before, now);
        }
        if let Some(after) = &after {
            self.judge(after);
        }
    }

    /// A key became a new action: only once both windows of what stood there are over.
    fn judge_replaced(&self, old: &Receipt, now: Timestamp) {
        let ended = match old.status.state {
            State::Succeeded | State::Failed | State::Cancelled | State::Free => old.finished_at,
            State::Accepted
            | State::Running
            | State::CancelRequested
            | State::InputRequired
            | State::OutcomeUnknown => None,
        };
        if ended.is_none_or(|at| now < gone_at(at, old.retention)) {
            let id = old.operation_id;
            self.world.violation(format!(
                "I2: {id} in {:?} ended {ended:?} was replaced at {now:?}",
                old.status.state
            ));
        }
    }

    fn judge_swept(&self, before: &[Receipt], plan: SweepPlan) {
        let clock = self.world.clock();
        let left = self.memory().receipts();
        let is_left = |id| left.iter().any(|row| row.operation_id == id);
        for old in before.iter().filter(|old| !is_left(old.operation_id)) {
            self.judge_replaced(old, plan.horizon);
            if plan.horizon.plus(SWEEPS_APART) > clock.now() {
                let id = old.operation_id;
                self.world.violation(format!(
                    "I2: {id} was purged by one sweep alone, horizon {:?} at {:?}",
                    plan.horizon,
                    clock.now()
                ));
            }
        }
    }
}

impl Store for Observer {
    fn find<'a>(&'a self, identity: &'a Identity) -> BoxFuture<'a, Result<Option<Found>, Error>> {
        self.memory().find(identity)
    }

    fn get(&self, operation_id: OperationId) -> BoxFuture<'_, Result<Option<Found>, Error>> {
        self.memory().get(operation_id)
    }

    fn question(
        &self,
        operation_id: OperationId,
        round: u16,
    ) -> BoxFuture<'_, Result<Option<StoredReply>, Error>> {
        self.memory().question(operation_id, round)
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>> {
        self.memory().list(query)
    }

    fn events(&self, operation_id: OperationId) -> BoxFuture<'_, Result<Vec<EventRecord>, Error>> {
        self.memory().events(operation_id)
    }

    fn admit(&self, admission: Admission) -> BoxFuture<'_, Result<Admitted, Error>> {
        Box::pin(async move {
            let identity = admission.identity.clone();
            self.check_patience(admission.now)?;
            let now = self.now().unwrap_or(admission.now);
            let before = self.memory().peek(&identity);
            let admitted = self.memory().admit(admission).await;
            self.trace(|| format!("  admit {}: {admitted:?}", identity.target));
            self.judge_identity(&identity, before.as_ref(), now);
            admitted
        })
    }

    fn atomically(
        &self,
        admission: Admission,
        handler: Arc<dyn AtomicHandler>,
    ) -> BoxFuture<'_, Result<Atomic, Error>> {
        Box::pin(async move {
            let identity = admission.identity.clone();
            self.check_patience(admission.now)?;
            let now = self.now().unwrap_or(admission.now);
            let before = self.memory().peek(&identity);
            let done = self.memory().atomically(admission, handler).await;
            self.trace(|| format!("  atomically {}: {done:?}", identity.target));
            self.judge_identity(&identity, before.as_ref(), now);
            done
        })
    }

    fn complete(
        &self,
        fence: Fence,
        completion: Completion,
    ) -> BoxFuture<'_, Result<Receipt, Error>> {
        Box::pin(async move {
            let event = completion.event;
            let recorded = self.memory().complete(fence, completion).await;
            self.trace(|| format!("  complete {fence:?} {event:?}: {recorded:?}"));
            self.judge_all();
            recorded
        })
    }

    fn renew(
        &self,
        fence: Fence,
        now: Timestamp,
        lease: Duration,
    ) -> BoxFuture<'_, Result<Timestamp, Error>> {
        self.memory().renew(fence, now, lease)
    }

    fn lapse(&self, now: Timestamp, limit: u32) -> BoxFuture<'_, Result<u32, Error>> {
        Box::pin(async move {
            let lapsed = self.memory().lapse(now, limit).await;
            self.trace(|| format!("  lapse at {now:?}: {lapsed:?}"));
            self.judge_all();
            lapsed
        })
    }

    fn record(
        &self,
        operation_id: OperationId,
        event: Event,
        at: Timestamp,
        reason: String,
        evidence: Option<String>,
    ) -> BoxFuture<'_, Result<Receipt, Error>> {
        Box::pin(async move {
            let recorded = self
                .memory()
                .record(operation_id, event, at, reason, evidence)
                .await;
            self.trace(|| format!("  record {operation_id} {event:?}: {recorded:?}"));
            self.judge_all();
            recorded
        })
    }

    fn sweep(&self, plan: SweepPlan) -> BoxFuture<'_, Result<Swept, Error>> {
        Box::pin(async move {
            let before = self.memory().receipts();
            let swept = self.memory().sweep(plan).await;
            self.trace(|| format!("  sweep {plan:?}: {swept:?}"));
            self.judge_swept(&before, plan);
            swept
        })
    }

    fn transact<'a>(
        &'a self,
        workspace: Option<&'a WorkspaceId>,
        work: Arc<dyn Work>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let done = self.memory().transact(workspace, work).await;
            self.trace(|| format!("  transact: {done:?}"));
            self.world.count_marked();
            done
        })
    }

    fn read<'a>(&'a self, work: Box<dyn ReadWork + 'a>) -> BoxFuture<'a, Result<(), Error>> {
        self.memory().read(work)
    }

    fn migrate<'a>(
        &'a self,
        component: &'a str,
        steps: &'a [Migration],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.memory().migrate(component, steps)
    }

    fn note<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Error>> {
        self.memory().note(name)
    }

    fn set_note<'a>(&'a self, name: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>> {
        self.memory().set_note(name, value)
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, Error>> {
        Box::pin(async move {
            self.life.checkpoint().await;
            self.memory().health().await
        })
    }

    fn export(&self, after: i64, limit: u32) -> BoxFuture<'_, Result<Part, Error>> {
        self.memory().export(after, limit)
    }

    fn import(&self, rows: Vec<Whole>) -> BoxFuture<'_, Result<Result<Imported, Clash>, Error>> {
        Box::pin(async move {
            let imported = self.memory().import(rows).await;
            self.trace(|| format!("  import: {imported:?}"));
            self.judge_all();
            imported
        })
    }

    fn census(&self) -> BoxFuture<'_, Result<Census, Error>> {
        self.memory().census()
    }

    fn inspect(&self) -> BoxFuture<'_, Result<Inspection, Error>> {
        self.memory().inspect()
    }

    fn dialect(&self) -> Dialect {
        Dialect::Memory
    }

    fn is_shared(&self) -> bool {
        self.memory().is_shared()
    }

    fn now(&self) -> Option<Timestamp> {
        self.memory().now()
    }

    fn changed(&self, operation_id: OperationId) -> BoxFuture<'_, ()> {
        self.memory().changed(operation_id)
    }
}
