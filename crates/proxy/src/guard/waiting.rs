//! How a guarded call stands to its client: whether that still waits, and what it said before.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use counterfoil_core::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::keyless::Delivery;

/// How long a call waits until the one before it is on its way.
const TURN_MAX: Duration = Duration::from_secs(1);

/// Whether the client still waits for a call.
#[derive(Default)]
pub(crate) struct Stop(Mutex<Stopped>);

#[derive(Default)]
struct Stopped {
    at: Option<Timestamp>,
    delivery: Option<Delivery>,
}

impl Stop {
    /// The client does not wait any more, or its connection has ended: whatever the answer will
    /// be, it is proven undelivered.
    pub(crate) fn stop(&self, now: Timestamp) {
        let mut stopped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if stopped.at.is_none() {
            stopped.at = Some(now);
            if let Some(delivery) = &stopped.delivery {
                delivery.undelivered(now);
            }
        }
    }

    /// Whose delivery is meant.
    pub(super) fn concerns(&self, delivery: &Delivery) {
        let mut stopped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = stopped.at {
            delivery.undelivered(at);
        }
        stopped.delivery = Some(delivery.clone());
    }

    /// The handing out that was meant is not to be.
    pub(super) fn forget(&self) {
        let mut stopped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.delivery = None;
    }

    pub(crate) fn is_stopped(&self) -> bool {
        let stopped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.at.is_some()
    }
}

/// A guarded call's place among what its client says.
#[derive(Default)]
pub(crate) struct Turn {
    /// Completes when the guarded call before it is on its way, or is not to be sent.
    pub(crate) before: Option<CancellationToken>,
    /// Completed when this one is.
    pub(crate) sent: CancellationToken,
    /// Answers that were being written when the call came.
    pub(crate) handing: Vec<CancellationToken>,
}

impl Turn {
    /// Waits, within the same bound, until it is known what became of the answers that were being
    /// written: the client may have had them before it said this.
    pub(crate) async fn after_handing(&self) {
        let all = async {
            for handing in &self.handing {
                handing.cancelled().await;
            }
        };
        let _ = tokio::time::timeout(TURN_MAX, all).await;
    }

    /// Waits for one before, at most [`TURN_MAX`]: order is not worth more. Whether it is done.
    pub(crate) async fn after(before: &CancellationToken) -> bool {
        let done = tokio::time::timeout(TURN_MAX, before.cancelled()).await;
        done.is_ok()
    }
}

/// Lets the next one go on when it is dropped: not before the one before, whatever that waits for.
pub(crate) struct Passing {
    before: Option<CancellationToken>,
    sent: CancellationToken,
}

impl Passing {
    pub(crate) fn of(turn: &Turn) -> Self {
        Self {
            before: turn.before.clone(),
            sent: turn.sent.clone(),
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        let sent = self.sent.clone();
        match self.before.take().filter(|before| !before.is_cancelled()) {
            Some(before) if !sent.is_cancelled() => {
                tokio::spawn(async move {
                    Turn::after(&before).await;
                    sent.cancel();
                });
            }
            Some(_) | None => sent.cancel(),
        }
    }
}
