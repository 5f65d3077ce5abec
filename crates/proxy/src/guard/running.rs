//! What runs here and can be cancelled.

use std::{
    sync::{Arc, PoisonError, Weak},
    time::Duration,
};

use counterfoil_core::OperationId;
use counterfoil_mcp::framing::Id;
use counterfoil_store::BoxFuture;
use tokio::sync::Notify;

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
    id: Id,
    is_modern: bool,
    cancelled: Notify,
}

impl Running {
    pub(super) fn new(link: &Arc<Link>, id: Id, is_modern: bool) -> Arc<Self> {
        Arc::new(Self {
            link: Arc::downgrade(link),
            id,
            is_modern,
            cancelled: Notify::new(),
        })
    }

    /// Completes when somebody has cancelled it.
    pub(super) async fn cancelled(&self) {
        self.cancelled.notified().await;
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
        if let Some(link) = running.link.upgrade() {
            let text = link::cancelled(&running.id);
            link.tell_cancelled(&running.id, text, running.is_modern)
                .await;
        }
        running.cancelled.notify_one();
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
