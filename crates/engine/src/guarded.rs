use std::{convert::Infallible, panic::AssertUnwindSafe, time::Duration};

use counterfoil_core::{Event, Kept, Mode, OnError, OperationId, Receipt, Reply, State, Timestamp};
use counterfoil_store::{Admitted, Completion, Error, Fence, Granted, StoredReply};
use futures_util::FutureExt as _;
use tokio::sync::oneshot;
use tracing::Instrument as _;

use crate::{Answer, Call, Engine, Ready, Reason, Refusal, engine::count};

/// First pause before an answer that could not be recorded is recorded again.
const RECORD_PAUSE: Duration = Duration::from_millis(20);

/// Shortest pause between two renewals of a lease.
const RENEW_PAUSE_MIN: Duration = Duration::from_millis(10);

/// One execution of a guarded operation.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// Its fence: the operation's handle and the number of this attempt. Pass it to
    /// [`counterfoil_store::Sql::mark_committed`] in the transaction of the effect.
    pub fence: Fence,
    /// The round, the first one 0.
    pub round: u16,
    /// When it ends at the latest; after that its answer counts as late.
    pub hard_deadline: Timestamp,
}

impl Attempt {
    /// The handle of its operation.
    #[must_use]
    pub const fn operation_id(&self) -> OperationId {
        self.fence.operation_id
    }
}

/// What a guarded handler ends in: an answer, with what it proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A definite success. Kept and replayed.
    Succeeded(Reply),
    /// A definite error answer (a judgement such as 404 or 409). Kept and replayed.
    Refused {
        /// The answer.
        reply: Reply,
        /// It is established that nothing was left behind.
        effect_none: bool,
    },
    /// A failure (5xx, 429) whose proof the policy's [`OnError`] decides.
    Failed(Reply),
    /// Proven: not one byte was sent on any hop, or all is rolled back. Releases the key.
    NotApplied(Reply),
    /// Bytes may have been sent and no answer came: the outcome is unknown.
    Lost {
        /// It ran into a time-out.
        timed_out: bool,
    },
    /// It asks for something; the same key goes on with it.
    Asked {
        /// The question.
        reply: Reply,
        /// It is established that nothing was applied before asking.
        effect_none: bool,
        /// How long it may stay unanswered.
        question_for: Duration,
    },
}

impl Ready {
    /// Runs `handler` once its reservation is durable, on a task of its own, and answers once its
    /// result is durable. Dropping the returned future stops nothing.
    pub async fn run<H, F>(self, handler: H) -> Answer
    where
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let Self { engine, call } = self;
        let (tell, told) = oneshot::channel();
        let guard = {
            let engine = engine.clone();
            let call = call.clone();
            async move { engine.guard(call, handler, tell).await }
        };
        engine.inner.tasks.spawn(guard);
        let answer = told.await.unwrap_or_else(|_| {
            // The runtime is shutting down under the attempt: its row will say unknown.
            Answer::from(Reason::Unknown {
                first: true,
                timed_out: false,
                retryable: false,
            })
        });
        count(engine.deliver(&call, answer).await)
    }
}

impl Engine {
    async fn guard<H, F>(&self, call: Call, handler: H, tell: oneshot::Sender<Answer>)
    where
        H: FnOnce(Attempt) -> F + Send + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let admitted = match self.admission(&call, Mode::Guarded) {
            Ok(admission) => self
                .settled(
                    |said| matches!(said, Admitted::Held),
                    || self.inner.store.admit(admission.clone()),
                )
                .await
                .map_err(Reason::from),
            Err(reason) => Err(reason),
        };
        let granted = match admitted {
            Ok(Admitted::Run(granted)) => granted,
            Ok(Admitted::Decided(decision, found)) => {
                let _ = tell.send(self.decided(&call, decision, *found).await);
                return;
            }
            Ok(Admitted::Held) => {
                let _ = tell.send(self.held(&call).await);
                return;
            }
            // The reservation may exist, and nothing ran: its lease will lapse.
            Err(Reason::Unknown { .. }) => {
                let _ = tell.send(
                    Reason::Unavailable(
                        "it could not be settled whether the reservation is durable".to_owned(),
                    )
                    .into(),
                );
                return;
            }
            Err(reason) => {
                let _ = tell.send(reason.into());
                return;
            }
        };
        let attempt = Attempt {
            fence: granted.fence,
            round: granted.round,
            hard_deadline: granted.hard_deadline,
        };
        let span = tracing::info_span!(
            "attempt",
            operation_id = %attempt.fence.operation_id,
            attempt = attempt.fence.attempt
        );
        // Called inside, so that a panic before its first await is caught as well.
        let handler = async move { handler(attempt).await };
        self.drive(call, granted, handler, tell)
            .instrument(span)
            .await;
    }

    async fn drive<F>(
        &self,
        call: Call,
        granted: Granted,
        handler: F,
        tell: oneshot::Sender<Answer>,
    ) where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let fence = granted.fence;
        let policy = &call.operation.policy;
        let handler = AssertUnwindSafe(handler).catch_unwind();
        tokio::pin!(handler);
        let hard = tokio::time::sleep(granted.hard_deadline.since(self.now()));
        tokio::pin!(hard);
        // Beside the handler, not between its polls: a slow renewal holds nothing up.
        let renewals = self.renew_for_ever(fence, policy.lease);
        tokio::pin!(renewals);
        let outcome = tokio::select! {
            biased;
            outcome = &mut handler => outcome,
            () = &mut hard => {
                let lost = Outcome::Lost { timed_out: true };
                let answer = self.record(&call, fence, lost, "hard deadline passed").await;
                let _ = tell.send(answer);
                // Its own answer, however late, is the best evidence there will be.
                let late = tokio::time::timeout(self.inner.limits.listen_for, handler).await;
                if let Ok(Ok(outcome)) = late {
                    self.record(&call, fence, outcome, "late answer").await;
                }
                return;
            }
            never = &mut renewals => match never {},
        };
        let (outcome, reason) = match outcome {
            Ok(outcome @ Outcome::Lost { .. }) => (outcome, "no answer came"),
            Ok(outcome) => (outcome, "answered"),
            Err(_panic) => (Outcome::Lost { timed_out: false }, "handler panicked"),
        };
        let answer = self.record(&call, fence, outcome, reason).await;
        drop(granted);
        let _ = tell.send(answer);
    }

    async fn renew_for_ever(&self, fence: Fence, lease: Duration) -> Infallible {
        loop {
            tokio::time::sleep((lease / 3).max(RENEW_PAUSE_MIN)).await;
            if let Err(error) = self.inner.store.renew(fence, self.now(), lease).await {
                tracing::warn!(%error, "the lease was not renewed");
            }
        }
    }

    /// Makes an outcome durable, wakes the waiters, and says what the caller gets.
    async fn record(
        &self,
        call: &Call,
        fence: Fence,
        outcome: Outcome,
        reason: &'static str,
    ) -> Answer {
        let attempt = fence.attempt;
        let operation_id = fence.operation_id;
        let event = event_of(&outcome, attempt, call.operation.policy.on_error);
        let (reply, kept) = self.kept(call, operation_id, &outcome, event);
        let completion = Completion {
            event,
            reply,
            kept,
            at: self.now(),
            reason: reason_of(&outcome, reason),
            evidence: None,
            question_for: match &outcome {
                Outcome::Asked { question_for, .. } => *question_for,
                Outcome::Succeeded(_)
                | Outcome::Refused { .. }
                | Outcome::Failed(_)
                | Outcome::NotApplied(_)
                | Outcome::Lost { .. } => Duration::ZERO,
            },
        };
        let mut recorded = self.complete(fence, completion.clone()).await;
        if matches!(recorded, Err(Error::Fenced(_))) && matches!(event, Event::NotApplied { .. }) {
            // It failed after it had committed its write: that is no release.
            let lost = Completion {
                event: Event::Lost { attempt },
                kept: Kept::AnswerLost,
                reason: "failed after its write was committed",
                ..completion
            };
            recorded = self.complete(fence, lost).await;
        }
        self.inner.waiters.wake(&call.identity);
        if let Err(error) = &recorded {
            tracing::error!(%operation_id, attempt, %error, "an outcome could not be recorded");
        }
        answer_of(outcome, event, operation_id, recorded.as_ref().ok(), kept)
    }

    fn kept(
        &self,
        call: &Call,
        operation_id: OperationId,
        outcome: &Outcome,
        event: Event,
    ) -> (Option<StoredReply>, Kept) {
        let reply = match outcome {
            Outcome::Succeeded(reply)
            | Outcome::Refused { reply, .. }
            | Outcome::Asked { reply, .. } => reply,
            Outcome::Failed(_) | Outcome::NotApplied(_) | Outcome::Lost { .. } => {
                let lost = matches!(event, Event::Lost { .. });
                return (
                    None,
                    if lost {
                        Kept::AnswerLost
                    } else {
                        Kept::Nothing
                    },
                );
            }
        };
        let policy = &call.operation.policy;
        match self
            .inner
            .keeper
            .keep(policy, &call.identity, operation_id, reply)
        {
            Ok(stored) => (Some(stored), Kept::Stored),
            Err(marker) => (None, marker),
        }
    }

    /// Completes, again and again within a bound: a completion is idempotent under its fence, and
    /// giving up on it would lose what is known.
    async fn complete(&self, fence: Fence, completion: Completion) -> Result<Receipt, Error> {
        let give_up = tokio::time::Instant::now() + self.inner.limits.record_for;
        let mut pause = RECORD_PAUSE;
        loop {
            // It stays in the store's queue when this caller stops waiting for it.
            let step = self.inner.store.complete(fence, completion.clone());
            let error = match tokio::time::timeout_at(give_up, step).await {
                Ok(Ok(receipt)) => return Ok(receipt),
                Ok(Err(error)) => error,
                Err(_elapsed) => return Err(Error::CommitUnknown),
            };
            let again = match &error {
                Error::Busy { .. } | Error::Unavailable(_) | Error::CommitUnknown => true,
                Error::Corrupt(_)
                | Error::Fenced(_)
                | Error::NotFound
                | Error::Handler(_)
                | Error::Statement(_)
                | Error::RolledBack
                | Error::Quota { .. } => false,
            };
            if !again || tokio::time::Instant::now() + pause >= give_up {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}

const fn event_of(outcome: &Outcome, attempt: u32, on_error: OnError) -> Event {
    match outcome {
        Outcome::Succeeded(_) => Event::Succeeded { attempt },
        Outcome::Refused { effect_none, .. } => Event::Refused {
            attempt,
            effect_none: *effect_none,
        },
        Outcome::Failed(_) => match on_error {
            OnError::Unknown => Event::Lost { attempt },
            OnError::ReleaseUnlessCommitted => Event::NotApplied { attempt },
        },
        Outcome::NotApplied(_) => Event::NotApplied { attempt },
        Outcome::Lost { .. } => Event::Lost { attempt },
        Outcome::Asked { effect_none, .. } => Event::Asked {
            attempt,
            effect_none: *effect_none,
        },
    }
}

const fn reason_of(outcome: &Outcome, given: &'static str) -> &'static str {
    match outcome {
        Outcome::Failed(_) => "failed without a definite answer",
        Outcome::Lost { timed_out: true } => "no answer in time",
        Outcome::Succeeded(_)
        | Outcome::Refused { .. }
        | Outcome::NotApplied(_)
        | Outcome::Asked { .. }
        | Outcome::Lost { timed_out: false } => given,
    }
}

fn answer_of(
    outcome: Outcome,
    event: Event,
    operation_id: OperationId,
    recorded: Option<&Receipt>,
    kept: Kept,
) -> Answer {
    let refused = |reason| {
        Answer::Refused(Refusal {
            reason,
            operation_id: Some(operation_id),
        })
    };
    let unknown = |timed_out| match recorded.map(|receipt| receipt.status.state) {
        // Lost after its write was committed: that it happened is known.
        Some(State::Succeeded) => refused(Reason::Committed { retry_after: None }),
        _ => refused(Reason::Unknown {
            first: true,
            timed_out,
            retryable: false,
        }),
    };
    match outcome {
        Outcome::Lost { timed_out } => unknown(timed_out),
        Outcome::Failed(_) if matches!(event, Event::Lost { .. }) => unknown(false),
        Outcome::Failed(reply) | Outcome::NotApplied(reply) if recorded.is_some() => {
            Answer::Failed { reply }
        }
        Outcome::Asked { reply, .. } if recorded.is_some() => Answer::Asked {
            reply,
            operation_id,
            replayed: false,
        },
        // A row that was settled before (lapsed after its commit, resolved) keeps its verdict and
        // has no place for the answer.
        Outcome::Succeeded(reply) | Outcome::Refused { reply, .. }
            if recorded.is_some_and(|receipt| receipt.kept == kept) =>
        {
            Answer::Ran {
                reply,
                operation_id,
            }
        }
        Outcome::Succeeded(reply)
        | Outcome::Refused { reply, .. }
        | Outcome::Asked { reply, .. }
        | Outcome::Failed(reply)
        | Outcome::NotApplied(reply) => Answer::NotRecorded {
            reply,
            operation_id,
        },
    }
}
