use std::time::Duration;

use crate::load::Until;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Rounds of each figure; its median counts.
    pub(crate) rounds: usize,
    /// How long a round is.
    pub(crate) round: Duration,
    /// What of a round is not counted, before it.
    pub(crate) warm_up: Duration,
    /// Receipts of the small database.
    pub(crate) small: u64,
    /// Receipts of the large one.
    pub(crate) large: u64,
    /// Calls of one round of the growth figures.
    pub(crate) growth_calls: u64,
    /// Starts of the release binary.
    pub(crate) starts: usize,
}

impl Scale {
    /// What the targets are about.
    pub(crate) const fn full() -> Self {
        Self {
            rounds: 3,
            round: Duration::from_secs(3),
            warm_up: Duration::from_millis(300),
            small: 100_000,
            large: 1_000_000,
            growth_calls: 20_000,
            starts: 10,
        }
    }

    /// To see that everything works.
    pub(crate) const fn quick() -> Self {
        Self {
            rounds: 3,
            round: Duration::from_secs(1),
            warm_up: Duration::from_millis(200),
            small: 10_000,
            large: 100_000,
            growth_calls: 5_000,
            starts: 3,
        }
    }

    /// One round.
    pub(crate) const fn until(&self) -> Until {
        Until::Elapsed {
            warm_up: self.warm_up,
            measured: self.round,
        }
    }
}
