use std::{
    fmt,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use counterfoil_core::{
    Event, EventRecord, Identity, OperationId, Receipt, Timestamp, WorkspaceId,
};
use counterfoil_store::{
    Admission, Admitted, Atomic, AtomicHandler, BoxFuture, Census, Clash, Completion, Dialect,
    Error, Fence, Found, Granted, Health, Imported, Inspection, Migration, Page, Part, Query,
    ReadWork, Slot, Store, StoredReply, SweepPlan, Swept, Whole, Work, check_note, distinct,
};
use tokio::sync::{oneshot, watch};

use crate::{
    OpenError, Options, atomic, copy,
    error::map,
    fault::Seam,
    open::{Opened, open},
    presence::Presence,
    queue::{Call, Class, Job, Queue, say_busy},
    read::{Reader, Readers},
    record, schema,
    scopes::Scopes,
    steps::{self, Admittance},
    sweep,
    tx::{Shared, Stepped, Tx},
    writer::Writer,
    writing::Writing,
};

/// What is written to find out whether writing works again. Its room stays taken, so that there is
/// some for a call when it does.
const TRIAL_NOTE: &str = "write_trial";
const TRIAL_BYTES: i64 = 64 * 1024;
const TRIAL_PATIENCE: Duration = Duration::from_secs(1);

/// A receipt store in one SQLite file. Cheap to clone; all clones are one store.
///
/// Opening starts its writer thread. [`SqliteStore::close`] ends it after everything waiting is
/// recorded; dropping the last clone does the same without waiting for it.
#[derive(Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    readers: Readers,
    slots: Arc<AtomicUsize>,
    read_only: bool,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Closed when the writer's thread ends.
    ended: watch::Receiver<()>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens the database at `path`, creates it (mode 0600) if there is none, and brings its
    /// schema up. The folder must exist. Blocks while another process starts on the same file, up
    /// to [`Options::lock_patience`].
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong and what to do.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        Self::start(path.as_ref(), options, Seam::default())
    }

    /// Opens it with faults, for tests.
    ///
    /// # Errors
    /// As [`SqliteStore::open`].
    #[cfg(feature = "testing")]
    pub fn open_with_fault(
        path: impl AsRef<Path>,
        options: Options,
        fault: Arc<dyn crate::Fault>,
    ) -> Result<Self, OpenError> {
        Self::start(path.as_ref(), options, Seam::new(fault))
    }

    /// The version of the store's own tables that this program writes.
    pub const SCHEMA_VERSION: i64 = schema::VERSION;

    /// The version of an application's tables; 0 if they were never brought up. Changes nothing.
    ///
    /// # Errors
    /// What the store says.
    pub async fn component_version(&self, component: &str) -> Result<i64, Error> {
        self.reader().await?.component(component)
    }

    fn start(path: &Path, options: Options, seam: Seam) -> Result<Self, OpenError> {
        let Opened {
            place,
            writer,
            secret,
            writer_id,
        } = open(path, &options, seam.clone())?;
        let shared = Arc::new(Shared {
            scopes: Scopes::new(options.scopes_max),
            secret,
            options,
            seam,
            presence: Presence::new(path),
            writing: Writing::default(),
        });
        let queue = Arc::new(Queue::new(&shared.options));
        let readers = Readers::new(place.clone(), shared.options.readers_max);
        let (alive, ended) = watch::channel(());
        let read_only = writer.is_none();
        let thread = match writer {
            Some(connection) => {
                let writer = Writer::new(
                    Arc::clone(&shared),
                    Arc::clone(&queue),
                    place,
                    connection,
                    writer_id,
                );
                let body = move || {
                    writer.run();
                    drop(alive);
                };
                let named = std::thread::Builder::new().name("counterfoil-writer".to_owned());
                Some(named.spawn(body).map_err(OpenError::Thread)?)
            }
            None => None,
        };
        Ok(Self {
            inner: Arc::new(Inner {
                shared,
                queue,
                readers,
                slots: Arc::default(),
                read_only,
                thread: Mutex::new(thread),
                ended,
            }),
        })
    }

    /// Ends the store: new steps are refused as `Unavailable`, those waiting are still recorded
    /// (up to [`Options::lock_patience`] if another process holds the lock), then the file is
    /// closed. Returns when that is done.
    pub async fn close(&self) {
        self.inner.queue.close();
        self.inner.readers.close();
        let mut ended = self.inner.ended.clone();
        while ended.changed().await.is_ok() {}
        let thread = self
            .inner
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the writer of the receipt store ended in a panic");
        }
    }

    /// Has the writer run `step`; its output once the transaction it was in is committed.
    async fn submit<T, F>(
        &self,
        class: Class,
        patience: Option<Duration>,
        step: F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnMut(&mut Tx<'_>) -> Stepped<T> + Send + 'static,
    {
        if self.inner.read_only {
            return Err(Error::Unavailable(
                "the store was opened read-only; open it for writing".to_owned(),
            ));
        }
        let (reply, answer) = oneshot::channel();
        let job = Job {
            class,
            // A patience beyond the clock's range is none.
            deadline: patience.and_then(|patience| Instant::now().checked_add(patience)),
            alone: false,
            failures: 0,
            member: Box::new(Call::new(step, reply)),
        };
        self.inner.queue.push(job)?;
        // The writer answers everybody; if it died in the middle, nobody knows how far it came.
        answer.await.unwrap_or(Err(Error::CommitUnknown))
    }

    /// Whether the file is in its place and can be written to.
    async fn check_writing(&self) -> Result<(), Error> {
        let shared = &self.inner.shared;
        shared.presence.look().map_err(|error| map(&error))?;
        if self.inner.read_only || !shared.writing.look()? {
            return Ok(());
        }
        self.submit(Class::Upkeep, Some(TRIAL_PATIENCE), |tx: &mut Tx<'_>| {
            tx.sqlite()
                .prepare_cached(
                    "INSERT INTO counterfoil_notes(name, value) VALUES (?1, zeroblob(?2))
                     ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                )?
                .execute((TRIAL_NOTE, TRIAL_BYTES))?;
            Ok(())
        })
        .await
    }

    fn patience(&self) -> Option<Duration> {
        Some(self.inner.shared.options.lock_patience)
    }

    async fn reader(&self) -> Result<Reader<'_>, Error> {
        self.inner.readers.take(&self.inner.shared).await
    }

    /// Books the capacity of a completion, before there is anything to complete.
    fn book(&self) -> Result<Slot, Error> {
        let max = self.inner.shared.options.slots_max;
        let booked = self
            .inner
            .slots
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |booked| {
                (booked < max).then_some(booked + 1)
            });
        match booked {
            Ok(_) => Ok(Slot::new(Booked(Arc::clone(&self.inner.slots)))),
            Err(_) => Err(say_busy()),
        }
    }
}

/// A booked slot; counted until it is dropped.
struct Booked(Arc<AtomicUsize>);

impl Drop for Booked {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Store for SqliteStore {
    fn find<'a>(&'a self, identity: &'a Identity) -> BoxFuture<'a, Result<Option<Found>, Error>> {
        Box::pin(async move { self.reader().await?.find(&self.inner.shared, identity) })
    }

    fn get(&self, operation_id: OperationId) -> BoxFuture<'_, Result<Option<Found>, Error>> {
        Box::pin(async move { self.reader().await?.get(operation_id) })
    }

    fn question(
        &self,
        operation_id: OperationId,
        round: u16,
    ) -> BoxFuture<'_, Result<Option<StoredReply>, Error>> {
        Box::pin(async move { self.reader().await?.question(operation_id, round) })
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>> {
        Box::pin(async move { self.reader().await?.list(query) })
    }

    fn events(&self, operation_id: OperationId) -> BoxFuture<'_, Result<Vec<EventRecord>, Error>> {
        Box::pin(async move { self.reader().await?.events(operation_id) })
    }

    fn admit(&self, admission: Admission) -> BoxFuture<'_, Result<Admitted, Error>> {
        Box::pin(async move {
            let slot = self.book()?;
            let patience = Some(admission.patience);
            let step = move |tx: &mut Tx<'_>| steps::admit(tx, &admission);
            let admittance = self.submit(Class::Enter, patience, step).await?;
            Ok(match admittance {
                Admittance::Run(reserved) => Admitted::Run(Granted {
                    fence: reserved.fence,
                    round: reserved.round,
                    lease_until: reserved.lease_until,
                    hard_deadline: reserved.hard_deadline,
                    slot,
                }),
                Admittance::Decided(decision, found) => Admitted::Decided(decision, found),
            })
        })
    }

    fn atomically(
        &self,
        admission: Admission,
        handler: Arc<dyn AtomicHandler>,
    ) -> BoxFuture<'_, Result<Atomic, Error>> {
        Box::pin(async move {
            let patience = Some(admission.patience);
            let step = move |tx: &mut Tx<'_>| atomic::atomically(tx, &admission, &*handler);
            self.submit(Class::Enter, patience, step).await
        })
    }

    fn complete(
        &self,
        fence: Fence,
        completion: Completion,
    ) -> BoxFuture<'_, Result<Receipt, Error>> {
        Box::pin(async move {
            let step = move |tx: &mut Tx<'_>| record::complete(tx, fence, &completion);
            self.submit(Class::Complete, None, step).await
        })
    }

    fn renew(
        &self,
        fence: Fence,
        now: Timestamp,
        lease: Duration,
    ) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(async move {
            let until = now.plus(lease);
            let step = move |tx: &mut Tx<'_>| record::renew(tx, fence, until);
            self.submit(Class::Renew, self.patience(), step).await
        })
    }

    fn lapse(&self, now: Timestamp, limit: u32) -> BoxFuture<'_, Result<u32, Error>> {
        Box::pin(async move {
            // Looked for every second and hardly ever there: nothing is written to find that out.
            if !self.reader().await?.any_lapsed(now)? {
                return Ok(0);
            }
            let step = move |tx: &mut Tx<'_>| record::lapse(tx, now, limit);
            self.submit(Class::Upkeep, self.patience(), step).await
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
            let step = move |tx: &mut Tx<'_>| {
                record::record(tx, operation_id, event, at, &reason, evidence.as_deref())
            };
            self.submit(Class::Upkeep, self.patience(), step).await
        })
    }

    fn sweep(&self, plan: SweepPlan) -> BoxFuture<'_, Result<Swept, Error>> {
        Box::pin(async move {
            let due = self
                .reader()
                .await?
                .snapshot(|connection| sweep::due(connection, plan))?;
            let mut swept = Swept {
                next: due.next,
                ..Swept::default()
            };
            for ids in due.ids.chunks(sweep::ROWS_PER_STEP) {
                let ids = ids.to_vec();
                let step = move |tx: &mut Tx<'_>| sweep::sweep(tx, &ids, plan.horizon);
                let deleted = self.submit(Class::Upkeep, self.patience(), step).await?;
                swept.results += deleted.results;
                swept.receipts += deleted.receipts;
            }
            Ok(swept)
        })
    }

    /// All writes run one after the other, those of one workspace too.
    fn transact<'a>(
        &'a self,
        _workspace: Option<&'a WorkspaceId>,
        work: Arc<dyn Work>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let step = move |tx: &mut Tx<'_>| atomic::transact(tx, &*work);
            self.submit(Class::Enter, self.patience(), step).await
        })
    }

    fn read<'a>(&'a self, mut work: Box<dyn ReadWork + 'a>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let mut reader = self.reader().await?;
            reader.run(&self.inner.shared, &mut *work).await
        })
    }

    fn migrate<'a>(
        &'a self,
        component: &'a str,
        steps: &'a [Migration],
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let component = component.to_owned();
            let steps = steps.to_vec();
            let step = move |tx: &mut Tx<'_>| atomic::migrate(tx, &component, &steps);
            self.submit(Class::Enter, self.patience(), step).await
        })
    }

    fn note<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Error>> {
        Box::pin(async move { self.reader().await?.note(name) })
    }

    fn set_note<'a>(&'a self, name: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            check_note(name, &value)?;
            let name = name.to_owned();
            let step = move |tx: &mut Tx<'_>| {
                tx.sqlite()
                    .prepare_cached(
                        "INSERT INTO counterfoil_notes(name, value) VALUES (?1, ?2)
                         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    )?
                    .execute((&name, &value))?;
                Ok(())
            };
            self.submit(Class::Upkeep, self.patience(), step).await
        })
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, Error>> {
        Box::pin(async move {
            self.check_writing().await?;
            let booked = self.inner.slots.load(Ordering::Acquire);
            Ok(Health {
                queue_depth: self.inner.queue.depth(),
                slots_booked: u64::try_from(booked).unwrap_or(u64::MAX),
                unresolved: self.reader().await?.unresolved()?,
            })
        })
    }

    fn export(&self, after: i64, limit: u32) -> BoxFuture<'_, Result<Part, Error>> {
        Box::pin(async move {
            let shared = &self.inner.shared;
            let mut reader = self.reader().await?;
            reader.snapshot(|connection| copy::export(connection, shared, after, limit))
        })
    }

    fn import(&self, rows: Vec<Whole>) -> BoxFuture<'_, Result<Result<Imported, Clash>, Error>> {
        Box::pin(async move {
            let (rows, twice) = match distinct(rows) {
                Ok(distinct) => distinct,
                Err(clash) => return Ok(Err(clash)),
            };
            let step = move |tx: &mut Tx<'_>| copy::import(tx, &rows);
            let imported = self.submit(Class::Upkeep, self.patience(), step).await?;
            Ok(imported.map(|imported| Imported {
                same: imported.same + twice,
                ..imported
            }))
        })
    }

    /// Runs where the caller does, for as long as it takes to read every row.
    fn census(&self) -> BoxFuture<'_, Result<Census, Error>> {
        Box::pin(async move { self.reader().await?.snapshot(copy::census) })
    }

    /// Runs where the caller does, for as long as it takes to read the whole file.
    fn inspect(&self) -> BoxFuture<'_, Result<Inspection, Error>> {
        Box::pin(async move { self.reader().await?.look(copy::inspect) })
    }

    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn is_shared(&self) -> bool {
        true
    }
}
