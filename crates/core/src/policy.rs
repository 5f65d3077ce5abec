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
    /// How long the upstream honours the provider key; zero if it honours none.
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
