use std::time::Duration;

use counterfoil_core::Timestamp;
use counterfoil_store::{Error, SweepPlan};

use crate::{Engine, Monotonic, clock::DRIFT_MAX};

/// Two sweeps that agree on an expiry are at least this far apart, by the monotonic clock.
const SWEEPS_APART: Duration = Duration::from_secs(3600);
/// How often lapsed leases are looked for.
const LAPSE_EVERY: Duration = Duration::from_secs(1);
/// Rows a step looks at.
const STEP_ROWS: u32 = 500;
/// Steps of one sweep: a bound of 10 million rows.
const STEPS_MAX: u32 = 20_000;
/// Under which name the clock readings of the last sweep are kept in the store.
const NOTE: &str = "sweep_clock";
/// Under which name the latest clock readings of any process are kept in the store.
const CLOCK_NOTE: &str = "clock";

/// The clock is not where the store last saw it. Windows judged by it would end too early, or
/// receipts written by it would be over at once when it is set right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the clock stands {} s {} where this store last saw it",
    by.as_secs(),
    if *ahead { "ahead of" } else { "behind" }
)]
pub struct ClockMoved {
    /// By how much, in whole seconds.
    pub by: Duration,
    /// Forward, or back.
    pub ahead: bool,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Lapsed leases and abandoned questions recorded as what they are.
    pub lapsed: u64,
    /// Stored results deleted.
    pub results: u64,
    /// Receipts deleted.
    pub receipts: u64,
    /// The time up to which the windows were judged; `None`: nothing may be purged yet, because no
    /// sweep at least an hour ago agrees with the clock.
    pub horizon: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    wall: Timestamp,
    monotonic: Monotonic,
}

/// What a sweep may purge, and the reading the next one compares with.
fn horizon(earlier: Option<Reading>, now: Reading) -> (Option<Timestamp>, Reading) {
    let Some(earlier) = earlier else {
        return (None, now);
    };
    let elapsed = now.monotonic.millis.checked_sub(earlier.monotonic.millis);
    let Some(elapsed) = elapsed.filter(|_| now.monotonic.boot == earlier.monotonic.boot) else {
        return (None, now);
    };
    let elapsed = Duration::from_millis(elapsed);
    let by_wall = now
        .wall
        .as_millis()
        .saturating_sub(earlier.wall.as_millis());
    let by_monotonic = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
    if by_wall.abs_diff(by_monotonic) > u64::try_from(DRIFT_MAX.as_millis()).unwrap_or(u64::MAX) {
        return (None, now);
    }
    if elapsed < SWEEPS_APART {
        return (None, earlier);
    }
    (Some(earlier.wall.min(now.wall)), now)
}

/// Whether a clock may be believed, by an earlier reading. Time that passed while the machine was
/// off cannot be told from a jump forward; a jump back can.
fn compare(earlier: Reading, now: Reading) -> Result<(), ClockMoved> {
    let by_wall = now
        .wall
        .as_millis()
        .saturating_sub(earlier.wall.as_millis());
    let elapsed = now.monotonic.millis.checked_sub(earlier.monotonic.millis);
    let moved = match elapsed.filter(|_| now.monotonic.boot == earlier.monotonic.boot) {
        Some(elapsed) => by_wall.saturating_sub(i64::try_from(elapsed).unwrap_or(i64::MAX)),
        None => by_wall.min(0),
    };
    let by = Duration::from_millis(moved.unsigned_abs());
    if by <= DRIFT_MAX {
        return Ok(());
    }
    Err(ClockMoved {
        by: Duration::from_secs(by.as_secs()),
        ahead: moved > 0,
    })
}

impl Reading {
    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32);
        bytes.extend_from_slice(&self.wall.as_millis().to_be_bytes());
        bytes.extend_from_slice(&self.monotonic.boot);
        bytes.extend_from_slice(&self.monotonic.millis.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (wall, rest) = bytes.split_at_checked(8)?;
        let (boot, millis) = rest.split_at_checked(16)?;
        Some(Self {
            wall: Timestamp::from_millis(i64::from_be_bytes(wall.try_into().ok()?)),
            monotonic: Monotonic {
                boot: boot.try_into().ok()?,
                millis: u64::from_be_bytes(millis.try_into().ok()?),
            },
        })
    }
}

impl Engine {
    fn reading(&self) -> Reading {
        Reading {
            wall: self.now(),
            monotonic: self.inner.clock.monotonic(),
        }
    }

    /// Compares the clock with what the processes before this one left in the store, and leaves
    /// its own reading. Do it at the start of a process, before any call: two processes that
    /// disagree about the time by more than five minutes must not share a store.
    ///
    /// # Errors
    /// The inner error is [`ClockMoved`]: set the clock right, or accept it with `accept`. The
    /// outer one is the store's.
    pub async fn check_clock(&self, accept: bool) -> Result<Result<(), ClockMoved>, Error> {
        let now = self.reading();
        let earlier = self.inner.store.note(CLOCK_NOTE).await?;
        let compared = earlier
            .as_deref()
            .and_then(Reading::from_bytes)
            .map_or(Ok(()), |earlier| compare(earlier, now));
        if compared.is_ok() || accept {
            self.inner
                .store
                .set_note(CLOCK_NOTE, now.to_bytes())
                .await?;
            return Ok(Ok(()));
        }
        Ok(compared)
    }

    /// One sweep: records what has lapsed, and deletes what two sweeps at least an hour apart
    /// found past its time. Whether a receipt is expired is never decided here; a sweep only
    /// frees the space of what is.
    ///
    /// # Errors
    /// What the store says. A sweep may simply be repeated.
    pub async fn sweep(&self) -> Result<SweepReport, Error> {
        let store = &self.inner.store;
        let mut report = SweepReport::default();
        for _ in 0..STEPS_MAX {
            let lapsed = store.lapse(self.now(), STEP_ROWS).await?;
            report.lapsed += u64::from(lapsed);
            if lapsed < STEP_ROWS {
                break;
            }
        }
        let now = self.reading();
        let earlier = store.note(NOTE).await?;
        let (agreed, compare_with) = horizon(earlier.as_deref().and_then(Reading::from_bytes), now);
        report.horizon = agreed;
        if let Some(horizon) = agreed {
            let mut after = 0;
            for _ in 0..STEPS_MAX {
                let plan = SweepPlan {
                    horizon,
                    limit: STEP_ROWS,
                    after,
                };
                let swept = store.sweep(plan).await?;
                report.results += swept.results;
                report.receipts += swept.receipts;
                match swept.next {
                    Some(next) => after = next,
                    None => break,
                }
            }
        }
        store.set_note(NOTE, compare_with.to_bytes()).await?;
        store.set_note(CLOCK_NOTE, now.to_bytes()).await?;
        Ok(report)
    }

    /// The background work of a process: records lapsed leases as they lapse and sweeps hourly.
    /// Never returns; run it on a task of its own.
    pub async fn maintain(&self) {
        // Side by side: a long sweep holds no lapsed lease up.
        let lapsing = async {
            let mut every = interval(LAPSE_EVERY);
            loop {
                every.tick().await;
                told(self.inner.store.lapse(self.now(), STEP_ROWS).await);
            }
        };
        let sweeping = async {
            let mut every = interval(SWEEPS_APART + Duration::from_secs(1));
            loop {
                every.tick().await;
                if let Some(report) = told(self.sweep().await) {
                    tracing::debug!(?report, "swept");
                }
            }
        };
        tokio::join!(lapsing, sweeping);
    }
}

fn interval(every: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval
}

fn told<T>(done: Result<T, Error>) -> Option<T> {
    done.map_err(|error| tracing::warn!(%error, "background work failed; it is tried again"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(wall_s: i64, monotonic_s: u64, boot: u8) -> Reading {
        Reading {
            wall: Timestamp::from_millis(wall_s * 1000),
            monotonic: Monotonic {
                boot: [boot; 16],
                millis: monotonic_s * 1000,
            },
        }
    }

    #[test]
    fn a_purge_needs_two_sweeps_an_hour_apart() {
        let first = reading(1_000_000, 50, 1);
        assert_eq!(horizon(None, first), (None, first));
        let soon = reading(1_000_000 + 3599, 50 + 3599, 1);
        assert_eq!(horizon(Some(first), soon), (None, first));
        let later = reading(1_000_000 + 3600, 50 + 3600, 1);
        assert_eq!(horizon(Some(first), later), (Some(first.wall), later));
    }

    #[test]
    fn an_unexplained_jump_of_the_clock_stops_purging() {
        let first = reading(1_000_000, 50, 1);
        let jumped = reading(1_000_000 + 30 * 86_400, 50 + 4000, 1);
        assert_eq!(horizon(Some(first), jumped), (None, jumped));
        let back = reading(1_000_000 - 30 * 86_400, 50 + 4000, 1);
        assert_eq!(horizon(Some(first), back), (None, back));
        let rebooted = reading(1_000_000 + 4000, 50 + 4000, 2);
        assert_eq!(horizon(Some(first), rebooted), (None, rebooted));
    }

    #[test]
    fn a_moved_clock_is_told_and_a_machine_that_was_off_is_not() {
        let month = 30 * 86_400;
        let first = reading(1_000_000, 50, 1);
        assert_eq!(compare(first, reading(1_000_000 + 200, 250, 1)), Ok(()));
        assert_eq!(
            compare(first, reading(1_000_000 + month, 250, 1)).map_err(|m| m.ahead),
            Err(true)
        );
        assert_eq!(
            compare(first, reading(1_000_000 - month, 250, 1)).map_err(|m| m.ahead),
            Err(false)
        );
        assert_eq!(
            compare(first, reading(1_000_000 + month, 5, 2)),
            Ok(()),
            "it was off"
        );
        assert_eq!(
            compare(first, reading(1_000_000 - month, 5, 2)).map_err(|m| m.ahead),
            Err(false)
        );
    }

    #[test]
    fn readings_survive_storage() {
        let reading = reading(1_000_000, 50, 7);
        assert_eq!(Reading::from_bytes(&reading.to_bytes()), Some(reading));
        assert_eq!(Reading::from_bytes(&[1, 2, 3]), None);
    }
}
