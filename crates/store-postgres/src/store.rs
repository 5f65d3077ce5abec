use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use counterfoil_core::{
    Event, EventRecord, Identity, OperationId, Receipt, Timestamp, WorkspaceId,
};
use counterfoil_store::{
    Admission, Admitted, Atomic, AtomicHandler, BoxFuture, Census, Clash, Completion, Dialect,
    Error, Fence, Found, Granted, Health, Imported, Inspection, Migration, Page, Part, Query,
    ReadWork, Store, StoredReply, SweepPlan, Swept, Whole, Work, check_note, distinct,
};
use tokio::{sync::oneshot, task::JoinSet};

use crate::{
    OpenError, Options, TimeSource, atomic,
    connect::Connector,
    copy,
    error::{Done, Fault},
    lane, listen,
    listen::Watchers,
    open::{self, prepare},
    pool::{Lent, Pools},
    queue::{Entered, Entry, Learn, Learned, Lesson, Queue, Wait},
    read::{self, Looked, Lookups},
    schema,
    scopes::{Scope, Scopes},
    shared::{Shared, Tally, read_clock},
    upkeep,
};

/// Runs a step that only reads, or that may be repeated, on a connection of the pool; once more if
/// a connection from before the database went away was lent.
macro_rules! on {
    ($self:ident, $session:ident => $step:expr) => {
        Box::pin(async move {
            let mut tries = 0;
            loop {
                tries += 1;
                let $session = $self.lend().await?;
                match $step.await {
                    // Not to be lent again.
                    Err(Fault::Lost(_) | Fault::Stale) if tries == 1 => $session.discard(),
                    done => return done.map_err(Error::from),
                }
            }
        })
    };
}

/// How long a completion is tried to be recorded while the database is away: nothing else knows
/// the answer, and a late one is better than none.
const COMPLETE_FOR: Duration = Duration::from_secs(600);
/// How long a lane that hangs is given beyond a caller's patience.
const SLACK: Duration = Duration::from_secs(1);
/// How long the first count of unresolved receipts is waited for.
const COUNT_FOR: Duration = Duration::from_secs(2);
/// How long a look at the database's health may take.
const HEALTH_PATIENCE: Duration = Duration::from_secs(2);

/// A receipt store in a PostgreSQL database, for any number of nodes. Cheap to clone; all clones
/// are one store. Needs a tokio runtime.
///
/// Dropping the last clone ends its connections once what waits is done;
/// [`PostgresStore::close`] waits for that.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    pools: Pools,
    lookups: Lookups,
    lanes: tokio::sync::Mutex<JoinSet<()>>,
    /// Ended when dropped.
    _helpers: JoinSet<()>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.queue.close();
        // They end by themselves, after what waits.
        self.lanes.get_mut().detach_all();
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects to the database at `address` (`postgres://user@host/database?sslmode=require`, or
    /// key=value pairs) and brings its tables up, once, however many nodes start together.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong and what to do.
    pub async fn open(address: &str, options: Options) -> Result<Self, OpenError> {
        Self::start(address, options, true).await
    }

    /// Connects, and refuses a database whose tables are not up to date instead of changing it:
    /// for nodes whose role may not create tables.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong and what to do.
    pub async fn open_migrated(address: &str, options: Options) -> Result<Self, OpenError> {
        Self::start(address, options, false).await
    }

    async fn start(address: &str, options: Options, may_change: bool) -> Result<Self, OpenError> {
        let connector = Connector::new(address, &options)?;
        let refused = OpenError::refused;
        let (first, _) = connector.connect().await.map_err(open::explain)?;
        prepare(&first, &connector).await?;
        schema::bring_up(&first, may_change).await?;
        let secret = schema::secret(&first).await.map_err(refused)?;
        connector.remember(secret);
        let (watchers, announcements) = Watchers::new();
        let shared = Arc::new(Shared {
            scopes: Scopes::new(options.scopes_max),
            queue: Queue::new(options.queue_max, options.batch_max),
            clock: crate::clock::Clock::default(),
            watchers,
            tally: Tally::default(),
            slots: Arc::default(),
            failing: AtomicBool::new(false),
            strange: upkeep::Strange::default(),
            secret,
            connector: connector.clone(),
            options,
        });
        read_clock(&first, &shared.clock).await.map_err(refused)?;
        // It is done again in a second; nobody needs to wait until a large table is read through.
        let counting = shared.tally.count(&first);
        if !matches!(tokio::time::timeout(COUNT_FOR, counting).await, Ok(Ok(()))) {
            tracing::warn!("unresolved receipts could not be counted yet; quotas begin at zero");
        }
        let (lookups, waiting) = Lookups::new();
        let mut lanes = JoinSet::new();
        let mut helpers = JoinSet::new();
        drop(first);
        for _ in 0..shared.options.lanes.max(1) {
            let (session, _) = connector.connect().await.map_err(refused)?;
            lanes.spawn(lane::keep_running(Arc::clone(&shared), session));
        }
        for _ in 0..shared.options.readers.max(1) {
            let (session, _) = connector.connect().await.map_err(refused)?;
            helpers.spawn(read::keep_running(
                Arc::clone(&shared),
                Arc::clone(&waiting),
                session,
            ));
        }
        if !connector.pooler {
            helpers.spawn(listen::run(Arc::clone(&shared), announcements));
        }
        helpers.spawn(upkeep::pulse(Arc::clone(&shared)));
        Ok(Self {
            inner: Arc::new(Inner {
                pools: Pools::new(connector, shared.options.connections_max),
                shared,
                lookups,
                lanes: tokio::sync::Mutex::new(lanes),
                _helpers: helpers,
            }),
        })
    }

    /// The version of the store's own tables that this program writes.
    pub const SCHEMA_VERSION: i64 = schema::VERSION;

    /// The version of an application's tables; 0 if they were never brought up. Changes nothing.
    ///
    /// # Errors
    /// What the store says.
    pub async fn component_version(&self, component: &str) -> Result<i64, Error> {
        let found: BoxFuture<'_, Result<i64, Error>> =
            on!(self, session => schema::version(&session, component));
        found.await
    }

    /// Ends the store: new steps are refused as `Unavailable`, those waiting are still recorded.
    /// Returns when that is done.
    pub async fn close(&self) {
        self.inner.shared.queue.close();
        let mut lanes = self.inner.lanes.lock().await;
        while lanes.join_next().await.is_some() {}
        self.inner.pools.close();
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    fn patience(&self) -> Duration {
        self.shared().options.patience
    }

    async fn lend(&self) -> Done<Lent> {
        let deadline = Instant::now() + self.patience();
        self.inner.pools.reads.lend(deadline).await
    }

    fn scope<'a>(&'a self, identity: &'a Identity) -> BoxFuture<'a, Result<Option<Scope>, Error>> {
        let scopes = &self.shared().scopes;
        on!(self, session => scopes.find(&session, identity))
    }

    async fn learn(
        &self,
        operation_id: OperationId,
        what: Learn,
        patience: Duration,
    ) -> Result<Learned, Error> {
        let (wait, answer) = Wait::new(patience);
        self.shared().queue.learn(Lesson {
            operation_id,
            what,
            wait,
        })?;
        answered(answer, patience).await
    }

    async fn learn_receipt(
        &self,
        operation_id: OperationId,
        what: Learn,
        patience: Duration,
    ) -> Result<Receipt, Error> {
        match self.learn(operation_id, what, patience).await? {
            Learned::Receipt(receipt) => Ok(*receipt),
            Learned::Until(_) => Err(Error::Corrupt("another step was answered".to_owned())),
        }
    }
}

/// What a lane says. It answers everybody in time, unless the database hangs under it or it died:
/// then nobody knows how far it came.
async fn answered<T>(
    answer: oneshot::Receiver<Result<T, Error>>,
    patience: Duration,
) -> Result<T, Error> {
    match tokio::time::timeout(patience.saturating_add(SLACK), answer).await {
        Ok(Ok(said)) => said,
        Ok(Err(_)) | Err(_) => Err(Error::CommitUnknown),
    }
}

/// Runs to its end whatever becomes of the caller: a transaction that is dropped in the middle
/// would take its connection with it.
async fn detached<T: Send + 'static>(
    step: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(step)
        .await
        .unwrap_or(Err(Error::CommitUnknown))
}

impl Store for PostgresStore {
    fn find<'a>(&'a self, identity: &'a Identity) -> BoxFuture<'a, Result<Option<Found>, Error>> {
        Box::pin(async move {
            let shared = self.shared();
            let scope = match shared.scopes.known(identity) {
                Some(scope) => Some(scope),
                None => self.scope(identity).await?,
            };
            let Some(scope) = scope else {
                return Ok(None);
            };
            match read::find(shared, &self.inner.lookups, scope, identity).await? {
                Looked::Nothing => Ok(None),
                Looked::Found(found) => Ok(Some(*found)),
                Looked::Asks(operation_id) => self.get(operation_id).await,
            }
        })
    }

    fn get(&self, operation_id: OperationId) -> BoxFuture<'_, Result<Option<Found>, Error>> {
        on!(self, session => read::get(&session, operation_id))
    }

    fn question(
        &self,
        operation_id: OperationId,
        round: u16,
    ) -> BoxFuture<'_, Result<Option<StoredReply>, Error>> {
        on!(self, session => read::question(&session, operation_id, round))
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>> {
        on!(self, session => read::list(&session, query))
    }

    fn events(&self, operation_id: OperationId) -> BoxFuture<'_, Result<Vec<EventRecord>, Error>> {
        on!(self, session => read::events(&session, operation_id))
    }

    fn admit(&self, admission: Admission) -> BoxFuture<'_, Result<Admitted, Error>> {
        Box::pin(async move {
            let slot = self.shared().book()?;
            let patience = admission.patience;
            let (wait, answer) = Wait::new(patience);
            self.shared().queue.enter(Entry { admission, wait })?;
            Ok(match answered(answer, patience).await? {
                Entered::Run(reserved) => Admitted::Run(Granted {
                    fence: reserved.fence,
                    round: reserved.round,
                    lease_until: reserved.lease_until,
                    hard_deadline: reserved.hard_deadline,
                    slot,
                }),
                Entered::Decided(decision, found) => Admitted::Decided(decision, found),
                Entered::Held => Admitted::Held,
            })
        })
    }

    fn atomically(
        &self,
        admission: Admission,
        handler: Arc<dyn AtomicHandler>,
    ) -> BoxFuture<'_, Result<Atomic, Error>> {
        let shared = Arc::clone(self.shared());
        let pool = self.inner.pools.handlers.clone();
        Box::pin(detached(atomic::atomically(
            shared, pool, admission, handler,
        )))
    }

    fn complete(
        &self,
        fence: Fence,
        completion: Completion,
    ) -> BoxFuture<'_, Result<Receipt, Error>> {
        let what = Learn::Complete(fence, Box::new(completion));
        Box::pin(self.learn_receipt(fence.operation_id, what, COMPLETE_FOR))
    }

    fn renew(
        &self,
        fence: Fence,
        now: Timestamp,
        lease: Duration,
    ) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(async move {
            let what = Learn::Renew(fence, now, lease);
            match self
                .learn(fence.operation_id, what, self.patience())
                .await?
            {
                Learned::Until(until) => Ok(until),
                Learned::Receipt(_) => Err(Error::Corrupt("another step was answered".to_owned())),
            }
        })
    }

    fn lapse(&self, now: Timestamp, limit: u32) -> BoxFuture<'_, Result<u32, Error>> {
        let shared = Arc::clone(self.shared());
        on!(self, session => upkeep::lapse(&shared, &session, now, limit))
    }

    fn record(
        &self,
        operation_id: OperationId,
        event: Event,
        at: Timestamp,
        reason: String,
        evidence: Option<String>,
    ) -> BoxFuture<'_, Result<Receipt, Error>> {
        let what = Learn::Record {
            event,
            at,
            reason,
            evidence,
        };
        Box::pin(self.learn_receipt(operation_id, what, self.patience()))
    }

    fn sweep(&self, plan: SweepPlan) -> BoxFuture<'_, Result<Swept, Error>> {
        let shared = Arc::clone(self.shared());
        on!(self, session => upkeep::sweep(&shared, &session, plan))
    }

    fn transact<'a>(
        &'a self,
        workspace: Option<&'a WorkspaceId>,
        work: Arc<dyn Work>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        let shared = Arc::clone(self.shared());
        let pool = self.inner.pools.handlers.clone();
        Box::pin(detached(atomic::transact(
            shared,
            pool,
            workspace.cloned(),
            work,
        )))
    }

    fn read<'a>(&'a self, mut work: Box<dyn ReadWork + 'a>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let deadline = Instant::now() + self.patience() + self.shared().options.handler_limit;
            let mut tries = 0;
            loop {
                tries += 1;
                let session = self.lend().await?;
                let done = read::work(self.shared(), &session, &mut *work, deadline).await;
                if matches!(done, Err(Fault::Lost(_) | Fault::Stale)) && tries == 1 {
                    session.discard();
                    continue;
                }
                if !session.is_clean() {
                    // Nobody needs to wait for the end of a transaction that only read.
                    tokio::spawn(async move { session.rollback().await });
                }
                return done.map_err(Error::from);
            }
        })
    }

    fn migrate<'a>(
        &'a self,
        component: &'a str,
        steps: &'a [Migration],
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let gapless = (1..)
                .zip(steps)
                .all(|(number, step)| step.version == number);
            if !gapless {
                return Err(Error::Corrupt(format!(
                    "the migrations of {component} are not numbered 1, 2, …"
                )));
            }
            let steps: Vec<(i64, &str)> = steps
                .iter()
                .map(|step| (i64::from(step.version), step.postgres))
                .collect();
            let steps = &steps;
            let migrated: BoxFuture<'_, _> =
                on!(self, session => schema::migrate(&session, component, steps));
            migrated.await
        })
    }

    fn note<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Error>> {
        on!(self, session => read::note(&session, name))
    }

    fn set_note<'a>(&'a self, name: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            check_note(name, &value)?;
            let value = value.as_slice();
            let in_doubt = &AtomicBool::new(false);
            let set: BoxFuture<'_, _> = on!(self, session => async {
                let set = upkeep::set_note(self.shared(), &session, name, value).await;
                if matches!(set, Err(Fault::Lost(_))) {
                    in_doubt.store(true, Ordering::Release);
                }
                set
            });
            // What a later try did not do says nothing about the one before.
            set.await.map_err(|error| {
                if in_doubt.load(Ordering::Acquire) {
                    Error::CommitUnknown
                } else {
                    error
                }
            })
        })
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, Error>> {
        Box::pin(async move {
            let shared = self.shared();
            let look: BoxFuture<'_, Result<(), Error>> =
                on!(self, session => upkeep::check_writable(shared, &session));
            tokio::time::timeout(HEALTH_PATIENCE, look)
                .await
                .map_err(|_| {
                    Error::Unavailable("the database did not answer in time".to_owned())
                })??;
            let booked = shared.slots.load(Ordering::Acquire);
            Ok(Health {
                queue_depth: shared.queue.depth(),
                slots_booked: u64::try_from(booked).unwrap_or(u64::MAX),
                unresolved: shared.tally.sum(),
            })
        })
    }

    fn export(&self, after: i64, limit: u32) -> BoxFuture<'_, Result<Part, Error>> {
        on!(self, session => copy::export(self.shared(), &session, after, limit))
    }

    fn import(&self, rows: Vec<Whole>) -> BoxFuture<'_, Result<Result<Imported, Clash>, Error>> {
        Box::pin(async move {
            let (rows, twice) = match distinct(rows) {
                Ok(distinct) => distinct,
                Err(clash) => return Ok(Err(clash)),
            };
            let rows = rows.as_slice();
            let written: BoxFuture<'_, Result<Result<Imported, Clash>, Error>> =
                on!(self, session => copy::import(self.shared(), &session, rows));
            Ok(written.await?.map(|imported| Imported {
                same: imported.same + twice,
                ..imported
            }))
        })
    }

    fn census(&self) -> BoxFuture<'_, Result<Census, Error>> {
        on!(self, session => copy::census(&session))
    }

    fn inspect(&self) -> BoxFuture<'_, Result<Inspection, Error>> {
        on!(self, session => copy::inspect(&session))
    }

    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn now(&self) -> Option<Timestamp> {
        match self.shared().options.time {
            TimeSource::Database => self.shared().clock.now(),
            TimeSource::Caller => None,
        }
    }

    fn changed(&self, operation_id: OperationId) -> BoxFuture<'_, ()> {
        Box::pin(self.shared().watchers.changed(operation_id))
    }
}
