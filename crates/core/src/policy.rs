use std::time::Duration;

use crate::{Pointer, Retention};

/// How an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The effect lies in the receipt's own database; one transaction holds both.
    Atomic,
    /// An opaque handler: the reservation is durable before its first byte.
    Guarded,
    /// The intent is committed, a worker carries it out, the caller has a handle.
    Dispatched,
}

impl Mode {
    /// The word used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Atomic => "atomic",
            Self::Guarded => "guarded",
            Self::Dispatched => "dispatched",
        }
    }

    /// The byte a store keeps.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Atomic => 0,
            Self::Guarded => 1,
            Self::Dispatched => 2,
        }
    }

    /// From the byte a store kept.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Atomic),
            1 => Some(Self::Guarded),
            2 => Some(Self::Dispatched),
            _ => None,
        }
    }
}

/// What a 5xx or 429 answer of a guarded handler proves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnError {
    /// Nothing: the outcome becomes unknown. The default.
    #[default]
    Unknown,
    /// That nothing was applied, unless the handler set the committed flag in the transaction of
    /// its effect. For handlers whose only effects lie in such transactions.
    ReleaseUnlessCommitted,
}

/// What our clocks and a provider's may differ by.
const SKEW: Duration = Duration::from_secs(60);

/// How one operation is to be kept. [`Policy::default`] suits a guarded handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How it runs.
    pub mode: Mode,
    /// How long its receipts are good for.
    pub retention: Retention,
    /// How long an attempt may stay silent before it is looked into. Renewed while it lives.
    pub lease: Duration,
    /// The attempt's hard deadline, from its admission; then it is unknown. Never renewed.
    pub attempt_limit: Duration,
    /// How long a duplicate waits for the first one's answer if it does not say. Default 0.
    pub wait: Duration,
    /// The longest a duplicate may ask to wait.
    pub wait_max: Duration,
    /// Largest stored result, in bytes; a larger one leaves a marker.
    pub result_bytes_max: usize,
    /// The stored result is encrypted.
    pub seal: bool,
    /// What is nulled in the domain result before it is stored.
    pub redact: Vec<Pointer>,
    /// What an error answer of a guarded handler proves.
    pub on_error: OnError,
    /// How long the upstream says it honours the provider key; zero if it honours none.
    pub provider_window: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: Mode::Guarded,
            retention: Retention::default(),
            lease: Duration::from_secs(30),
            attempt_limit: Duration::from_secs(120),
            wait: Duration::ZERO,
            wait_max: Duration::from_secs(60),
            result_bytes_max: 262_144,
            seal: false,
            redact: Vec::new(),
            on_error: OnError::Unknown,
            provider_window: Duration::ZERO,
        }
    }
}

/// A policy that contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPolicy {
    /// `replay_for` is longer than `tombstone_for`.
    #[error("replay_for must not be longer than tombstone_for, unless tombstone_for is 0")]
    ReplayOutlivesTombstone,
    /// The lease or the attempt limit is zero, or the lease is longer than the limit.
    #[error("lease must be above 0 and not longer than attempt_limit")]
    Lease,
    /// A default wait longer than the longest wait.
    #[error("wait must not be longer than wait_max")]
    Wait,
}

impl Policy {
    /// An atomic operation with the defaults.
    #[must_use]
    pub fn atomic() -> Self {
        Self {
            mode: Mode::Atomic,
            ..Self::default()
        }
    }

    /// How long after the reservation, which is before the first send, another attempt may begin
    /// under the same provider key: the provider's window less one attempt's length and the skew of
    /// the clocks (a minute). Zero if that leaves nothing.
    #[must_use]
    pub const fn resend_window(&self) -> Duration {
        let allowance = self.attempt_limit.saturating_add(SKEW);
        self.provider_window.saturating_sub(allowance)
    }

    /// Checks that the parts fit together.
    ///
    /// # Errors
    /// [`InvalidPolicy`] names the two that do not.
    pub fn check(&self) -> Result<(), InvalidPolicy> {
        let Retention {
            replay_for,
            tombstone_for,
        } = self.retention;
        if !tombstone_for.is_zero() && replay_for > tombstone_for {
            return Err(InvalidPolicy::ReplayOutlivesTombstone);
        }
        if self.lease.is_zero() || self.lease > self.attempt_limit {
            return Err(InvalidPolicy::Lease);
        }
        if self.wait > self.wait_max {
            return Err(InvalidPolicy::Wait);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_defaults_are_the_contracts() {
        let policy = Policy::default();
        assert_eq!(policy.check(), Ok(()));
        assert_eq!(Policy::atomic().check(), Ok(()));
        assert_eq!(policy.attempt_limit, SECOND * 120);
        assert_eq!(policy.wait, Duration::ZERO);
        assert_eq!(policy.result_bytes_max, 262_144);
        assert_eq!(policy.retention.replay_for, SECOND * 48 * 3600);
        assert_eq!(policy.retention.tombstone_for, SECOND * 30 * 24 * 3600);
        assert_eq!(policy.on_error, OnError::Unknown);
    }

    #[test]
    fn contradictions_are_named() {
        let with = |change: fn(&mut Policy)| {
            let mut policy = Policy::default();
            change(&mut policy);
            policy.check()
        };
        let outlives = Err(InvalidPolicy::ReplayOutlivesTombstone);
        assert_eq!(with(|p| p.retention.replay_for *= 16), outlives);
        assert_eq!(
            with(|p| p.retention.replay_for = p.retention.tombstone_for),
            Ok(())
        );
        assert_eq!(with(|p| p.retention.tombstone_for = Duration::ZERO), Ok(()));
        assert_eq!(
            with(|p| p.lease = Duration::ZERO),
            Err(InvalidPolicy::Lease)
        );
        assert_eq!(
            with(|p| p.lease = p.attempt_limit + SECOND),
            Err(InvalidPolicy::Lease)
        );
        assert_eq!(with(|p| p.lease = p.attempt_limit), Ok(()));
        assert_eq!(
            with(|p| p.wait = p.wait_max + SECOND),
            Err(InvalidPolicy::Wait)
        );
    }

    #[test]
    fn i1_the_resend_window_leaves_room_for_one_attempt_and_the_skew() {
        let with = |seconds| Policy {
            provider_window: SECOND * seconds,
            ..Policy::default()
        };
        assert_eq!(with(0).resend_window(), Duration::ZERO);
        assert_eq!(with(180).resend_window(), Duration::ZERO);
        assert_eq!(with(181).resend_window(), SECOND);
    }
}
