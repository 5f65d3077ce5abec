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

#[cfg(test)]
mod tests {
    use super::*;

    const END: Timestamp = Timestamp::from_millis(1_000_000);

    fn phase(replay_ms: u64, tombstone_ms: u64, after_ms: i64) -> Phase {
        let retention = Retention {
            replay_for: Duration::from_millis(replay_ms),
            tombstone_for: Duration::from_millis(tombstone_ms),
        };
        let now = Timestamp::from_millis(END.as_millis() + after_ms);
        retention.phase(Some(END), now)
    }

    #[test]
    fn windows_end_at_their_instant() {
        for (after, wanted) in [
            (0, Phase::Live),
            (99, Phase::Live),
            (100, Phase::Tombstone),
            (299, Phase::Tombstone),
            (300, Phase::Gone),
            (i64::MAX / 2, Phase::Gone),
        ] {
            assert_eq!(phase(100, 300, after), wanted, "{after} ms after the end");
        }
    }

    #[test]
    fn a_clock_set_back_ages_nothing() {
        assert_eq!(phase(100, 300, -1), Phase::Live);
        assert_eq!(phase(100, 300, -999_999_999), Phase::Live);
    }

    #[test]
    fn without_a_tombstone_the_key_is_new_after_the_window() {
        assert_eq!(phase(100, 0, 99), Phase::Live);
        assert_eq!(phase(100, 0, 100), Phase::Gone);
        assert_eq!(phase(0, 0, 0), Phase::Gone);
    }

    #[test]
    fn nothing_to_replay_is_a_tombstone_at_once() {
        assert_eq!(phase(0, 300, 0), Phase::Tombstone);
        assert_eq!(phase(100, 100, 100), Phase::Gone);
    }

    #[test]
    fn i6_what_has_not_finished_never_ages() {
        let far = Timestamp::from_millis(i64::MAX);
        assert_eq!(Retention::default().phase(None, far), Phase::Live);
    }

    #[test]
    fn windows_beyond_the_clock_never_end() {
        let retention = Retention {
            replay_for: Duration::MAX,
            tombstone_for: Duration::MAX,
        };
        let now = Timestamp::from_millis(i64::MAX - 1);
        assert_eq!(retention.phase(Some(END), now), Phase::Live);
    }
}
