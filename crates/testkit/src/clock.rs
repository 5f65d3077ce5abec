use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use counterfoil_core::Timestamp;
use counterfoil_engine::{Clock, Monotonic};
use tokio::time::Instant;

/// A clock that a test moves. The monotonic reading only advances; the wall clock advances with
/// it, and can be made to jump both ways.
///
/// With [`VirtualClock::following_tokio`] both advance with tokio's time besides, which is what a
/// paused runtime needs.
#[derive(Debug)]
pub struct VirtualClock {
    start: Timestamp,
    advanced_ms: AtomicU64,
    jumped_ms: AtomicI64,
    jumps: AtomicU64,
    boots: AtomicU64,
    began: Option<Instant>,
}

impl VirtualClock {
    /// A clock that stands until it is moved.
    #[must_use]
    pub const fn new(start: Timestamp) -> Self {
        Self {
            start,
            advanced_ms: AtomicU64::new(0),
            jumped_ms: AtomicI64::new(0),
            jumps: AtomicU64::new(0),
            boots: AtomicU64::new(0),
            began: None,
        }
    }

    /// A clock that also advances with tokio's time from now on. Needs a tokio runtime.
    #[must_use]
    pub fn following_tokio(start: Timestamp) -> Self {
        Self {
            began: Some(Instant::now()),
            ..Self::new(start)
        }
    }

    /// Both clocks advance.
    pub fn advance(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.advanced_ms.fetch_add(millis, Ordering::SeqCst);
    }

    /// The wall clock jumps, forwards or (negative) backwards.
    pub fn jump_ms(&self, millis: i64) {
        self.jumped_ms.fetch_add(millis, Ordering::SeqCst);
        self.jumps.fetch_add(1, Ordering::SeqCst);
    }

    /// The machine is started anew: monotonic readings from before do not compare.
    pub fn reboot(&self) {
        self.boots.fetch_add(1, Ordering::SeqCst);
    }

    /// How often the wall clock jumped.
    #[must_use]
    pub fn jumps(&self) -> u64 {
        self.jumps.load(Ordering::SeqCst)
    }

    /// How far the wall clock has jumped in all, in milliseconds.
    #[must_use]
    pub fn jumped(&self) -> i64 {
        self.jumped_ms.load(Ordering::SeqCst)
    }

    fn elapsed_ms(&self) -> u64 {
        let followed = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        let followed = u64::try_from(followed.as_millis()).unwrap_or(u64::MAX);
        followed.saturating_add(self.advanced_ms.load(Ordering::SeqCst))
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        let elapsed = i64::try_from(self.elapsed_ms()).unwrap_or(i64::MAX);
        let millis = self.start.as_millis().saturating_add(elapsed);
        Timestamp::from_millis(millis.saturating_add(self.jumped()))
    }

    fn monotonic(&self) -> Monotonic {
        let mut boot = [0; 16];
        boot[..8].copy_from_slice(&self.boots.load(Ordering::SeqCst).to_be_bytes());
        Monotonic {
            boot,
            millis: self.elapsed_ms(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_jumps_and_the_monotonic_one_does_not() {
        let start = Timestamp::from_millis(1_000_000);
        let clock = VirtualClock::new(start);
        clock.advance(Duration::from_secs(5));
        assert_eq!(clock.now(), start.plus(Duration::from_secs(5)));
        assert_eq!(clock.monotonic().millis, 5000);
        clock.jump_ms(-6000);
        assert_eq!(clock.now().as_millis(), 999_000);
        assert_eq!(clock.monotonic().millis, 5000);
        let before = clock.monotonic().boot;
        clock.reboot();
        assert_ne!(clock.monotonic().boot, before);
    }

    #[tokio::test(start_paused = true)]
    async fn it_follows_a_paused_runtime() {
        let start = Timestamp::from_millis(0);
        let clock = VirtualClock::following_tokio(start);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(clock.now(), start.plus(Duration::from_secs(3)));
        assert_eq!(clock.monotonic().millis, 3000);
    }
}
