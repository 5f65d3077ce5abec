//! What runs here and can be cancelled.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use counterfoil_core::OperationId;
use counterfoil_mcp::framing::Id;
use counterfoil_store::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::dispatch::CANCEL_FOR;
use crate::{
    link::{self, Link},
    own_tools::{Cancelled, Canceller},
    proxy::Shared,
};

/// How long the end of a cancelled call is waited for: what the upstream has, and its recording.
const END_FOR: Duration = CANCEL_FOR.saturating_add(Duration::from_secs(2));
/// How often it is looked whether it has ended.
const LOOK_EACH: Duration = Duration::from_millis(50);

/// A dispatched call.
pub(crate) struct Running {
    link: Weak<Link>,
    /// As the upstream knows it, once it is (about to be) sent.
    id: Mutex<Option<Id>>,
    is_modern: bool,
    cancelled: CancellationToken,
}

impl Running {
    pub(super) fn new(link: &Arc<Link>, is_modern: bool) -> Arc<Self> {
        Arc::new(Self {
            link: Arc::downgrade(link),
            id: Mutex::default(),
            is_modern,
            cancelled: CancellationToken::new(),
        })
    }

    /// It goes to the upstream under this id.
    pub(super) fn sent_as(&self, id: Id) {
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
    }

    /// Completes when somebody has cancelled it.
    pub(super) async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }
}

impl Shared {
    /// Passes the cancel of an operation that runs here on to the upstream; `false`: it does not
    /// run here.
    pub(crate) async fn cancel_upstream(&self, operation_id: OperationId) -> bool {
        let running = {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.get(&operation_id).cloned()
        };
        let Some(running) = running else {
            return false;
        };
        // First of all: what is not on its way yet is not sent any more.
        running.cancelled.cancel();
        let id = running.id.lock();
        let id = id.unwrap_or_else(PoisonError::into_inner).clone();
        if let (Some(link), Some(id)) = (running.link.upgrade(), id) {
            let text = link::cancelled(&id);
            link.tell_cancelled(&id, text, running.is_modern).await;
        }
        true
    }
}

impl Canceller for Shared {
    fn cancel(&self, operation_id: OperationId) -> BoxFuture<'_, Cancelled> {
        Box::pin(async move {
            if !self.cancel_upstream(operation_id).await {
                return Cancelled::NotRunningHere;
            }
            let ended = async {
                loop {
                    match self.engine.store().get(operation_id).await {
                        Ok(Some(found)) if found.receipt.is_open() => {}
                        Ok(_) | Err(_) => return,
                    }
                    tokio::time::sleep(LOOK_EACH).await;
                }
            };
            // Whatever it is then is what is told.
            let _ = tokio::time::timeout(END_FOR, ended).await;
            Cancelled::Requested
        })
    }
}

/// Takes a call out of what runs, when it does not any more.
pub(super) struct Entered {
    shared: Arc<Shared>,
    operation_id: OperationId,
}

impl Entered {
    pub(super) fn new(
        shared: &Arc<Shared>,
        operation_id: OperationId,
        running: Arc<Running>,
    ) -> Self {
        let mut all = shared
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.insert(operation_id, running);
        drop(all);
        Self {
            shared: Arc::clone(shared),
            operation_id,
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut all = self
            .shared
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.operation_id);
    }
}
