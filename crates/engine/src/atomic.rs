use std::sync::{Arc, Mutex, PoisonError};

use counterfoil_core::{Identity, Kept, Mode, OperationId, Policy, Reply, WorkspaceId};
use counterfoil_store::{Atomic, AtomicHandler, BoxFuture, Error, Failure, Sql, StoredReply, Work};

use crate::{Answer, Authority, Engine, Ready, Reason, Refusal, engine::count, keep::Keeper};

/// A handler for the receipt's own transaction. It must await nothing but the transaction and may
/// run again. The operation's handle is `None` for a call without a key.
pub trait TxHandler: Send + Sync + 'static {
    /// Runs it.
    fn call<'t>(
        &'t self,
        operation_id: Option<OperationId>,
        tx: &'t mut dyn Sql,
    ) -> BoxFuture<'t, Result<Reply, Failure>>;
}

impl<F> TxHandler for F
where
    F: for<'t> Fn(Option<OperationId>, &'t mut dyn Sql) -> BoxFuture<'t, Result<Reply, Failure>>
        + Send
        + Sync
        + 'static,
{
    fn call<'t>(
        &'t self,
        operation_id: Option<OperationId>,
        tx: &'t mut dyn Sql,
    ) -> BoxFuture<'t, Result<Reply, Failure>> {
        self(operation_id, tx)
    }
}

struct Keeping<H> {
    handler: H,
    policy: Policy,
    identity: Identity,
    keeper: Keeper,
}

impl<H: TxHandler> AtomicHandler for Keeping<H> {
    fn call<'t>(
        &'t self,
        operation_id: OperationId,
        tx: &'t mut dyn Sql,
    ) -> BoxFuture<'t, Result<Reply, Failure>> {
        self.handler.call(Some(operation_id), tx)
    }

    fn keep(&self, operation_id: OperationId, reply: &Reply) -> Result<StoredReply, Kept> {
        self.keeper
            .keep(&self.policy, &self.identity, operation_id, reply)
    }
}

impl Ready {
    /// Runs `handler` inside the receipt's own transaction: admission, effect, result and event
    /// are durable together or not at all.
    pub async fn atomically<H: TxHandler>(self, handler: H) -> Answer {
        let Self { engine, call } = self;
        let admission = match engine.admission(&call, Mode::Atomic) {
            Ok(admission) => admission,
            Err(reason) => return count(reason.into()),
        };
        let handler: Arc<dyn AtomicHandler> = Arc::new(Keeping {
            handler,
            policy: admission.policy.clone(),
            identity: call.identity.clone(),
            keeper: engine.inner.keeper.clone(),
        });
        let store = &engine.inner.store;
        let done = engine
            .settled(
                |said| matches!(said, Atomic::Held),
                || store.atomically(admission.clone(), Arc::clone(&handler)),
            )
            .await;
        let answer = match done {
            Ok(Atomic::Ran(receipt, reply)) => {
                let attempt = receipt.status.attempts.latest();
                tracing::debug!(operation_id = %receipt.operation_id, attempt, "committed with its effect");
                Answer::Ran {
                    reply,
                    operation_id: receipt.operation_id,
                }
            }
            Ok(Atomic::Own(found)) => engine.own(&found).await,
            Ok(Atomic::Aborted(reply)) => Answer::Failed { reply },
            Ok(Atomic::Decided(decision, found)) => engine.decided(&call, decision, *found).await,
            Ok(Atomic::Held) => engine.held(&call).await,
            // The same key is safe: it finds its receipt, or there is none and it runs.
            Err(Error::CommitUnknown) => Answer::Refused(Refusal {
                reason: Reason::Unknown {
                    first: true,
                    timed_out: false,
                    retryable: true,
                },
                operation_id: Some(admission.operation_id),
            }),
            Err(error) => Reason::from(error).into(),
        };
        count(engine.deliver(&call, answer).await)
    }
}

impl Engine {
    /// A committed call of this very caller, whose first answer was lost inside the store.
    async fn own(&self, found: &counterfoil_store::Found) -> Answer {
        let decision = counterfoil_core::Decision::Replay;
        match self.translate(decision, found).await {
            Answer::Replayed {
                reply,
                operation_id,
                ..
            } => Answer::Ran {
                reply,
                operation_id,
            },
            other @ (Answer::Ran { .. }
            | Answer::Asked { .. }
            | Answer::Failed { .. }
            | Answer::NotRecorded { .. }
            | Answer::Refused(_)) => other,
        }
    }

    /// Runs `handler` in a transaction of its own, without a receipt: what a mutation without a
    /// key is. Runs each time it is called, if the caller is authorized now; one after the other
    /// with the other mutations of its workspace.
    ///
    /// # Errors
    /// [`Refusal`] if the store could not run it; nothing was done then, unless the reason is
    /// [`Reason::Unknown`].
    pub async fn unkeyed<H: TxHandler>(
        &self,
        workspace: &WorkspaceId,
        authority: &dyn Authority,
        handler: H,
    ) -> Result<Reply, Refusal> {
        if let Err(denied) = authority.check().await {
            return Err(Refusal {
                reason: denied.into(),
                operation_id: None,
            });
        }
        let work = Arc::new(Unkeyed {
            handler,
            reply: Mutex::new(None),
        });
        let done = self
            .inner
            .store
            .transact(Some(workspace), Arc::clone(&work) as Arc<dyn Work>)
            .await;
        let reply = work
            .reply
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let reason = match (done, reply) {
            (Ok(()) | Err(Error::RolledBack), Some(reply)) => return Ok(reply),
            (Ok(()), None) => Reason::Internal("the handler gave no answer".to_owned()),
            (Err(error), _) => error.into(),
        };
        Err(Refusal {
            reason,
            operation_id: None,
        })
    }
}

struct Unkeyed<H> {
    handler: H,
    reply: Mutex<Option<Reply>>,
}

impl<H: TxHandler> Work for Unkeyed<H> {
    fn call<'t>(&'t self, tx: &'t mut dyn Sql) -> BoxFuture<'t, Result<(), Error>> {
        Box::pin(async move {
            let (reply, verdict) = match self.handler.call(None, tx).await {
                Ok(reply) => (reply, Ok(())),
                Err(Failure::Refused(reply) | Failure::Aborted(reply)) => {
                    (reply, Err(Error::RolledBack))
                }
                Err(Failure::Store(error)) => return Err(error),
            };
            *self.reply.lock().unwrap_or_else(PoisonError::into_inner) = Some(reply);
            verdict
        })
    }
}
