use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use counterfoil_core::{Identity, PrincipalId, WorkspaceId};
use tokio::sync::{Notify, futures::Notified};

use crate::Limits;

/// Duplicates waiting in this process for the first one's answer. Bounded per receipt, per
/// principal and in all.
pub(crate) struct Waiters {
    limits: Limits,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    receipts: HashMap<Identity, (Arc<Notify>, usize)>,
    principals: HashMap<(WorkspaceId, PrincipalId), usize>,
    total: usize,
}

impl Waiters {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            inner: Mutex::new(Inner::default()),
        }
    }

    /// Registers a waiter; `None` beyond a bound. Register first, then read the receipt again.
    pub(crate) fn register(self: &Arc<Self>, identity: &Identity) -> Option<Waiter> {
        let mut guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = &mut *guard;
        let caller = (identity.workspace.clone(), identity.principal.clone());
        let of_principal = inner.principals.get(&caller).copied().unwrap_or(0);
        let of_receipt = inner.receipts.get(identity).map_or(0, |(_, count)| *count);
        if inner.total >= self.limits.waiters_max
            || of_principal >= self.limits.waiters_per_principal_max
            || of_receipt >= self.limits.waiters_per_receipt_max
        {
            return None;
        }
        inner.total += 1;
        *inner.principals.entry(caller).or_default() += 1;
        let (notify, count) = inner.receipts.entry(identity.clone()).or_default();
        *count += 1;
        Some(Waiter {
            waiters: Arc::clone(self),
            identity: identity.clone(),
            notify: Arc::clone(notify),
        })
    }

    /// Wakes everyone who waits for this receipt: on its result, and on its release.
    pub(crate) fn wake(&self, identity: &Identity) {
        let guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((notify, _)) = guard.receipts.get(identity) {
            notify.notify_waiters();
        }
    }
}

/// A registered waiter; gone when dropped.
pub(crate) struct Waiter {
    waiters: Arc<Waiters>,
    identity: Identity,
    notify: Arc<Notify>,
}

impl Waiter {
    /// Completes at the next wake. Enable it before reading the receipt, or a wake is missed.
    pub(crate) fn woken(&self) -> Notified<'_> {
        self.notify.notified()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut guard = self
            .waiters
            .inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let inner = &mut *guard;
        inner.total = inner.total.saturating_sub(1);
        let caller = (
            self.identity.workspace.clone(),
            self.identity.principal.clone(),
        );
        if let Some(count) = inner.principals.get_mut(&caller) {
            *count -= 1;
            if *count == 0 {
                inner.principals.remove(&caller);
            }
        }
        if let Some((_, count)) = inner.receipts.get_mut(&self.identity) {
            *count -= 1;
            if *count == 0 {
                inner.receipts.remove(&self.identity);
            }
        }
    }
}
