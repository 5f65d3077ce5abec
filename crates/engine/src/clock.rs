use std::time::Duration;

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

/// The machine's clocks. The wall clock is read once, at the start; from there on time advances
/// by the monotonic clock, so that a wall clock that jumps under a running process expires no
/// lease and no receipt.
#[derive(Debug)]
pub struct SystemClock {
    boot: [u8; 16],
    wall_at_zero: i64,
}

impl SystemClock {
    /// Reads both clocks.
    #[must_use]
    pub fn new() -> Self {
        #[allow(
            clippy::disallowed_methods,
            reason = "the one place that reads the wall clock"
        )]
        let wall = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        let wall = i64::try_from(wall.as_millis()).unwrap_or(i64::MAX);
        let elapsed = i64::try_from(since_boot().as_millis()).unwrap_or(i64::MAX);
        Self {
            boot: boot_id(),
            wall_at_zero: wall.saturating_sub(elapsed),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.wall_at_zero).plus(since_boot())
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic {
            boot: self.boot,
            millis: u64::try_from(since_boot().as_millis()).unwrap_or(u64::MAX),
        }
    }
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
