use std::time::Duration;

/// A moment on the wall clock: milliseconds since the Unix epoch. Always an argument, never read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From milliseconds since the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// This moment and `later`, saturating at the ends of the range.
    #[must_use]
    pub fn plus(self, later: Duration) -> Self {
        let millis = i64::try_from(later.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        let millis = self.0.saturating_sub(earlier.0);
        Duration::from_millis(u64::try_from(millis).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saturates_at_both_ends() {
        let at = Timestamp::from_millis;
        assert_eq!(at(5).plus(Duration::from_millis(7)), at(12));
        assert_eq!(at(i64::MAX - 1).plus(Duration::from_secs(1)), at(i64::MAX));
        assert_eq!(at(0).plus(Duration::MAX), at(i64::MAX));
        assert_eq!(at(12).since(at(5)), Duration::from_millis(7));
        assert_eq!(at(5).since(at(12)), Duration::ZERO);
        assert_eq!(
            at(i64::MAX).since(at(i64::MIN)).as_millis(),
            i64::MAX as u128
        );
    }
}
