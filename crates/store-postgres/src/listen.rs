//! Who waits for operations that run on other nodes.
//!
//! A node that waits says so (`counterfoil_wait`), so that the node that completes the operation
//! knows whether anybody wants to be told: NOTIFY makes the commits that carry one queue up, and
//! most completions interest nobody. All of it is a hint; waiters poll as well.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use counterfoil_core::OperationId;
use tokio::sync::{Notify, mpsc};
use tokio_postgres::types::Type;

use crate::{connect::Text, error::Done, shared::Shared};

/// Said by a node that waits, with the operation's handle.
const WAIT: &str = "counterfoil_wait";
/// Said by the node that changed it.
const CHANGED: &str = "counterfoil_changed";
/// How long another node's interest is remembered: longer than any wait.
const WANTED_FOR: Duration = Duration::from_secs(120);
/// How many operations other nodes may wait for, as far as this node remembers.
const WANTED_MAX: usize = 16_384;
/// Waits that are to be announced; beyond it their callers poll.
const ANNOUNCED_MAX: usize = 1024;
const PAUSE: Duration = Duration::from_secs(1);

static ANNOUNCE: Text = Text {
    sql: "SELECT pg_notify('counterfoil_wait', t.id) FROM unnest($1) AS t(id)",
    types: &[Type::TEXT_ARRAY],
};

/// The waits of this node, and those of others that this node has heard of.
pub(crate) struct Watchers {
    here: Mutex<HashMap<OperationId, (Arc<Notify>, usize)>>,
    elsewhere: Mutex<HashMap<OperationId, Instant>>,
    announce: mpsc::Sender<OperationId>,
}

/// What is to be announced.
pub(crate) type Announcements = mpsc::Receiver<OperationId>;

impl Watchers {
    pub(crate) fn new() -> (Self, Announcements) {
        let (announce, announcements) = mpsc::channel(ANNOUNCED_MAX);
        let watchers = Self {
            here: Mutex::default(),
            elsewhere: Mutex::default(),
            announce,
        };
        (watchers, announcements)
    }

    /// Completes when another node says that the operation has changed.
    pub(crate) async fn changed(&self, operation_id: OperationId) {
        let watch = self.watch(operation_id);
        let notify = Arc::clone(&watch.notify);
        let woken = notify.notified();
        tokio::pin!(woken);
        woken.as_mut().enable();
        if watch.first {
            let _ = self.announce.try_send(operation_id);
        }
        woken.await;
    }

    fn watch(&self, operation_id: OperationId) -> Watch<'_> {
        let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        let (notify, count) = here.entry(operation_id).or_default();
        *count += 1;
        Watch {
            watchers: self,
            operation_id,
            notify: Arc::clone(notify),
            first: *count == 1,
        }
    }

    /// The operation's handle, if another node waits for it.
    pub(crate) fn wanted(&self, operation_id: OperationId) -> Option<String> {
        let mut elsewhere = self
            .elsewhere
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let heard = elsewhere.remove(&operation_id)?;
        (heard.elapsed() < WANTED_FOR).then(|| operation_id.to_string())
    }

    fn heard(&self, channel: &str, payload: &str) {
        let Ok(operation_id) = payload.parse::<OperationId>() else {
            return;
        };
        match channel {
            WAIT => {
                let mut elsewhere = self
                    .elsewhere
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                if elsewhere.len() >= WANTED_MAX {
                    elsewhere.retain(|_, heard| heard.elapsed() < WANTED_FOR);
                }
                if elsewhere.len() < WANTED_MAX {
                    elsewhere.insert(operation_id, Instant::now());
                }
            }
            CHANGED => self.wake(operation_id),
            _ => {}
        }
    }

    fn wake(&self, operation_id: OperationId) {
        let here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((notify, _)) = here.get(&operation_id) {
            notify.notify_waiters();
        }
    }

    /// While nobody listened, anything may have been said.
    fn wake_all(&self) {
        let here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        for (notify, _) in here.values() {
            notify.notify_waiters();
        }
    }
}

struct Watch<'a> {
    watchers: &'a Watchers,
    operation_id: OperationId,
    notify: Arc<Notify>,
    first: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut here = self
            .watchers
            .here
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((_, count)) = here.get_mut(&self.operation_id) {
            *count -= 1;
            if *count == 0 {
                here.remove(&self.operation_id);
            }
        }
    }
}

/// Listens and announces on a connection of its own, until the task is ended.
pub(crate) async fn run(shared: Arc<Shared>, mut announcements: Announcements) {
    loop {
        if let Err(fault) = listen(&shared, &mut announcements).await {
            tracing::debug!(error = %counterfoil_store::Error::from(fault), "nobody listens; waiters poll");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn listen(shared: &Shared, announcements: &mut Announcements) -> Done<()> {
    let (session, mut notes) = shared.connector.connect().await?;
    session
        .run(&format!("LISTEN {WAIT}; LISTEN {CHANGED}"))
        .await?;
    shared.watchers.wake_all();
    loop {
        tokio::select! {
            note = notes.recv() => match note {
                Some((channel, payload)) => shared.watchers.heard(&channel, &payload),
                None => return Ok(()),
            },
            Some(first) = announcements.recv() => {
                let mut ids = vec![first.to_string()];
                while let Ok(more) = announcements.try_recv() {
                    ids.push(more.to_string());
                }
                session.tell(&ANNOUNCE, &[&ids]).await.map(drop)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_wakes_who_waits_and_interest_is_used_up() {
        let (watchers, mut announcements) = Watchers::new();
        let id = OperationId::from_bytes([7; 16]);
        assert_eq!(watchers.wanted(id), None);
        watchers.heard(WAIT, &id.to_string());
        assert_eq!(watchers.wanted(id), Some(id.to_string()));
        assert_eq!(watchers.wanted(id), None);
        let waiting = watchers.changed(id);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        assert_eq!(announcements.recv().await, Some(id));
        watchers.heard(CHANGED, &id.to_string());
        waiting.await;
    }
}
