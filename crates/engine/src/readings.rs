//! What the processes that share a store know of its clock. Each machine leaves its latest
//! reading and is judged by its own one, so that several machines do not overwrite each other's.

use std::time::Duration;

use counterfoil_core::Timestamp;

use crate::{Monotonic, clock::DRIFT_MAX};

/// Two sweeps that agree on an expiry are at least this far apart, by the monotonic clock.
pub(crate) const SWEEPS_APART: Duration = Duration::from_secs(3600);
/// How many boots leave a reading; the oldest make room.
const BOOTS_MAX: usize = 64;
/// The bytes of a reading.
const READING_BYTES: usize = 32;
/// Two clocks of two machines may run apart by one part in this many.
const DRIFT_PARTS: u32 = 5000;

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) wall: Timestamp,
    pub(crate) monotonic: Monotonic,
}

impl Reading {
    /// By how much the wall clock runs ahead of the monotonic one since `earlier`, and how much of
    /// it may be so; `None` if they are not of one boot.
    fn drift_since(self, earlier: Self) -> Option<(Duration, i64, Duration)> {
        let (then, now) = (earlier.monotonic, self.monotonic);
        let elapsed = now.millis.checked_sub(then.millis);
        let elapsed = elapsed.filter(|_| now.boot == then.boot)?;
        let by_wall = self.wall_since(earlier);
        let by_monotonic = i64::try_from(elapsed).unwrap_or(i64::MAX);
        let elapsed = Duration::from_millis(elapsed);
        Some((
            elapsed,
            by_wall.saturating_sub(by_monotonic),
            DRIFT_MAX + elapsed / DRIFT_PARTS,
        ))
    }

    fn wall_since(self, earlier: Self) -> i64 {
        let earlier = earlier.wall.as_millis();
        self.wall.as_millis().saturating_sub(earlier)
    }

    fn to_bytes(self) -> [u8; READING_BYTES] {
        let mut bytes = [0; READING_BYTES];
        bytes[..8].copy_from_slice(&self.wall.as_millis().to_be_bytes());
        bytes[8..24].copy_from_slice(&self.monotonic.boot);
        bytes[24..].copy_from_slice(&self.monotonic.millis.to_be_bytes());
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

/// The latest reading of each boot, the one that was left last at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readings(Vec<Reading>);

impl Readings {
    /// From a note; what is no reading in it is left out.
    pub(crate) fn from_note(note: Option<&[u8]>) -> Self {
        let parts = note.unwrap_or_default().chunks_exact(READING_BYTES);
        Self(parts.filter_map(Reading::from_bytes).collect())
    }

    pub(crate) fn to_note(&self) -> Vec<u8> {
        self.0.iter().flat_map(|r| r.to_bytes()).collect()
    }

    pub(crate) fn of_boot(&self, boot: [u8; 16]) -> Option<Reading> {
        let mut all = self.0.iter().copied();
        all.find(|reading| reading.monotonic.boot == boot)
    }

    /// Puts it in the place of the earlier one of its boot.
    pub(crate) fn put(&mut self, reading: Reading) {
        let boot = reading.monotonic.boot;
        self.0.retain(|earlier| earlier.monotonic.boot != boot);
        self.0.push(reading);
        self.0.drain(..self.0.len().saturating_sub(BOOTS_MAX));
    }

    /// Leaves nothing but `reading`: what the others left is of a clock that is no longer right.
    pub(crate) fn only(reading: Reading) -> Self {
        Self(vec![reading])
    }

    /// Whether a clock may be believed. The reading of its own boot tells every jump. One of
    /// another boot tells a jump back alone: time that passed while a machine was off, or before
    /// it joined, cannot be told from a jump forward.
    pub(crate) fn check(&self, now: Reading) -> Result<(), ClockMoved> {
        let moved = |by: i64| {
            let off = Duration::from_millis(by.unsigned_abs());
            ClockMoved {
                by: Duration::from_secs(off.as_secs()),
                ahead: by > 0,
            }
        };
        for earlier in &self.0 {
            let (by, may_be) = match now.drift_since(*earlier) {
                Some((_, by, may_be)) => (by, may_be),
                None => (now.wall_since(*earlier).min(0), DRIFT_MAX),
            };
            if Duration::from_millis(by.unsigned_abs()) > may_be {
                return Err(moved(by));
            }
        }
        Ok(())
    }

    /// What a sweep may purge, and the reading that the next one of this boot compares with.
    pub(crate) fn horizon(&self, now: Reading) -> (Option<Timestamp>, Reading) {
        let Some(earlier) = self.of_boot(now.monotonic.boot) else {
            return (None, now);
        };
        let Some((elapsed, by, may_be)) = now.drift_since(earlier) else {
            return (None, now);
        };
        if Duration::from_millis(by.unsigned_abs()) > may_be {
            return (None, now);
        }
        if elapsed < SWEEPS_APART {
            return (None, earlier);
        }
        (Some(earlier.wall.min(now.wall)), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MONTH: i64 = 30 * 86_400;

    fn reading(wall_s: i64, monotonic_s: u64, boot: u8) -> Reading {
        Reading {
            wall: Timestamp::from_millis(wall_s * 1000),
            monotonic: Monotonic {
                boot: [boot; 16],
                millis: monotonic_s * 1000,
            },
        }
    }

    fn left(readings: &[Reading]) -> Readings {
        let mut all = Readings::default();
        for reading in readings {
            all.put(*reading);
        }
        all
    }

    #[test]
    fn a_purge_needs_two_sweeps_an_hour_apart() {
        let first = reading(1_000_000, 50, 1);
        assert_eq!(left(&[]).horizon(first), (None, first));
        let soon = reading(1_000_000 + 3599, 50 + 3599, 1);
        assert_eq!(left(&[first]).horizon(soon), (None, first));
        let later = reading(1_000_000 + 3600, 50 + 3600, 1);
        assert_eq!(left(&[first]).horizon(later), (Some(first.wall), later));
    }

    #[test]
    fn an_unexplained_jump_of_the_clock_stops_purging() {
        let first = reading(1_000_000, 50, 1);
        let jumped = reading(1_000_000 + MONTH, 50 + 4000, 1);
        assert_eq!(left(&[first]).horizon(jumped), (None, jumped));
        let back = reading(1_000_000 - MONTH, 50 + 4000, 1);
        assert_eq!(left(&[first]).horizon(back), (None, back));
        let rebooted = reading(1_000_000 + 4000, 50 + 4000, 2);
        assert_eq!(left(&[first]).horizon(rebooted), (None, rebooted));
    }

    #[test]
    fn two_machines_that_sweep_in_turn_both_purge() {
        let first = [reading(1_000_000, 50, 1), reading(1_001_800, 900_000, 2)];
        let mut readings = left(&first);
        for hour in 1..4 {
            for earlier in first {
                let wall = earlier.wall.as_millis() / 1000 + hour * 3600;
                let monotonic = earlier.monotonic.millis / 1000 + hour.unsigned_abs() * 3600;
                let now = reading(wall, monotonic, earlier.monotonic.boot[0]);
                let (agreed, compare_with) = readings.horizon(now);
                assert_eq!(
                    agreed,
                    Some(Timestamp::from_millis((wall - 3600) * 1000)),
                    "by its own reading of an hour ago"
                );
                readings.put(compare_with);
            }
        }
    }

    #[test]
    fn a_moved_clock_is_told_and_a_machine_that_was_off_is_not() {
        let readings = left(&[reading(1_000_000, 50, 1)]);
        let check = |now| readings.check(now).map_err(|moved| moved.ahead);
        assert_eq!(check(reading(1_000_000 + 200, 250, 1)), Ok(()));
        assert_eq!(check(reading(1_000_000 + MONTH, 250, 1)), Err(true));
        assert_eq!(check(reading(1_000_000 - MONTH, 250, 1)), Err(false));
        assert_eq!(
            check(reading(1_000_000 + MONTH, 5, 2)),
            Ok(()),
            "it was off"
        );
        assert_eq!(check(reading(1_000_000 - MONTH, 5, 2)), Err(false));
    }

    #[test]
    fn another_machine_neither_hides_a_moved_clock_nor_is_refused_for_it() {
        let (one, two) = (reading(1_000_000, 50, 1), reading(1_000_010, 7_000_000, 2));
        let mut readings = left(&[one, two]);
        // The store's clock jumps, and a machine that has just booted cannot know.
        let third = reading(1_000_020 + MONTH, 5, 3);
        assert_eq!(readings.check(third), Ok(()));
        readings.put(third);
        // Those that have seen it before can.
        for (monotonic, boot) in [(90, 1), (7_000_030, 2)] {
            let moved = readings.check(reading(1_000_040 + MONTH, monotonic, boot));
            assert_eq!(moved.map_err(|moved| moved.ahead), Err(true));
        }
        // Healthy machines that started at different times and were read at different times.
        let readings = left(&[one, two]);
        for (monotonic, boot) in [(50 + 86_400, 1), (7_000_000 + 86_390, 2), (3, 4)] {
            let healthy = reading(1_000_000 + 86_400, monotonic, boot);
            assert_eq!(readings.check(healthy), Ok(()), "boot {boot}");
        }
    }

    #[test]
    fn clocks_of_two_machines_may_run_apart_slowly() {
        let month = MONTH.unsigned_abs();
        let readings = left(&[reading(1_000_000, 50, 1)]);
        assert_eq!(
            readings.check(reading(1_000_000 + MONTH + 400, 50 + month, 1)),
            Ok(()),
            "150 millionths, after a month without a reading"
        );
        let moved = readings.check(reading(1_000_000 + MONTH + 3600, 50 + month, 1));
        assert_eq!(
            moved,
            Err(ClockMoved {
                by: Duration::from_secs(3600),
                ahead: true
            })
        );
    }

    #[test]
    fn an_accepted_clock_is_the_only_one_left() {
        let ahead = reading(1_000_000 + MONTH, 5, 3);
        let accepted = Readings::only(reading(1_000_000, 70, 1));
        assert_eq!(accepted.check(reading(1_000_100, 9, 2)), Ok(()));
        assert!(left(&[ahead]).check(reading(1_000_100, 9, 2)).is_err());
    }

    #[test]
    fn a_note_keeps_the_newest_boots_within_its_bound() {
        let all: Vec<_> = (0..=70).map(|boot| reading(1_000_000, 50, boot)).collect();
        let mut readings = left(&all);
        assert_eq!(readings.of_boot([6; 16]), None, "the oldest made room");
        assert_eq!(readings.of_boot([7; 16]), Some(all[7]));
        // One that is read again becomes the newest, and replaces its own reading.
        readings.put(reading(1_000_900, 950, 7));
        readings.put(reading(1_000_900, 950, 99));
        assert_eq!(readings.of_boot([8; 16]), None);
        assert_eq!(readings.of_boot([7; 16]), Some(reading(1_000_900, 950, 7)));
        let note = readings.to_note();
        assert!(note.len() <= 4096, "{}", note.len());
        assert_eq!(Readings::from_note(Some(&note)), readings);
    }

    #[test]
    fn a_note_of_one_reading_is_a_note_and_what_is_none_is_left_out() {
        let one = reading(1_000_000, 50, 7);
        let note = one.to_bytes();
        assert_eq!(Readings::from_note(Some(&note)), Readings::only(one));
        assert_eq!(Readings::from_note(Some(&[1, 2, 3])), Readings::default());
        assert_eq!(Readings::from_note(None), Readings::default());
    }
}
