//! Whether the latest writes worked: what the store says of itself while the disk is full.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use counterfoil_store::Error;

/// How often a write is tried while none works, at the most.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// How the latest write ended.
#[derive(Debug, Default)]
pub(crate) struct Writing {
    fails: AtomicBool,
    why: Mutex<Option<Why>>,
}

#[derive(Debug)]
struct Why {
    error: Error,
    tried: Instant,
}

impl Writing {
    /// A transaction was committed.
    pub(crate) fn works(&self) {
        // A plain load, so that a store that works shares nothing between its threads here.
        if self.fails.load(Ordering::Acquire) {
            self.fails.store(false, Ordering::Release);
            tracing::info!("the receipt store writes again");
        }
    }

    /// The database took nothing. What one caller's own statement was refused for is no reason.
    pub(crate) fn fails(&self, error: &Error) {
        match error {
            Error::Unavailable(_) | Error::Corrupt(_) | Error::CommitUnknown => {}
            Error::Busy { .. }
            | Error::Fenced(_)
            | Error::NotFound
            | Error::Handler(_)
            | Error::Statement(_)
            | Error::RolledBack
            | Error::Quota { .. } => return,
        }
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(Why {
            error: error.clone(),
            tried: Instant::now(),
        });
        self.fails.store(true, Ordering::Release);
    }

    /// `Err` while nothing can be written; `Ok(true)` if it is time to try.
    ///
    /// # Errors
    /// What the latest write failed with.
    pub(crate) fn look(&self) -> Result<bool, Error> {
        if !self.fails.load(Ordering::Acquire) {
            return Ok(false);
        }
        let mut why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        match why.as_mut() {
            Some(why) if why.tried.elapsed() < TRY_EVERY => Err(why.error.clone()),
            Some(why) => {
                why.tried = Instant::now();
                Ok(true)
            }
            None => Ok(true),
        }
    }
}
