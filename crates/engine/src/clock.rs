use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use counterfoil_core::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// A reading of a clock that no adjustment moves: milliseconds since `boot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Monotonic {
    /// Which start of the machine it counts from. Readings of different boots do not compare.
    pub boot: [u8; 16],
    /// Milliseconds since then, time asleep included.
    pub millis: u64,
}

/// Where the engine takes time from.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock.
    fn now(&self) -> Timestamp;
    /// The monotonic clock.
    fn monotonic(&self) -> Monotonic;
}

/// How far the wall clock may run from the monotonic one between two readings (adjustments by
/// time servers); beyond it the jump is unexplained.
pub(crate) const DRIFT_MAX: Duration = Duration::from_secs(300);

/// The machine's clocks. Small corrections of the wall clock are followed; one that jumps by more
/// than five minutes under a running process is not believed: time then advances by the monotonic
/// clock, and no lease and no receipt expires early.
#[derive(Debug)]
pub struct SystemClock {
    boot: [u8; 16],
    /// The wall clock when the monotonic one was zero, as last believed; milliseconds.
    wall_at_zero: AtomicI64,
}

impl SystemClock {
    /// Reads both clocks.
    #[must_use]
    pub fn new() -> Self {
        Self {
            boot: boot_id(),
            wall_at_zero: AtomicI64::new(wall_millis().saturating_sub(millis_since_boot())),
        }
    }

    /// The wall clock, or what the monotonic one makes of the last reading that was believed.
    fn believed(&self, wall: i64, since_boot: i64) -> i64 {
        let at_zero = wall.saturating_sub(since_boot);
        let before = self.wall_at_zero.load(Ordering::Relaxed);
        if u128::from(at_zero.abs_diff(before)) > DRIFT_MAX.as_millis() {
            return before.saturating_add(since_boot);
        }
        self.wall_at_zero.store(at_zero, Ordering::Relaxed);
        wall
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.believed(wall_millis(), millis_since_boot()))
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic {
            boot: self.boot,
            millis: u64::try_from(millis_since_boot()).unwrap_or(0),
        }
    }
}

fn wall_millis() -> i64 {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place that reads the wall clock"
    )]
    let wall = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(wall.as_millis()).unwrap_or(i64::MAX)
}

fn millis_since_boot() -> i64 {
    i64::try_from(since_boot().as_millis()).unwrap_or(i64::MAX)
}

#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// The kernel's id of this boot; where there is none, a value that no other process shares, so
/// that readings of two processes never compare.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut digits = text.bytes().filter_map(|b| char::from(b).to_digit(16));
    let mut id = [0; 16];
    for byte in &mut id {
        let (Some(high), Some(low)) = (digits.next(), digits.next()) else {
            return getrandom::fill(&mut id).map_or([0; 16], |()| id);
        };
        *byte = u8::try_from(high * 16 + low).unwrap_or(0);
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrections_are_followed_and_jumps_are_not_believed() {
        let clock = SystemClock {
            boot: [1; 16],
            wall_at_zero: AtomicI64::new(1_000_000_000),
        };
        assert_eq!(clock.believed(1_000_010_000, 10_000), 1_000_010_000);
        assert_eq!(
            clock.believed(1_000_220_000, 20_000),
            1_000_220_000,
            "200 s on"
        );
        let month = 30 * 86_400_000;
        assert_eq!(clock.believed(1_000_230_000 + month, 30_000), 1_000_230_000);
        assert_eq!(clock.believed(1_000_240_000 - month, 40_000), 1_000_240_000);
    }
}
