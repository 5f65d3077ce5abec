//! Writes what is known of deliveries, behind the calls.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use counterfoil_store::{Error, transact};
use tokio::sync::{MutexGuard, Notify};

use super::{Inner, table};

/// How long what is known may wait for company before it is written.
const PAUSE: Duration = Duration::from_millis(200);
/// The pause after a write that failed.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);

/// Wakes the writer.
#[derive(Debug, Default)]
pub(super) struct Wake {
    dirty: Notify,
    urgent: Notify,
}

impl Wake {
    /// There is something to write.
    pub(super) fn soon(&self) {
        self.dirty.notify_one();
    }

    /// There is something to write that another process should see now.
    pub(super) fn at_once(&self) {
        self.urgent.notify_one();
        self.dirty.notify_one();
    }
}

/// Writes until the deliveries are dropped.
pub(super) async fn run(inner: Weak<Inner>, wake: Arc<Wake>) {
    loop {
        wake.dirty.notified().await;
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = wake.urgent.notified() => {}
        }
        let Some(inner) = inner.upgrade() else {
            return;
        };
        if let Err(error) = inner.flush().await {
            tracing::warn!(%error, "what is known of deliveries was not written; it is tried again");
            drop(inner);
            tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            wake.soon();
        }
    }
}

impl Inner {
    /// Writes everything that is known and not written yet, in bounded transactions.
    pub(super) async fn flush(&self) -> Result<(), Error> {
        let one_at_a_time = self.writing.lock().await;
        self.write_all(&one_at_a_time).await
    }

    /// The same, for whoever has the turn to write.
    pub(super) async fn write_all(&self, _turn: &MutexGuard<'_, ()>) -> Result<(), Error> {
        loop {
            let batch = Arc::new(self.remember(super::Memory::batch));
            if batch.is_empty() {
                return Ok(());
            }
            let rows = Arc::clone(&batch);
            transact(self.engine.store().as_ref(), None, move |tx| {
                let rows = Arc::clone(&rows);
                Box::pin(async move {
                    for row in rows.iter() {
                        table::write(tx, &row.known, row.first).await?;
                    }
                    Ok(())
                })
            })
            .await?;
            self.remember(|memory| memory.written(&batch));
        }
    }
}
