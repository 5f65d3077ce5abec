use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use counterfoil_core::Timestamp;

/// A reading that took longer than this says too little about the present, unless there is none
/// better.
const PRECISE: Duration = Duration::from_millis(50);
/// After this time any reading is better than the old one.
const STALE: Duration = Duration::from_secs(10);

/// The database's clock, as far as this process can tell between two readings: the latest one and
/// the monotonic time since. The wall clock of this machine has no part in it.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    reading: Mutex<Option<(Timestamp, Instant)>>,
}

impl Clock {
    /// Takes note of what the database said between `sent` and now.
    pub(crate) fn read(&self, said: Timestamp, sent: Instant) {
        let now = Instant::now();
        let took = now.duration_since(sent);
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let keep = reading.is_some_and(|(_, at)| took > PRECISE && now - at < STALE);
        if !keep {
            *reading = Some((said, sent + took / 2));
        }
    }

    /// The present; `None` before the first reading.
    pub(crate) fn now(&self) -> Option<Timestamp> {
        let reading = *self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        reading.map(|(said, at)| said.plus(at.elapsed()))
    }
}
