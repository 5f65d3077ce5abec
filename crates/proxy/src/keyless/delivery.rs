//! The handing out of one answer.

use std::sync::{Arc, Mutex, PoisonError};

use counterfoil_core::Timestamp;
use tokio::sync::OwnedMutexGuard;

use super::{Deliveries, Inner, judge::Handing, memory::Entry};

/// What becomes of the answer of one call. Dropped (the last clone of it) before anything was said
/// of it, it leaves nothing behind; after [`Delivery::started`] alone, the delivery counts as
/// unproven.
#[derive(Clone)]
pub(crate) struct Delivery {
    handle: Arc<Handle>,
}

struct Handle {
    part: Mutex<Part>,
    inner: Arc<Inner>,
}

enum Part {
    /// There is no answer (the call asks), or nothing of it is to be kept.
    Nothing,
    /// Its key is not reserved yet; identical calls wait.
    Prepared(Box<Entry>, OwnedMutexGuard<()>),
    /// It is in the memory under this number; a copy in case it is let go of there.
    Registered(u64, Box<Entry>),
}

/// What is said of it.
#[derive(Clone, Copy)]
enum Saying {
    Started,
    /// Something was written to the client.
    Written,
    /// The client does not wait any more.
    Stopped,
}

impl Delivery {
    pub(super) fn nothing(deliveries: &Deliveries) -> Self {
        Self::of(deliveries, Part::Nothing)
    }

    pub(super) fn prepared(
        deliveries: &Deliveries,
        entry: Entry,
        turn: OwnedMutexGuard<()>,
    ) -> Self {
        Self::of(deliveries, Part::Prepared(Box::new(entry), turn))
    }

    pub(super) fn registered(deliveries: &Deliveries, entry: Entry) -> Self {
        let number = deliveries
            .inner
            .remember(|memory| memory.add(entry.clone()));
        Self::of(deliveries, Part::Registered(number, Box::new(entry)))
    }

    fn of(deliveries: &Deliveries, part: Part) -> Self {
        Self {
            handle: Arc::new(Handle {
                part: Mutex::new(part),
                inner: Arc::clone(&deliveries.inner),
            }),
        }
    }

    /// Its reservation is durable and it runs now.
    pub(crate) fn started(&self) {
        self.handle.say(Saying::Started, |entry| entry.ran = true);
    }

    /// Its answer is flushed to the client. Only for the answer of the operation itself; for a
    /// notice that there is none yet, [`Delivery::told`].
    pub(crate) fn handed(&self, now: Timestamp) {
        self.handle.say(Saying::Written, |entry| {
            entry.known.handing = match entry.known.handing {
                Handing::Open | Handing::Told { .. } => Handing::Presumed { at: now },
                // It was cancelled and written all the same.
                Handing::Undelivered { .. } => Handing::Doubted { at: now },
                known @ (Handing::Presumed { .. }
                | Handing::Confirmed { .. }
                | Handing::Doubted { .. }) => known,
            };
        });
    }

    /// What was flushed to the client is that there is no answer yet: in progress, or unknown.
    pub(crate) fn told(&self, now: Timestamp) {
        self.handle.say(Saying::Written, |entry| {
            entry.known.handing = match entry.known.handing {
                Handing::Open | Handing::Told { .. } => Handing::Told { at: now },
                known @ (Handing::Undelivered { .. }
                | Handing::Presumed { .. }
                | Handing::Confirmed { .. }
                | Handing::Doubted { .. }) => known,
            };
        });
    }

    /// The client cancelled, or its connection ended, before the answer was written. After it was
    /// written this proves nothing any more and only casts doubt.
    pub(crate) fn undelivered(&self, now: Timestamp) {
        self.handle.say(Saying::Stopped, |entry| {
            entry.known.handing = match entry.known.handing {
                Handing::Open | Handing::Told { .. } => Handing::Undelivered { since: now },
                Handing::Presumed { .. } | Handing::Confirmed { .. } => {
                    Handing::Doubted { at: now }
                }
                known @ (Handing::Undelivered { .. } | Handing::Doubted { .. }) => known,
            };
        });
    }

    /// A cancel crossed the answer on its way: whether it was received is unproven for good.
    pub(crate) fn doubted(&self) {
        self.handle.say(Saying::Stopped, |entry| {
            let at = entry.known.handing.at().unwrap_or(entry.known.started_at);
            entry.known.handing = match entry.known.handing {
                Handing::Open | Handing::Presumed { .. } | Handing::Confirmed { .. } => {
                    Handing::Doubted { at }
                }
                known @ (Handing::Undelivered { .. }
                | Handing::Told { .. }
                | Handing::Doubted { .. }) => known,
            };
        });
    }

    /// Nothing was run or handed out under it (refused before the reservation, or a rival's call
    /// answered). The same as dropping it, for where it is shared.
    pub(crate) fn discard(&self) {
        self.handle.end(true);
    }
}

impl Handle {
    fn say(&self, what: Saying, change: impl FnOnce(&mut Entry)) {
        let mut part = self.part.lock().unwrap_or_else(PoisonError::into_inner);
        let patience = self.inner.windows.client_patience;
        let (number, copy, turn) = match (std::mem::replace(&mut *part, Part::Nothing), what) {
            (Part::Nothing, _) => return,
            (Part::Prepared(entry, turn), Saying::Started) => {
                let number = self.inner.remember(|memory| memory.add((*entry).clone()));
                (number, entry, Some(turn))
            }
            // It counts once the call has started.
            (Part::Prepared(mut entry, turn), Saying::Stopped) => {
                change(&mut entry);
                *part = Part::Prepared(entry, turn);
                return;
            }
            // What was written was no answer of a call that never started.
            (Part::Prepared(..), Saying::Written) => return,
            (Part::Registered(number, copy), _) => (number, copy, None),
        };
        let (entry, changed) = self.inner.remember(|memory| {
            memory.say(number, &copy, patience, |entry| {
                entry.recorded = true;
                change(entry);
            })
        });
        // Identical calls go on only now that this one can be seen.
        drop(turn);
        if changed {
            match entry.known.handing {
                // Another process should know, or this one after a crash.
                Handing::Undelivered { .. } | Handing::Told { .. } | Handing::Doubted { .. } => {
                    self.inner.wake.at_once();
                }
                Handing::Open | Handing::Presumed { .. } | Handing::Confirmed { .. } => {
                    self.inner.wake.soon();
                }
            }
        }
        *part = Part::Registered(number, Box::new(entry));
    }

    fn end(&self, worthless: bool) {
        let mut part = self.part.lock().unwrap_or_else(PoisonError::into_inner);
        if let Part::Registered(number, _) = std::mem::replace(&mut *part, Part::Nothing) {
            self.inner
                .remember(|memory| memory.release(number, worthless));
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end(false);
    }
}
