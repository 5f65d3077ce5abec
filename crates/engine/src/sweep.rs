use std::time::Duration;

use counterfoil_core::Timestamp;
use counterfoil_store::{Error, SweepPlan};

use crate::{
    Engine,
    readings::{ClockMoved, Reading, Readings, SWEEPS_APART},
};

/// How often lapsed leases are looked for.
const LAPSE_EVERY: Duration = Duration::from_secs(1);
/// Rows a step looks at.
const STEP_ROWS: u32 = 500;
/// Steps of one sweep: a bound of 10 million rows.
const STEPS_MAX: u32 = 20_000;
/// Under which name the clock readings that sweeps compare with are kept in the store.
const NOTE: &str = "sweep_clock";
/// Under which name the latest clock readings of the processes are kept in the store.
const CLOCK_NOTE: &str = "clock";
/// Under which name it is kept when the last whole sweep of any process began.
const SWEPT_NOTE: &str = "swept_at";

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Lapsed leases and abandoned questions recorded as what they are.
    pub lapsed: u64,
    /// Stored results deleted.
    pub results: u64,
    /// Receipts deleted.
    pub receipts: u64,
    /// The time up to which the windows were judged; `None`: nothing was looked at, because no
    /// sweep of this machine at least an hour ago agrees with the clock, or because another process
    /// has just swept.
    pub horizon: Option<Timestamp>,
}

impl Engine {
    fn reading(&self) -> Reading {
        Reading {
            wall: self.now(),
            monotonic: self.inner.clock.monotonic(),
        }
    }

    async fn readings(&self, name: &str) -> Result<Readings, Error> {
        let note = self.inner.store.note(name).await?;
        Ok(Readings::from_note(note.as_deref()))
    }

    /// Leaves a reading beside those of the other boots. A process that does so in the same moment
    /// may lose its own; it leaves another one with its next sweep.
    async fn leave(&self, name: &str, reading: Reading) -> Result<(), Error> {
        let mut readings = self.readings(name).await?;
        readings.put(reading);
        self.inner.store.set_note(name, readings.to_note()).await
    }

    /// Compares the clock with what the processes before this one left in the store, and leaves
    /// its own reading. Do it at the start of a process, before any call: two processes that
    /// disagree about the time by more than five minutes must not share a store.
    ///
    /// # Errors
    /// The inner error is [`ClockMoved`]: set the clock right, or accept it with `accept`, for all
    /// the processes that share the store. The outer one is the store's.
    pub async fn check_clock(&self, accept: bool) -> Result<Result<(), ClockMoved>, Error> {
        let now = self.reading();
        let compared = self.readings(CLOCK_NOTE).await?.check(now);
        if compared.is_ok() {
            self.leave(CLOCK_NOTE, now).await?;
        } else if accept {
            let only = Readings::only(now).to_note();
            self.inner.store.set_note(CLOCK_NOTE, only).await?;
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
        self.sweep_unless(false).await
    }

    /// A sweep that deletes nothing if it is `done` already.
    async fn sweep_unless(&self, done: bool) -> Result<SweepReport, Error> {
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
        if let Err(moved) = self.readings(CLOCK_NOTE).await?.check(now) {
            // Its reading stays away as well: it would hide the jump from the next start.
            tracing::error!(%moved, "nothing is purged by this clock: set it right, or accept it at a start");
            return Ok(report);
        }
        let (agreed, compare_with) = self.readings(NOTE).await?.horizon(now);
        report.horizon = agreed.filter(|_| !done);
        if let Some(horizon) = report.horizon {
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
            let began = now.wall.as_millis().to_be_bytes().to_vec();
            store.set_note(SWEPT_NOTE, began).await?;
        }
        self.leave(NOTE, compare_with).await?;
        self.leave(CLOCK_NOTE, now).await?;
        Ok(report)
    }

    /// Another process, or this one, began a whole sweep less than an hour ago.
    async fn is_swept(&self) -> Result<bool, Error> {
        let note = self.inner.store.note(SWEPT_NOTE).await?;
        let began = note.and_then(|note| note.try_into().ok());
        let Some(began) = began.map(i64::from_be_bytes).map(Timestamp::from_millis) else {
            return Ok(false);
        };
        let now = self.now();
        Ok(began <= now && now < began.plus(SWEEPS_APART))
    }

    /// The background work of a process: records lapsed leases as they lapse and sweeps hourly,
    /// in turn with the other processes that share the store. Never returns; run it on a task of
    /// its own.
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
                let Some(done) = told(self.is_swept().await) else {
                    continue;
                };
                if let Some(report) = told(self.sweep_unless(done).await) {
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
