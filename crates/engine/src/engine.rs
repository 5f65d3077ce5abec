use std::{sync::Arc, time::Duration};

use counterfoil_core::{
    Decision, Effect, Kept, Mode, OperationId, Phase, Presented, Reply, State, Timestamp, Token,
    decide,
};
use counterfoil_store::{Admission, Error, Found, Store};
use futures_util::FutureExt as _;
use tokio_util::task::TaskTracker;

use crate::{
    Answer, Attempt, Call, Clock, Denied, Entropy, KeyRing, Outcome, Reason, Refusal, SystemClock,
    SystemEntropy, TxHandler, keep::Keeper, waiters::Waiters,
};

/// How many lapsed rows are recorded on the way of one call.
const LAPSE_BATCH: u32 = 64;
/// How often a step whose commit is unknown is repeated under its own token.
const SETTLE_TRIES: u32 = 5;
/// The pause before it is repeated, times the number of tries.
const SETTLE_PAUSE: Duration = Duration::from_millis(50);
/// First pause between two looks of a waiter at a store that other processes write to.
const POLL_FIRST: Duration = Duration::from_millis(20);
/// Longest such pause.
const POLL_MAX: Duration = Duration::from_millis(500);

/// Bounds of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Duplicates waiting for one receipt; beyond it they are told at once. Default 64.
    pub waiters_per_receipt_max: usize,
    /// Waiting duplicates of one principal. Default 256.
    pub waiters_per_principal_max: usize,
    /// Waiting duplicates in all. Default 4,096.
    pub waiters_max: usize,
    /// How long a call may wait for the store's writer and locks. Default 5 s.
    pub patience: Duration,
    /// How long an answer may take to be recorded before it is handed over as not recorded.
    /// Default 10 s.
    pub record_for: Duration,
    /// How long a handler past its hard deadline is still listened to. Default 10 min.
    pub listen_for: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiters_per_receipt_max: 64,
            waiters_per_principal_max: 256,
            waiters_max: 4096,
            patience: Duration::from_secs(5),
            record_for: Duration::from_secs(10),
            listen_for: Duration::from_secs(600),
        }
    }
}

/// Drives the contract on one store. Cheap to clone. Needs a tokio runtime.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) keeper: Keeper,
    pub(crate) limits: Limits,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) tasks: TaskTracker,
}

/// Sets an engine up.
pub struct Builder {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    ring: Option<Arc<KeyRing>>,
    limits: Limits,
}

impl Builder {
    /// Takes time from `clock` instead of the machine.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Takes randomness from `entropy` instead of the operating system.
    #[must_use]
    pub fn entropy(mut self, entropy: Arc<dyn Entropy>) -> Self {
        self.entropy = entropy;
        self
    }

    /// Seals and opens the results of sealed operations with `ring`. Without one, sealed
    /// operations are refused before they run.
    #[must_use]
    pub fn key_ring(mut self, ring: Arc<KeyRing>) -> Self {
        self.ring = Some(ring);
        self
    }

    /// Other bounds than the defaults.
    #[must_use]
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The engine.
    #[must_use]
    pub fn build(self) -> Engine {
        Engine {
            inner: Arc::new(Inner {
                store: self.store,
                clock: self.clock,
                keeper: Keeper {
                    ring: self.ring,
                    entropy: self.entropy,
                },
                limits: self.limits,
                waiters: Arc::new(Waiters::new(self.limits)),
                tasks: TaskTracker::new(),
            }),
        }
    }
}

/// What a look-up says: an answer without running, or leave to run.
pub enum Lookup {
    /// Nothing runs.
    Answered(Answer),
    /// It may run. Validate the request and check limits now, before anything is reserved; drop
    /// this to refuse (the key is then not used up).
    Ready(Ready),
}

/// A call that may run. The writer has the last word.
#[must_use = "a call that is not run gets no answer"]
pub struct Ready {
    pub(crate) engine: Engine,
    pub(crate) call: Call,
}

impl Engine {
    /// An engine on `store`, with the machine's clock and randomness and the default bounds.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::builder(store).build()
    }

    /// Sets an engine up.
    #[must_use]
    pub fn builder(store: Arc<dyn Store>) -> Builder {
        Builder {
            store,
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(SystemEntropy),
            ring: None,
            limits: Limits::default(),
        }
    }

    /// The store it drives.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// The present: by the store's clock if it has one, otherwise by the engine's.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let of_store = self.inner.store.now();
        of_store.unwrap_or_else(|| self.inner.clock.now())
    }

    /// Fills `buffer` with random bytes; `false` if there are none to be had.
    #[must_use]
    pub fn random(&self, buffer: &mut [u8]) -> bool {
        self.inner.keeper.entropy.fill(buffer)
    }

    /// The stored result of a finished operation, opened, while its replay window lasts. For its
    /// own principal only: the caller has authenticated it just now and compared it with the
    /// receipt's (contract §8).
    #[must_use]
    pub fn result(&self, found: &Found) -> Option<Reply> {
        let receipt = &found.receipt;
        let live = receipt.phase(self.now()) == Phase::Live;
        let stored = found.reply.clone().filter(|_| {
            live && receipt.kept == Kept::Stored && receipt.status.state.is_finished()
        })?;
        let keeper = &self.inner.keeper;
        keeper.open(&receipt.identity, receipt.operation_id, stored)
    }

    /// Decides without the writer; waits if the call asks for it and another attempt is under
    /// way. Nobody who is not authorized now gets past it.
    pub async fn look_up(&self, call: Call) -> Lookup {
        let read = self.read(&call).await;
        // The body may have taken its time since the caller was authenticated.
        if let Err(denied) = call.authority.check().await {
            return Lookup::Answered(count(Reason::from(denied).into()));
        }
        match read {
            Err(error) => Lookup::Answered(count(Reason::from(error).into())),
            Ok((Decision::Run { .. } | Decision::Own, _)) => Lookup::Ready(Ready {
                engine: self.clone(),
                call,
            }),
            Ok((decision, Some(found))) => {
                Lookup::Answered(count(self.decided(&call, decision, found).await))
            }
            Ok((decision, None)) => {
                tracing::error!(?decision, "a decision about nothing");
                Lookup::Answered(count(Reason::Internal(String::new()).into()))
            }
        }
    }

    /// A guarded call: looks it up, and runs `handler` if it may run.
    pub async fn run<H, F>(&self, call: Call, handler: H) -> Answer
    where
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        match self.look_up(call).await {
            Lookup::Answered(answer) => answer,
            Lookup::Ready(ready) => ready.run(handler).await,
        }
    }

    /// An atomic call: looks it up, and runs `handler` in the receipt's own transaction if it may
    /// run.
    pub async fn atomically<H: TxHandler>(&self, call: Call, handler: H) -> Answer {
        match self.look_up(call).await {
            Lookup::Answered(answer) => answer,
            Lookup::Ready(ready) => ready.atomically(handler).await,
        }
    }

    /// Waits until no attempt runs in this process, at most `bound`; whether all are through. The
    /// rest go on until the process ends, and are unknown then.
    pub async fn drain(&self, bound: Duration) -> bool {
        self.inner.tasks.close();
        tokio::time::timeout(bound, self.inner.tasks.wait())
            .await
            .is_ok()
    }

    /// Finds and decides; a lapsed lease is recorded on the way and decided again.
    async fn read(&self, call: &Call) -> Result<(Decision, Option<Found>), Error> {
        let inner = &self.inner;
        let presented = Presented {
            fingerprint: call.fingerprint,
            inputs: call.inputs,
            token: None,
        };
        let mut found = inner.store.find(&call.identity).await?;
        let mut decision = decide(found.as_ref().map(|f| &f.receipt), &presented, self.now());
        if matches!(decision, Decision::Unknown { lapsed: true, .. }) {
            match inner.store.lapse(self.now(), LAPSE_BATCH).await {
                // Nothing of this call was started.
                Err(Error::CommitUnknown) => {
                    return Err(Error::Busy {
                        retry_after: Duration::from_secs(1),
                    });
                }
                done => done?,
            };
            inner.waiters.wake(&call.identity);
            found = inner.store.find(&call.identity).await?;
            decision = decide(found.as_ref().map(|f| &f.receipt), &presented, self.now());
        }
        Ok((decision, found))
    }

    /// Repeats a step under its own token while it is in doubt whether an earlier try took effect:
    /// what a later try did not do says nothing about the one before, and what holds its identity
    /// may be the one before. Bounded; then it is unknown.
    pub(crate) async fn settled<T, F>(
        &self,
        is_held: impl Fn(&T) -> bool,
        step: impl Fn() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let started = tokio::time::Instant::now();
        let mut in_doubt = false;
        for tries in 1..=SETTLE_TRIES {
            match step().await {
                Err(Error::CommitUnknown) => in_doubt = true,
                Err(Error::Busy { .. } | Error::Unavailable(_)) if in_doubt => {}
                Ok(said) if in_doubt && is_held(&said) => {}
                done => return done,
            }
            // A store that takes its time has tried to find out itself.
            if started.elapsed() > self.inner.limits.patience {
                break;
            }
            tokio::time::sleep(SETTLE_PAUSE * tries).await;
        }
        Err(Error::CommitUnknown)
    }

    /// The answer to a decision that runs nothing, after waiting if that was asked for.
    pub(crate) async fn decided(&self, call: &Call, decision: Decision, found: Found) -> Answer {
        if !may_wait(decision) {
            return self.translate(decision, &found).await;
        }
        match self.wait(call, Some(found.receipt.operation_id)).await {
            Some(answer) => answer,
            None => self.translate(decision, &found).await,
        }
    }

    /// The answer to a call whose identity an open transaction of another caller holds, after
    /// waiting for what comes of it if that was asked for.
    pub(crate) async fn held(&self, call: &Call) -> Answer {
        let waited = self.wait(call, None).await;
        waited.unwrap_or_else(|| in_progress(None))
    }

    /// Waits as long as the call asks for. `seen` is the operation it waits for; without it,
    /// nothing can be seen yet of what another caller's transaction makes of the identity. `None`:
    /// it does not ask to wait, or may not, because too many do.
    async fn wait(&self, call: &Call, mut seen: Option<OperationId>) -> Option<Answer> {
        let policy = &call.operation.policy;
        let limit = call.wait.unwrap_or(policy.wait).min(policy.wait_max);
        if limit.is_zero() {
            return None;
        }
        let store = &self.inner.store;
        let waiter = self.inner.waiters.register(&call.identity)?;
        let deadline = tokio::time::Instant::now() + limit;
        let mut pause = POLL_FIRST;
        loop {
            let woken = waiter.woken();
            tokio::pin!(woken);
            woken.as_mut().enable();
            let changed = async move {
                match seen {
                    Some(operation_id) => store.changed(operation_id).await,
                    None => std::future::pending().await,
                }
            }
            .fuse();
            tokio::pin!(changed);
            // Listens from here on, so that no change between the look and the pause is missed.
            let _ = changed.as_mut().now_or_never();
            let read = self.read(call).await;
            let over = tokio::time::Instant::now() >= deadline;
            let operation_id = match read {
                // The transaction that holds it has not ended, or was rolled back.
                Ok((Decision::Run { .. }, _)) if seen.is_none() && !over => None,
                Ok((decision, Some(found))) => {
                    if over || !may_wait(decision) {
                        let answer = self.translate(decision, &found).await;
                        return Some(self.deliver(call, answer).await);
                    }
                    Some(found.receipt.operation_id)
                }
                Ok((_, None)) => return Some(in_progress(None)),
                Err(error) => return Some(Reason::from(error).into()),
            };
            let until = if seen.is_none() || store.is_shared() {
                deadline.min(tokio::time::Instant::now() + pause)
            } else {
                deadline
            };
            tokio::select! {
                () = woken => {}
                () = changed => {}
                () = tokio::time::sleep_until(until) => {}
            }
            pause = (pause * 2).min(POLL_MAX);
            seen = seen.or(operation_id);
        }
    }

    /// Time has passed since the caller was authorized: a result goes only to one who still is.
    pub(crate) async fn deliver(&self, call: &Call, answer: Answer) -> Answer {
        let carries_result = match &answer {
            Answer::Ran { .. }
            | Answer::Replayed { .. }
            | Answer::Asked { .. }
            | Answer::Failed { .. }
            | Answer::NotRecorded { .. } => true,
            Answer::Refused(_) => false,
        };
        if !carries_result {
            return answer;
        }
        match call.authority.check().await {
            Ok(()) => answer,
            Err(denied) => Answer::Refused(Refusal {
                reason: denied.into(),
                operation_id: answer.operation_id(),
            }),
        }
    }

    pub(crate) async fn translate(&self, decision: Decision, found: &Found) -> Answer {
        let operation_id = found.receipt.operation_id;
        let refuse = |reason| {
            Answer::Refused(Refusal {
                reason,
                operation_id: Some(operation_id),
            })
        };
        let attempt = found.receipt.status.attempts.latest();
        tracing::debug!(%operation_id, attempt, ?decision, "decided without running");
        match decision {
            // Only a waiter comes here: a waiter never becomes a runner.
            Decision::Run { .. } | Decision::Own => in_progress(Some(operation_id)),
            Decision::Conflict => refuse(Reason::Conflict),
            Decision::Replay => self.replay(found),
            Decision::ReplayQuestion { round } => self.question(found, round).await,
            Decision::ResultUnavailable if found.receipt.effect() == Effect::None => {
                refuse(Reason::NotHappened)
            }
            Decision::ResultUnavailable => refuse(Reason::ResultUnavailable),
            Decision::Committed { retry_after } => refuse(Reason::Committed { retry_after }),
            Decision::InProgress { retry_after } => refuse(Reason::InProgress { retry_after }),
            // Nothing here sends a guarded call again, also not under its provider key.
            Decision::Unknown { .. } => refuse(Reason::Unknown {
                first: false,
                timed_out: false,
                retryable: false,
            }),
            Decision::Expired => refuse(Reason::Expired),
        }
    }

    fn replay(&self, found: &Found) -> Answer {
        let receipt = &found.receipt;
        let opened = found.reply.clone().and_then(|stored| {
            self.inner
                .keeper
                .open(&receipt.identity, receipt.operation_id, stored)
        });
        match opened {
            Some(reply) => Answer::Replayed {
                reply,
                operation_id: receipt.operation_id,
                stored_failure: receipt.status.state == State::Failed,
            },
            None => Answer::Refused(Refusal {
                reason: Reason::ResultUnavailable,
                operation_id: Some(receipt.operation_id),
            }),
        }
    }

    async fn question(&self, found: &Found, round: u16) -> Answer {
        let receipt = &found.receipt;
        let operation_id = receipt.operation_id;
        let open = receipt.status.state == State::InputRequired && receipt.status.round == round;
        let stored = if open {
            found.reply.clone()
        } else {
            match self.inner.store.question(operation_id, round).await {
                Ok(stored) => stored,
                Err(error) => return Reason::from(error).into(),
            }
        };
        let opened = stored.and_then(|stored| {
            self.inner
                .keeper
                .open(&receipt.identity, operation_id, stored)
        });
        match opened {
            Some(reply) => Answer::Asked {
                reply,
                operation_id,
                replayed: true,
            },
            None => Answer::Refused(Refusal {
                reason: Reason::ResultUnavailable,
                operation_id: Some(operation_id),
            }),
        }
    }

    /// A new admission of this call; `None` without randomness.
    pub(crate) fn admission(&self, call: &Call, mode: Mode) -> Result<Admission, Reason> {
        let mut policy = call.operation.policy.clone();
        policy.mode = mode;
        if policy.seal && self.inner.keeper.ring.is_none() {
            return Err(Reason::Unavailable(
                "this operation is sealed and no sealing keys are configured".to_owned(),
            ));
        }
        let (mut id, mut token) = ([0; 10], [0; 16]);
        if !self.random(&mut id) || !self.random(&mut token) {
            return Err(Reason::Unavailable("no randomness to be had".to_owned()));
        }
        let now = self.now();
        Ok(Admission {
            identity: call.identity.clone(),
            fingerprint: call.fingerprint,
            inputs: call.inputs,
            version: call.operation.version,
            policy,
            operation_id: OperationId::new(now, id),
            token: Token::new(token),
            now,
            patience: self.inner.limits.patience,
        })
    }
}

const fn may_wait(decision: Decision) -> bool {
    match decision {
        Decision::InProgress { .. }
        | Decision::Committed {
            retry_after: Some(_),
        } => true,
        Decision::Run { .. }
        | Decision::Own
        | Decision::Conflict
        | Decision::Replay
        | Decision::ReplayQuestion { .. }
        | Decision::ResultUnavailable
        | Decision::Committed { retry_after: None }
        | Decision::Unknown { .. }
        | Decision::Expired => false,
    }
}

/// What a waiter is told after a release, and who is kept out by an open transaction: try again,
/// as a new call.
fn in_progress(operation_id: Option<OperationId>) -> Answer {
    Answer::Refused(Refusal {
        reason: Reason::InProgress {
            retry_after: Duration::from_secs(1),
        },
        operation_id,
    })
}

impl From<Denied> for Reason {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Withdrawn => Self::Denied,
            Denied::Unsettled => Self::Unavailable(denied.to_string()),
        }
    }
}

impl From<Error> for Reason {
    fn from(error: Error) -> Self {
        match error {
            Error::Busy { retry_after } => Self::Busy { retry_after },
            Error::Unavailable(why) => Self::Unavailable(why),
            Error::Corrupt(why) => Self::Unavailable(format!("the store is corrupt: {why}")),
            Error::CommitUnknown => Self::Unknown {
                first: true,
                timed_out: false,
                retryable: false,
            },
            Error::Quota { limit } => Self::Quota { limit },
            Error::Handler(why) | Error::Statement(why) => Self::Internal(why),
            Error::Fenced(why) => Self::Internal(why.to_string()),
            Error::NotFound | Error::RolledBack => Self::Internal(error.to_string()),
        }
    }
}

/// Counts an answer by what it says.
pub(crate) fn count(answer: Answer) -> Answer {
    let outcome = match &answer {
        Answer::Ran { .. } => "ran",
        Answer::Replayed { .. } => "replayed",
        Answer::Asked { .. } => "asked",
        Answer::Failed { .. } => "failed",
        Answer::NotRecorded { .. } => "not_recorded",
        Answer::Refused(refusal) => refusal.reason.code().as_str(),
    };
    metrics::counter!("counterfoil_calls_total", "outcome" => outcome).increment(1);
    answer
}
