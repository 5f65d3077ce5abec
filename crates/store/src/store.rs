use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use counterfoil_core::{
    Decision, EventRecord, Identity, OperationId, Receipt, Reply, Timestamp, WorkspaceId,
};

use crate::{
    Admission, Admitted, BoxFuture, Census, Clash, Completion, Dialect, Error, Fence, Found,
    Health, Imported, Inspection, Migration, Page, Part, Query, Sql, StoredReply, SweepPlan, Swept,
    Whole,
};

/// A receipt store.
///
/// The times in its messages are the caller's clock; a store with a clock of its own
/// ([`Store::now`]) puts its own in their place.
///
/// The protocol of a guarded call is `admit` → [`crate::Granted`] → any number of `renew` → `complete`.
/// An atomic call is one `atomically`. Everything a step writes is durable and consistent when it
/// returns `Ok`; on any error but [`Error::CommitUnknown`] nothing of it is.
///
/// Steps may be repeated with the same arguments (the same token, the same fence and evidence):
/// the second time they find what the first one did and say the same.
pub trait Store: Send + Sync + 'static {
    /// Looks an identity up, without the writer. Only the writer's own look may say "none": a
    /// `None` here is a hint to call `admit`.
    fn find<'a>(&'a self, identity: &'a Identity) -> BoxFuture<'a, Result<Option<Found>, Error>>;

    /// Looks an operation up by its handle.
    fn get(&self, operation_id: OperationId) -> BoxFuture<'_, Result<Option<Found>, Error>>;

    /// The stored question of a round that was answered since, the first one 0.
    fn question(
        &self,
        operation_id: OperationId,
        round: u16,
    ) -> BoxFuture<'_, Result<Option<StoredReply>, Error>>;

    /// Lists operations, the newest first.
    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>>;

    /// The event log of an operation, the oldest first, at most 1,000 rows.
    fn events(&self, operation_id: OperationId) -> BoxFuture<'_, Result<Vec<EventRecord>, Error>>;

    /// Decides, and reserves if the decision is to run: the reservation is durable on return. A
    /// lapsed lease is recorded on the way. If the token is that of the row's latest admission,
    /// the caller gets its own [`crate::Granted`] again.
    fn admit(&self, admission: Admission) -> BoxFuture<'_, Result<Admitted, Error>>;

    /// Decides, and if the decision is to run, runs the handler inside the receipt's own
    /// transaction: admission, effect, result and event are durable together, or none is. The
    /// handler may run more than once (a broken batch, a deadlock); at most one run is committed.
    fn atomically(
        &self,
        admission: Admission,
        handler: Arc<dyn AtomicHandler>,
    ) -> BoxFuture<'_, Result<Atomic, Error>>;

    /// Records evidence about an attempt, with its answer. Compares the fence. What it returns is
    /// the receipt afterwards. Never [`Error::Busy`] while the attempt's slot is held.
    fn complete(
        &self,
        fence: Fence,
        completion: Completion,
    ) -> BoxFuture<'_, Result<Receipt, Error>>;

    /// Extends the lease of a running attempt to `lease` from now, never past its hard deadline
    /// and never back. The new end.
    fn renew(
        &self,
        fence: Fence,
        now: Timestamp,
        lease: Duration,
    ) -> BoxFuture<'_, Result<Timestamp, Error>>;

    /// Records up to `limit` lapsed leases and abandoned questions as what they are (unknown, or
    /// released if proven); how many. This is what gives every unresolved receipt an owner (I6).
    fn lapse(&self, now: Timestamp, limit: u32) -> BoxFuture<'_, Result<u32, Error>>;

    /// Records an event that is not an attempt's: a request to cancel, a resolution. `reason` and
    /// `evidence` go into the event log.
    fn record(
        &self,
        operation_id: OperationId,
        event: counterfoil_core::Event,
        at: Timestamp,
        reason: String,
        evidence: Option<String>,
    ) -> BoxFuture<'_, Result<Receipt, Error>>;

    /// One bounded step of a sweep. Unresolved receipts are never touched.
    fn sweep(&self, plan: SweepPlan) -> BoxFuture<'_, Result<Swept, Error>>;

    /// Runs application statements in a transaction of their own, without a receipt: what a
    /// mutation without a key is. The work may run more than once, at most one run is committed.
    /// Mutations of one workspace, here and in [`Store::atomically`], run one after the other;
    /// without a workspace the work must bring what order it needs.
    fn transact<'a>(
        &'a self,
        workspace: Option<&'a WorkspaceId>,
        work: Arc<dyn Work>,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Runs application queries on a reading connection, which cannot write.
    fn read<'a>(&'a self, work: Box<dyn ReadWork + 'a>) -> BoxFuture<'a, Result<(), Error>>;

    /// Brings an application's tables to their newest version, once, safely with several
    /// processes starting at once. A newer schema than `steps` is refused as `Unavailable`.
    fn migrate<'a>(
        &'a self,
        component: &'a str,
        steps: &'a [Migration],
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// A small persistent fact under `name` (1 to 64 characters), such as the clock readings of the
    /// last sweep; `None` if it was never set.
    fn note<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Error>>;

    /// Sets a small persistent fact: durable on return. At most 4,096 bytes; a longer one or an
    /// unfit name is refused as [`Error::Statement`].
    fn set_note<'a>(&'a self, name: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>>;

    /// How the store is. An error if it cannot be used or cannot write at the moment; asking again
    /// is how a store that works again is noticed.
    fn health(&self) -> BoxFuture<'_, Result<Health, Error>>;

    /// Receipts with everything that hangs on them, in the order of their making, those after the
    /// place `after` (0: from the beginning), at most `limit` and about [`crate::EXPORT_BYTES`].
    fn export(&self, after: i64, limit: u32) -> BoxFuture<'_, Result<Part, Error>>;

    /// Writes receipts of another store behind those that are there, in their order and in one
    /// transaction. What is there already with the same content is left alone, so that an import
    /// may be repeated. If anything is there with another content, nothing is changed.
    ///
    /// States, leases and times are written as they are: only for receipts whose own store takes
    /// no more calls.
    fn import(&self, rows: Vec<Whole>) -> BoxFuture<'_, Result<Result<Imported, Clash>, Error>>;

    /// Counts everything there is. Reads all rows; takes as long as that does.
    fn census(&self) -> BoxFuture<'_, Result<Census, Error>>;

    /// Looks at where the store is kept: settings, versions, damage. May read all of it.
    fn inspect(&self) -> BoxFuture<'_, Result<Inspection, Error>>;

    /// Which SQL application statements are written in.
    fn dialect(&self) -> Dialect;

    /// Another process may write to this store, so that waiters must poll too.
    fn is_shared(&self) -> bool;

    /// The present by the store's own clock, for a store that has one. Such a store's steps use it
    /// in place of every time they are handed, so that machines whose clocks differ agree on
    /// leases and windows. `None`: the caller's clock counts.
    fn now(&self) -> Option<Timestamp> {
        None
    }

    /// Completes when another process may have changed the operation. Only a hint, and it may
    /// never come: poll as well.
    fn changed(&self, operation_id: OperationId) -> BoxFuture<'_, ()> {
        let _ = operation_id;
        Box::pin(std::future::pending())
    }
}

/// What `atomically` says.
#[derive(Debug)]
pub enum Atomic {
    /// The handler ran and is committed with this answer (as the handler gave it, nothing
    /// redacted).
    Ran(Box<Receipt>, Reply),
    /// It ran and gave this refusal or failure that is not kept; everything was rolled back and
    /// the key is free.
    Aborted(Reply),
    /// Nothing ran.
    Decided(Decision, Box<Found>),
    /// Nothing ran: an open transaction holds the identity, as [`crate::Admitted::Held`].
    Held,
    /// It ran and was committed earlier, under this very admission; only the stored answer is left.
    Own(Box<Found>),
}

/// What an atomic handler ends in, other than success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A definite judgement (not found, invalid): its writes are rolled back, the answer is
    /// recorded and replayed.
    Refused(Reply),
    /// A failure that proves nothing for later: everything is rolled back and nothing is kept.
    Aborted(Reply),
    /// The store failed under it.
    Store(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// A handler that runs inside the receipt's own transaction. It must await nothing but the
/// transaction, and may run again, so it takes nothing out of itself.
pub trait AtomicHandler: Send + Sync {
    /// Runs it.
    fn call<'t>(
        &'t self,
        operation_id: OperationId,
        tx: &'t mut dyn Sql,
    ) -> BoxFuture<'t, Result<Reply, Failure>>;

    /// Turns the answer into what is stored: redacts, seals, bounds. `Err` is the marker to leave.
    fn keep(
        &self,
        operation_id: OperationId,
        reply: &Reply,
    ) -> Result<StoredReply, counterfoil_core::Kept>;
}

/// Application statements for [`Store::transact`].
pub trait Work: Send + Sync {
    /// Runs them. Must await nothing but the transaction; may run again.
    fn call<'t>(&'t self, tx: &'t mut dyn Sql) -> BoxFuture<'t, Result<(), Error>>;
}

/// Application queries for [`Store::read`].
pub trait ReadWork: Send {
    /// Runs them.
    fn call<'t>(&'t mut self, sql: &'t mut dyn Sql) -> BoxFuture<'t, Result<(), Error>>;
}

struct Taking<F, T> {
    body: F,
    output: Mutex<Option<T>>,
}

impl<F, T> Taking<F, T> {
    fn new(body: F) -> Self {
        Self {
            body,
            output: Mutex::new(None),
        }
    }

    fn put(&self, value: T) {
        *self.output.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
    }

    fn take(&self) -> Result<T, Error> {
        self.output
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .ok_or_else(|| Error::Handler("the work was not run".to_owned()))
    }
}

impl<F, T> Work for Taking<F, T>
where
    F: for<'t> Fn(&'t mut dyn Sql) -> BoxFuture<'t, Result<T, Error>> + Send + Sync,
    T: Send,
{
    fn call<'t>(&'t self, tx: &'t mut dyn Sql) -> BoxFuture<'t, Result<(), Error>> {
        Box::pin(async move {
            let value = (self.body)(tx).await?;
            self.put(value);
            Ok(())
        })
    }
}

impl<F, T> ReadWork for &Taking<F, T>
where
    F: for<'t> Fn(&'t mut dyn Sql) -> BoxFuture<'t, Result<T, Error>> + Send + Sync,
    T: Send,
{
    fn call<'t>(&'t mut self, sql: &'t mut dyn Sql) -> BoxFuture<'t, Result<(), Error>> {
        Work::call(*self, sql)
    }
}

/// [`Store::transact`] with a closure and its output. An error rolls everything back.
///
/// # Errors
/// What the store or the closure says.
pub async fn transact<T, F>(
    store: &dyn Store,
    workspace: Option<&WorkspaceId>,
    body: F,
) -> Result<T, Error>
where
    F: for<'t> Fn(&'t mut dyn Sql) -> BoxFuture<'t, Result<T, Error>> + Send + Sync + 'static,
    T: Send + 'static,
{
    let work = Arc::new(Taking::new(body));
    store
        .transact(workspace, Arc::clone(&work) as Arc<dyn Work>)
        .await?;
    work.take()
}

/// [`Store::read`] with a closure and its output.
///
/// # Errors
/// What the store or the closure says.
pub async fn read<T, F>(store: &dyn Store, body: F) -> Result<T, Error>
where
    F: for<'t> Fn(&'t mut dyn Sql) -> BoxFuture<'t, Result<T, Error>> + Send + Sync,
    T: Send,
{
    let work = Taking::new(body);
    store.read(Box::new(&work)).await?;
    work.take()
}
