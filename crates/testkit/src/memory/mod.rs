mod row;
mod rows;
mod tx;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use counterfoil_core::{
    Decision, Event, EventRecord, Identity, Kept, OperationId, Receipt, Timestamp, WorkspaceId,
};
use counterfoil_engine::Clock;
use counterfoil_store::{
    Admission, Admitted, Atomic, AtomicHandler, BoxFuture, Census, Clash, Completion, Dialect,
    Error, Failure, Fence, Found, Health, Imported, Inspection, Migration, Page, Part, Query,
    ReadWork, Slot, Store, StoredReply, SweepPlan, Swept, Watched, Whole, Work, check_note,
    distinct,
};
use futures_util::FutureExt;
use tokio::sync::Notify;

use rows::Rows;
pub use tx::Statement;
use tx::Tx;

/// A store in memory: one mutex around a map, every step decided by the functions of
/// `counterfoil-core`. Deliberately simple and strict, so that it can be the model of the others.
///
/// It outlives a "process": share it between engines by `Arc`, and drop an engine to crash it.
///
/// Application statements are kept in a journal instead of being run. `execute` answers 1; a
/// query answers one row for each `INSERT` into the table after its `FROM`, committed or of its
/// own transaction, the oldest first, holding that statement's parameters. What was committed can
/// be had from [`MemoryStore::effects`].
///
/// A handler that awaits anything but its transaction is refused with [`Error::Handler`].
#[derive(Debug, Default)]
pub struct MemoryStore {
    rows: Mutex<Rows>,
    slots: Arc<AtomicU64>,
    unresolved_max: Option<u64>,
    clock: Option<OwnClock>,
    changes: Option<Notify>,
}

/// The clock of a store that has one.
struct OwnClock(Arc<dyn Clock>);

impl fmt::Debug for OwnClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnClock")
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store that refuses to run in a workspace with this many unresolved receipts.
    #[must_use]
    pub fn with_unresolved_max(limit: u64) -> Self {
        Self {
            unresolved_max: Some(limit),
            ..Self::default()
        }
    }

    /// An empty store with a clock of its own, as a database server has one: its steps use it in
    /// place of every time they are handed.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock: Some(OwnClock(clock)),
            ..Self::default()
        }
    }

    /// An empty store that tells every change of a row to everyone who listens to any.
    #[must_use]
    pub fn telling_changes() -> Self {
        Self {
            changes: Some(Notify::new()),
            ..Self::default()
        }
    }

    /// The committed application statements, in the order of their commits.
    #[must_use]
    pub fn effects(&self) -> Vec<Statement> {
        self.lock().effects.clone()
    }

    /// Every receipt, in the order of their first reservations.
    #[must_use]
    pub fn receipts(&self) -> Vec<Receipt> {
        let rows = self.lock();
        rows.receipts().map(|row| row.receipt.clone()).collect()
    }

    /// The receipt under an identity.
    #[must_use]
    pub fn peek(&self, identity: &Identity) -> Option<Receipt> {
        let rows = self.lock();
        rows.of_identity(identity).map(|row| row.receipt.clone())
    }

    /// An answer is stored for this operation.
    #[must_use]
    pub fn is_stored(&self, operation_id: OperationId) -> bool {
        let rows = self.lock();
        let row = rows.of_operation(operation_id);
        row.is_some_and(|row| row.reply.is_some())
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, handed: Timestamp) -> Timestamp {
        self.now().unwrap_or(handed)
    }

    /// A step that may have changed a row is told to those who listen.
    fn told<T>(&self, done: T) -> T {
        if let Some(changes) = &self.changes {
            changes.notify_waiters();
        }
        done
    }

    fn slot(&self) -> Slot {
        self.slots.fetch_add(1, Ordering::SeqCst);
        Slot::new(Booked(Arc::clone(&self.slots)))
    }

    fn check_quota(&self, rows: &Rows, admission: &Admission) -> Result<(), Error> {
        let Some(limit) = self.unresolved_max else {
            return Ok(());
        };
        let workspace = &admission.identity.workspace;
        let held = rows
            .receipts()
            .filter(|row| row.receipt.status.state.is_unresolved())
            .filter(|row| row.receipt.identity.workspace == *workspace)
            .filter(|row| row.receipt.identity != admission.identity)
            .count();
        if u64::try_from(held).unwrap_or(u64::MAX) < limit {
            Ok(())
        } else {
            Err(Error::Quota { limit })
        }
    }

    fn admit_now(&self, admission: &Admission) -> Result<Admitted, Error> {
        let mut rows = self.lock();
        let limited = self.unresolved_max.is_some();
        if limited && matches!(rows.decide(admission)?, Decision::Run { .. }) {
            self.check_quota(&rows, admission)?;
        }
        rows.admit(admission, || self.slot())
    }

    fn atomically_now(
        &self,
        admission: &Admission,
        handler: &dyn AtomicHandler,
    ) -> Result<Atomic, Error> {
        let mut rows = self.lock();
        let decision = rows.decide(admission)?;
        let Decision::Run { replaces } = decision else {
            let row = rows.of_identity(&admission.identity);
            let row = row.ok_or_else(|| Error::Corrupt("decided on nothing".to_owned()))?;
            let found = Box::new(row.found_for(decision));
            return Ok(if decision == Decision::Own {
                Atomic::Own(found)
            } else {
                Atomic::Decided(decision, found)
            });
        };
        self.check_quota(&rows, admission)?;
        let standing = rows.standing(admission, replaces);
        let draft = admission.execute(standing, false, Err(Kept::Nothing))?;
        let operation_id = draft.receipt.operation_id;
        let mut tx = Tx::new(&rows);
        let mut watched = Watched::new(&mut tx);
        let outcome = run_ready(handler.call(operation_id, &mut watched))?;
        if let (Ok(_), Some(error)) = (&outcome, watched.failed()) {
            return Err(error);
        }
        let (journal, marks) = (tx.journal, tx.marks);
        let (reply, refused) = match outcome {
            Ok(reply) => (reply, false),
            Err(Failure::Refused(reply)) => (reply, true),
            Err(Failure::Aborted(reply)) => return Ok(Atomic::Aborted(reply)),
            Err(Failure::Store(error)) => return Err(error),
        };
        let kept = keep(handler, operation_id, &reply)?;
        let standing = rows.standing(admission, replaces);
        let change = admission.execute(standing, refused, kept.as_ref().map_err(|kept| *kept))?;
        let receipt = change.receipt.clone();
        if !refused {
            for mark in marks.into_values() {
                rows.write(mark);
            }
            rows.effects.extend(journal);
        }
        rows.write(change);
        Ok(Atomic::Ran(Box::new(receipt), reply))
    }

    fn transact_now(&self, work: &dyn Work) -> Result<(), Error> {
        let mut rows = self.lock();
        let mut tx = Tx::new(&rows);
        let mut watched = Watched::new(&mut tx);
        run_ready(work.call(&mut watched))??;
        if let Some(error) = watched.failed() {
            return Err(error);
        }
        let (journal, marks) = (tx.journal, tx.marks);
        for mark in marks.into_values() {
            rows.write(mark);
        }
        rows.effects.extend(journal);
        Ok(())
    }

    fn migrate_now(&self, component: &str, steps: &[Migration]) -> Result<(), Error> {
        let gapless = (1..)
            .zip(steps)
            .all(|(number, step)| step.version == number);
        if !gapless {
            return Err(Error::Corrupt(format!(
                "the migrations of {component} are not numbered 1, 2, …"
            )));
        }
        let newest = steps.last().map_or(0, |step| step.version);
        let mut rows = self.lock();
        let stands = rows.versions.entry(component.to_owned()).or_insert(0);
        if *stands > newest {
            return Err(Error::Unavailable(format!(
                "the tables of {component} are of version {stands}, this program knows {newest}; \
                 use a newer program"
            )));
        }
        *stands = newest;
        Ok(())
    }
}

/// A booked slot; counted until it is dropped.
struct Booked(Arc<AtomicU64>);

impl Drop for Booked {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs a handler to its end in one poll: it may await nothing but its transaction, which is
/// always ready. A panic is an error of the handler.
fn run_ready<T>(future: impl Future<Output = T>) -> Result<T, Error> {
    match AssertUnwindSafe(future).catch_unwind().now_or_never() {
        Some(Ok(output)) => Ok(output),
        Some(Err(_)) => Err(Error::Handler("it panicked".to_owned())),
        None => Err(Error::Handler(
            "it awaited something other than its transaction".to_owned(),
        )),
    }
}

fn keep(
    handler: &dyn AtomicHandler,
    operation_id: OperationId,
    reply: &counterfoil_core::Reply,
) -> Result<Result<StoredReply, Kept>, Error> {
    std::panic::catch_unwind(AssertUnwindSafe(|| handler.keep(operation_id, reply)))
        .map_err(|_| Error::Handler("it panicked while its answer was prepared".to_owned()))
}

impl Store for MemoryStore {
    fn find<'a>(&'a self, identity: &'a Identity) -> BoxFuture<'a, Result<Option<Found>, Error>> {
        Box::pin(async move { Ok(self.lock().of_identity(identity).map(row::StoredRow::found)) })
    }

    fn get(&self, operation_id: OperationId) -> BoxFuture<'_, Result<Option<Found>, Error>> {
        Box::pin(async move {
            let rows = self.lock();
            Ok(rows.of_operation(operation_id).map(row::StoredRow::found))
        })
    }

    fn question(
        &self,
        operation_id: OperationId,
        round: u16,
    ) -> BoxFuture<'_, Result<Option<StoredReply>, Error>> {
        Box::pin(async move {
            let rows = self.lock();
            let row = rows.of_operation(operation_id);
            Ok(row.and_then(|row| row.question(round)))
        })
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>> {
        Box::pin(async move { Ok(self.lock().list(query)) })
    }

    fn events(&self, operation_id: OperationId) -> BoxFuture<'_, Result<Vec<EventRecord>, Error>> {
        Box::pin(async move {
            let rows = self.lock();
            let row = rows.of_operation(operation_id);
            Ok(row.map_or_else(Vec::new, |row| {
                row.events.iter().take(1000).cloned().collect()
            }))
        })
    }

    fn admit(&self, mut admission: Admission) -> BoxFuture<'_, Result<Admitted, Error>> {
        Box::pin(async move {
            admission.now = self.at(admission.now);
            self.told(self.admit_now(&admission))
        })
    }

    fn atomically(
        &self,
        mut admission: Admission,
        handler: Arc<dyn AtomicHandler>,
    ) -> BoxFuture<'_, Result<Atomic, Error>> {
        Box::pin(async move {
            admission.now = self.at(admission.now);
            self.told(self.atomically_now(&admission, &*handler))
        })
    }

    fn complete(
        &self,
        fence: Fence,
        mut completion: Completion,
    ) -> BoxFuture<'_, Result<Receipt, Error>> {
        Box::pin(async move {
            completion.at = self.at(completion.at);
            self.told(self.lock().complete(fence, &completion))
        })
    }

    fn renew(
        &self,
        fence: Fence,
        now: Timestamp,
        lease: Duration,
    ) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(async move {
            let until = self.at(now).plus(lease);
            self.lock().renew(fence, until)
        })
    }

    fn lapse(&self, now: Timestamp, limit: u32) -> BoxFuture<'_, Result<u32, Error>> {
        Box::pin(async move {
            let now = self.at(now);
            self.told(self.lock().lapse(now, limit))
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
            let at = self.at(at);
            let evidence = evidence.as_deref();
            let mut rows = self.lock();
            self.told(rows.record(operation_id, event, at, &reason, evidence))
        })
    }

    fn sweep(&self, plan: SweepPlan) -> BoxFuture<'_, Result<Swept, Error>> {
        Box::pin(async move { Ok(self.lock().sweep(plan)) })
    }

    fn transact<'a>(
        &'a self,
        _workspace: Option<&'a WorkspaceId>,
        work: Arc<dyn Work>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.transact_now(&*work) })
    }

    fn read<'a>(&'a self, mut work: Box<dyn ReadWork + 'a>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let rows = self.lock();
            let mut tx = Tx::reading(&rows);
            run_ready(work.call(&mut tx))?
        })
    }

    fn migrate<'a>(
        &'a self,
        component: &'a str,
        steps: &'a [Migration],
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.migrate_now(component, steps) })
    }

    fn note<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Error>> {
        Box::pin(async move { Ok(self.lock().notes.get(name).cloned()) })
    }

    fn set_note<'a>(&'a self, name: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            check_note(name, &value)?;
            self.lock().notes.insert(name.to_owned(), value);
            Ok(())
        })
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, Error>> {
        Box::pin(async move {
            let rows = self.lock();
            let unresolved = rows
                .receipts()
                .filter(|row| row.receipt.status.state.is_unresolved())
                .count();
            Ok(Health {
                queue_depth: 0,
                slots_booked: self.slots.load(Ordering::SeqCst),
                unresolved: u64::try_from(unresolved).unwrap_or(u64::MAX),
            })
        })
    }

    fn export(&self, after: i64, limit: u32) -> BoxFuture<'_, Result<Part, Error>> {
        Box::pin(async move { Ok(self.lock().export(after, limit)) })
    }

    fn import(&self, rows: Vec<Whole>) -> BoxFuture<'_, Result<Result<Imported, Clash>, Error>> {
        Box::pin(async move {
            let imported = distinct(rows).and_then(|(rows, twice)| {
                let imported = self.lock().import(rows)?;
                Ok(Imported {
                    same: imported.same + twice,
                    ..imported
                })
            });
            Ok(self.told(imported))
        })
    }

    fn census(&self) -> BoxFuture<'_, Result<Census, Error>> {
        Box::pin(async move { Ok(self.lock().census()) })
    }

    fn inspect(&self) -> BoxFuture<'_, Result<Inspection, Error>> {
        Box::pin(async move {
            Ok(Inspection {
                facts: vec![("kind", "memory".to_owned())],
                ..Inspection::default()
            })
        })
    }

    fn dialect(&self) -> Dialect {
        Dialect::Memory
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn now(&self) -> Option<Timestamp> {
        self.clock.as_ref().map(|clock| clock.0.now())
    }

    fn changed(&self, _operation_id: OperationId) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            match &self.changes {
                Some(changes) => changes.notified().await,
                None => std::future::pending().await,
            }
        })
    }
}
