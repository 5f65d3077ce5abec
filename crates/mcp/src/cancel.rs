use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::oneshot;

/// A wait's number, and how to stop it.
type Open = (u64, oneshot::Sender<()>);

/// The waits that a client can stop. Stopping a wait stops no work.
pub(crate) struct Waits<K> {
    open: Mutex<HashMap<K, Vec<Open>>>,
    next: AtomicU64,
}

impl<K: Eq + Hash + Clone> Waits<K> {
    pub(crate) fn new() -> Self {
        Self {
            open: Mutex::new(HashMap::new()),
            next: AtomicU64::new(0),
        }
    }

    /// Opens a wait under `key`; several may share one. It is over when the handle is dropped.
    pub(crate) fn open(self: &Arc<Self>, key: K) -> (Wait<K>, oneshot::Receiver<()>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (stop, stopped) = oneshot::channel();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.entry(key.clone()).or_default().push((number, stop));
        let wait = Wait {
            waits: Arc::clone(self),
            key,
            number,
        };
        (wait, stopped)
    }

    /// Stops every wait under `key`.
    pub(crate) fn stop(&self, key: &K) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, stop) in open.remove(key).into_iter().flatten() {
            let _ = stop.send(());
        }
    }
}

/// An open wait.
pub(crate) struct Wait<K: Eq + Hash + Clone> {
    waits: Arc<Waits<K>>,
    key: K,
    number: u64,
}

impl<K: Eq + Hash + Clone> Drop for Wait<K> {
    fn drop(&mut self) {
        let mut open = self
            .waits
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(waits) = open.get_mut(&self.key) {
            waits.retain(|(number, _)| *number != self.number);
            if waits.is_empty() {
                open.remove(&self.key);
            }
        }
    }
}
