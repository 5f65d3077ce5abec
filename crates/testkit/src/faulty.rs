use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use counterfoil_core::{
    Event, EventRecord, Identity, OperationId, Receipt, Timestamp, WorkspaceId,
};
use counterfoil_store::{
    Admission, Admitted, Atomic, AtomicHandler, BoxFuture, Census, Clash, Completion, Dialect,
    Error, Fence, Found, Health, Imported, Inspection, Migration, Page, Part, Query, ReadWork,
    Store, StoredReply, SweepPlan, Swept, Whole, Work,
};

/// A step of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "named after the methods of the store")]
pub enum Step {
    Find,
    Get,
    Question,
    List,
    Events,
    Admit,
    Atomically,
    Complete,
    Renew,
    Lapse,
    Record,
    Sweep,
    Transact,
    Read,
    Migrate,
    Note,
    SetNote,
    Health,
    Export,
    Import,
    Census,
    Inspect,
}

impl Step {
    /// The step writes, and finds what its first delivery did when it is delivered again. An
    /// application transaction has neither token nor fence to be recognized by.
    #[must_use]
    pub fn may_be_repeated(self) -> bool {
        self.writes() && self != Self::Transact
    }

    /// The step changes what is stored, so that it can take effect and lose its answer.
    #[must_use]
    pub const fn writes(self) -> bool {
        match self {
            Self::Admit
            | Self::Atomically
            | Self::Complete
            | Self::Renew
            | Self::Lapse
            | Self::Record
            | Self::Sweep
            | Self::Transact
            | Self::Migrate
            | Self::SetNote
            | Self::Import => true,
            Self::Find
            | Self::Get
            | Self::Question
            | Self::List
            | Self::Events
            | Self::Read
            | Self::Note
            | Self::Health
            | Self::Export
            | Self::Census
            | Self::Inspect => false,
        }
    }
}

/// One call of a step, as a plan sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which step.
    pub step: Step,
    /// Its number among all calls of this store, the first one 0.
    pub number: u64,
}

/// What is done to one call. The ones that lose an answer or repeat apply to steps that write;
/// a reading step is only delayed, refused or never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Refused before it took effect: [`Error::Busy`].
    Busy,
    /// Refused before it took effect: [`Error::Unavailable`].
    Unavailable,
    /// It is done, the answer is [`Error::CommitUnknown`].
    DoneUnknown,
    /// It is not done, the answer is [`Error::CommitUnknown`].
    NotDoneUnknown,
    /// It is done, the answer never comes.
    DoneSilent,
    /// It is not done, the answer never comes.
    NotDoneSilent,
    /// It begins after this long.
    Delayed(Duration),
    /// It is done at once, and answered after this long.
    AnsweredLate(Duration),
    /// It is done twice with the same arguments; the second answer counts. Steps that may not be
    /// repeated are left alone.
    Repeated,
    /// It is done and answered, and done once more after this long: a message that was
    /// delivered twice.
    RepeatedLater(Duration),
    /// The answer is [`Error::CommitUnknown`]; it is done after this long: a message that was on
    /// its way.
    UnknownDoneLater(Duration),
    /// It is not done: somebody else's open transaction holds the identity. Admissions only.
    Held,
}

/// What was done to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The call.
    pub call: Call,
    /// What was done to it, as far as it applies to its step.
    pub fault: Fault,
}

type Plan = dyn Fn(Call) -> Fault + Send + Sync;

/// A store that fails in chosen places. It needs a tokio runtime for what it delays.
///
/// What was chosen is recorded, so that a test can assert that the *chosen* step failed.
pub struct FaultyStore<S: ?Sized> {
    plan: Box<Plan>,
    calls: AtomicU64,
    chosen: Mutex<Vec<Chosen>>,
    inner: Arc<S>,
}

impl<S: Store + ?Sized> FaultyStore<S> {
    /// Wraps a store; `plan` says what is done to each call, in the order in which they begin.
    #[must_use]
    pub fn new(inner: Arc<S>, plan: impl Fn(Call) -> Fault + Send + Sync + 'static) -> Self {
        Self {
            plan: Box::new(plan),
            calls: AtomicU64::new(0),
            chosen: Mutex::new(Vec::new()),
            inner,
        }
    }

    /// Wraps a store and does nothing to it.
    #[must_use]
    pub fn passing(inner: Arc<S>) -> Self {
        Self::new(inner, |_| Fault::None)
    }

    /// Wraps a store; the `nth` call (from 0) of `step` gets this fault, every other none.
    #[must_use]
    pub fn once(inner: Arc<S>, step: Step, nth: u64, fault: Fault) -> Self {
        let seen = AtomicU64::new(0);
        Self::new(inner, move |call| {
            let hit = call.step == step && seen.fetch_add(1, Ordering::SeqCst) == nth;
            if hit { fault } else { Fault::None }
        })
    }

    /// The store inside.
    #[must_use]
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// Every call that was not left alone, in the order in which they began.
    #[must_use]
    pub fn chosen(&self) -> Vec<Chosen> {
        self.chosen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn choose(&self, step: Step) -> Fault {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let call = Call { step, number };
        let fault = match (self.plan)(call) {
            fault @ (Fault::None
            | Fault::Busy
            | Fault::Unavailable
            | Fault::NotDoneSilent
            | Fault::Delayed(_)
            | Fault::AnsweredLate(_)) => fault,
            fault @ (Fault::Repeated | Fault::RepeatedLater(_)) => {
                if step.may_be_repeated() {
                    fault
                } else {
                    Fault::None
                }
            }
            fault @ (Fault::DoneUnknown
            | Fault::NotDoneUnknown
            | Fault::DoneSilent
            | Fault::UnknownDoneLater(_)) => {
                if step.writes() {
                    fault
                } else {
                    Fault::None
                }
            }
            Fault::Held => match step {
                Step::Admit | Step::Atomically => Fault::Held,
                Step::Find
                | Step::Get
                | Step::Question
                | Step::List
                | Step::Events
                | Step::Complete
                | Step::Renew
                | Step::Lapse
                | Step::Record
                | Step::Sweep
                | Step::Transact
                | Step::Read
                | Step::Migrate
                | Step::Note
                | Step::SetNote
                | Step::Health
                | Step::Export
                | Step::Import
                | Step::Census
                | Step::Inspect => Fault::None,
            },
        };
        if fault != Fault::None {
            let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
            chosen.push(Chosen { call, fault });
        }
        fault
    }

    /// A reading step.
    async fn reading<T>(
        &self,
        step: Step,
        run: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match self.choose(step) {
            Fault::Busy => Err(busy()),
            Fault::Unavailable => Err(unavailable()),
            Fault::NotDoneSilent => pending().await,
            Fault::Delayed(time) => {
                tokio::time::sleep(time).await;
                run.await
            }
            Fault::AnsweredLate(time) => {
                let answer = run.await;
                tokio::time::sleep(time).await;
                answer
            }
            Fault::None
            | Fault::DoneUnknown
            | Fault::NotDoneUnknown
            | Fault::DoneSilent
            | Fault::Repeated
            | Fault::RepeatedLater(_)
            | Fault::UnknownDoneLater(_)
            | Fault::Held => run.await,
        }
    }

    /// A writing step. `run` does it on whatever store handle it is given, as often as asked.
    async fn writing<T, F>(
        &self,
        step: Step,
        run: impl Fn(Arc<S>) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.suffering(self.choose(step), run).await
    }

    /// An admission, which may be `held`.
    async fn admitting<T, F>(
        &self,
        step: Step,
        held: T,
        run: impl Fn(Arc<S>) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let fault = self.choose(step);
        if fault == Fault::Held {
            return Ok(held);
        }
        self.suffering(fault, run).await
    }

    async fn suffering<T, F>(
        &self,
        fault: Fault,
        run: impl Fn(Arc<S>) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let done = || run(Arc::clone(&self.inner));
        match fault {
            Fault::None | Fault::Held => done().await,
            Fault::Busy => Err(busy()),
            Fault::Unavailable => Err(unavailable()),
            Fault::DoneUnknown => {
                drop(done().await);
                Err(Error::CommitUnknown)
            }
            Fault::NotDoneUnknown => Err(Error::CommitUnknown),
            Fault::DoneSilent => {
                drop(done().await);
                pending().await
            }
            Fault::NotDoneSilent => pending().await,
            Fault::Delayed(time) => {
                tokio::time::sleep(time).await;
                done().await
            }
            Fault::AnsweredLate(time) => {
                let answer = done().await;
                tokio::time::sleep(time).await;
                answer
            }
            Fault::Repeated => {
                drop(done().await);
                done().await
            }
            Fault::RepeatedLater(time) => {
                let answer = done().await;
                later(time, done());
                answer
            }
            Fault::UnknownDoneLater(time) => {
                later(time, done());
                Err(Error::CommitUnknown)
            }
        }
    }
}

fn later<T: Send + 'static>(
    time: Duration,
    run: impl Future<Output = Result<T, Error>> + Send + 'static,
) {
    tokio::spawn(async move {
        tokio::time::sleep(time).await;
        drop(run.await);
    });
}

fn busy() -> Error {
    Error::Busy {
        retry_after: Duration::from_millis(100),
    }
}

fn unavailable() -> Error {
    Error::Unavailable("as planned by the test".to_owned())
}

impl<S: Store + ?Sized> Store for FaultyStore<S> {
    fn find<'a>(&'a self, identity: &'a Identity) -> BoxFuture<'a, Result<Option<Found>, Error>> {
        Box::pin(self.reading(Step::Find, self.inner.find(identity)))
    }

    fn get(&self, operation_id: OperationId) -> BoxFuture<'_, Result<Option<Found>, Error>> {
        Box::pin(self.reading(Step::Get, self.inner.get(operation_id)))
    }

    fn question(
        &self,
        operation_id: OperationId,
        round: u16,
    ) -> BoxFuture<'_, Result<Option<StoredReply>, Error>> {
        Box::pin(self.reading(Step::Question, self.inner.question(operation_id, round)))
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>> {
        Box::pin(self.reading(Step::List, self.inner.list(query)))
    }

    fn events(&self, operation_id: OperationId) -> BoxFuture<'_, Result<Vec<EventRecord>, Error>> {
        Box::pin(self.reading(Step::Events, self.inner.events(operation_id)))
    }

    fn admit(&self, admission: Admission) -> BoxFuture<'_, Result<Admitted, Error>> {
        Box::pin(self.admitting(Step::Admit, Admitted::Held, move |store| {
            let admission = admission.clone();
            async move { store.admit(admission).await }
        }))
    }

    fn atomically(
        &self,
        admission: Admission,
        handler: Arc<dyn AtomicHandler>,
    ) -> BoxFuture<'_, Result<Atomic, Error>> {
        Box::pin(
            self.admitting(Step::Atomically, Atomic::Held, move |store| {
                let (admission, handler) = (admission.clone(), Arc::clone(&handler));
                async move { store.atomically(admission, handler).await }
            }),
        )
    }

    fn complete(
        &self,
        fence: Fence,
        completion: Completion,
    ) -> BoxFuture<'_, Result<Receipt, Error>> {
        Box::pin(self.writing(Step::Complete, move |store| {
            let completion = completion.clone();
            async move { store.complete(fence, completion).await }
        }))
    }

    fn renew(
        &self,
        fence: Fence,
        now: Timestamp,
        lease: Duration,
    ) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(self.writing(Step::Renew, move |store| async move {
            store.renew(fence, now, lease).await
        }))
    }

    fn lapse(&self, now: Timestamp, limit: u32) -> BoxFuture<'_, Result<u32, Error>> {
        Box::pin(self.writing(Step::Lapse, move |store| async move {
            store.lapse(now, limit).await
        }))
    }

    fn record(
        &self,
        operation_id: OperationId,
        event: Event,
        at: Timestamp,
        reason: String,
        evidence: Option<String>,
    ) -> BoxFuture<'_, Result<Receipt, Error>> {
        Box::pin(self.writing(Step::Record, move |store| {
            let (reason, evidence) = (reason.clone(), evidence.clone());
            async move {
                store
                    .record(operation_id, event, at, reason, evidence)
                    .await
            }
        }))
    }

    fn sweep(&self, plan: SweepPlan) -> BoxFuture<'_, Result<Swept, Error>> {
        Box::pin(self.writing(
            Step::Sweep,
            move |store| async move { store.sweep(plan).await },
        ))
    }

    fn transact<'a>(
        &'a self,
        workspace: Option<&'a WorkspaceId>,
        work: Arc<dyn Work>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        let workspace = workspace.cloned();
        Box::pin(self.writing(Step::Transact, move |store| {
            let (workspace, work) = (workspace.clone(), Arc::clone(&work));
            async move { store.transact(workspace.as_ref(), work).await }
        }))
    }

    fn read<'a>(&'a self, work: Box<dyn ReadWork + 'a>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.reading(Step::Read, self.inner.read(work)))
    }

    fn migrate<'a>(
        &'a self,
        component: &'a str,
        steps: &'a [Migration],
    ) -> BoxFuture<'a, Result<(), Error>> {
        let component = component.to_owned();
        let steps = steps.to_vec();
        Box::pin(self.writing(Step::Migrate, move |store| {
            let (component, steps) = (component.clone(), steps.clone());
            async move { store.migrate(&component, &steps).await }
        }))
    }

    fn note<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Error>> {
        Box::pin(self.reading(Step::Note, self.inner.note(name)))
    }

    fn set_note<'a>(&'a self, name: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), Error>> {
        let name = name.to_owned();
        Box::pin(self.writing(Step::SetNote, move |store| {
            let (name, value) = (name.clone(), value.clone());
            async move { store.set_note(&name, value).await }
        }))
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, Error>> {
        Box::pin(self.reading(Step::Health, self.inner.health()))
    }

    fn export(&self, after: i64, limit: u32) -> BoxFuture<'_, Result<Part, Error>> {
        Box::pin(self.reading(Step::Export, self.inner.export(after, limit)))
    }

    fn import(&self, rows: Vec<Whole>) -> BoxFuture<'_, Result<Result<Imported, Clash>, Error>> {
        Box::pin(self.writing(Step::Import, move |store| {
            let rows = rows.clone();
            async move { store.import(rows).await }
        }))
    }

    fn census(&self) -> BoxFuture<'_, Result<Census, Error>> {
        Box::pin(self.reading(Step::Census, self.inner.census()))
    }

    fn inspect(&self) -> BoxFuture<'_, Result<Inspection, Error>> {
        Box::pin(self.reading(Step::Inspect, self.inner.inspect()))
    }

    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    fn now(&self) -> Option<Timestamp> {
        self.inner.now()
    }

    fn changed(&self, operation_id: OperationId) -> BoxFuture<'_, ()> {
        self.inner.changed(operation_id)
    }
}
