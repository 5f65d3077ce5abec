use std::time::Duration;

use crate::Timestamp;

/// How long a finished receipt is good for. Both windows count from the end of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Retention {
    /// How long the stored result is replayed. Default 48 h.
    pub replay_for: Duration,
    /// How long the key is refused after it ended. Zero: after `replay_for` it is a new action.
    /// Otherwise not shorter than `replay_for`. Default 30 days.
    pub tombstone_for: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            replay_for: Duration::from_secs(48 * 3600),
            tombstone_for: Duration::from_secs(30 * 24 * 3600),
        }
    }
}

/// Where a receipt stands in its windows: a function of row and clock, never of "was swept".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Unresolved, or inside the replay window.
    Live,
    /// The replay window is over; the key is refused.
    Tombstone,
    /// Both are over: as if there were no receipt.
    Gone,
}

impl Retention {
    /// The phase of a receipt that finished at `finished_at` (`None`: it has not, and so never ages).
    #[must_use]
    pub fn phase(&self, finished_at: Option<Timestamp>, now: Timestamp) -> Phase {
        let Some(finished_at) = finished_at else {
            return Phase::Live;
        };
        if now < finished_at.plus(self.replay_for) {
            Phase::Live
        } else if now < finished_at.plus(self.tombstone_for) {
            Phase::Tombstone
        } else {
            Phase::Gone
        }
    }
}
