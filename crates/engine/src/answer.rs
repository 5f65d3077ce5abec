use std::time::Duration;

use counterfoil_core::{Code, OperationId, Reply};

/// What a call gets. Each surface translates it with one exhaustive match (contract §6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It ran just now; its result is durable.
    Ran {
        /// The answer, whole: nothing redacted.
        reply: Reply,
        /// Its handle.
        operation_id: OperationId,
    },
    /// The stored answer of an earlier call. Nothing ran.
    Replayed {
        /// As it was, but for what was redacted.
        reply: Reply,
        /// The handle of the operation that answered.
        operation_id: OperationId,
        /// It is a stored failure: trying again needs a new key, after reading the current state.
        stored_failure: bool,
    },
    /// It asks for something (payment, credential, inputs); the same key goes on with it.
    Asked {
        /// The question.
        reply: Reply,
        /// Its handle.
        operation_id: OperationId,
        /// It was asked before.
        replayed: bool,
    },
    /// It failed, and the failure is not kept: the key is free again, unless the handler had
    /// committed its write before it failed (a retry is then told so).
    Failed {
        /// The failure.
        reply: Reply,
    },
    /// It answered, and the answer was not recorded in time: a retry may not get it again, and will
    /// not make it happen twice.
    NotRecorded {
        /// The answer.
        reply: Reply,
        /// Its handle.
        operation_id: OperationId,
    },
    /// It did not run (or nobody knows whether it did).
    Refused(Refusal),
}

/// Why a call gets no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// The handle of the operation it is about, if there is one the caller may see.
    pub operation_id: Option<OperationId>,
}

/// Why a call gets no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The key was used for another request.
    Conflict,
    /// An attempt is under way.
    InProgress {
        /// When to ask again.
        retry_after: Duration,
    },
    /// The write reached the database; its answer is not stored.
    Committed {
        /// When to ask again; `None` once nothing more will come.
        retry_after: Option<Duration>,
    },
    /// It ran and will not run again; its result cannot be had.
    ResultUnavailable,
    /// It is established that nothing happened, and the key is used up (cancelled, or resolved so).
    NotHappened,
    /// Nobody knows whether it happened.
    Unknown {
        /// This very call is the one whose outcome is unknown (its first answer).
        first: bool,
        /// It ran into its deadline (as opposed to a broken exchange).
        timed_out: bool,
        /// Sending it again with the same key is safe, because the upstream honours a provider key.
        retryable: bool,
    },
    /// The key is past its replay window and will not run again.
    Expired,
    /// Nothing was done; try again with the same key.
    Busy {
        /// When.
        retry_after: Duration,
    },
    /// Nothing was done; the store cannot be used. The text says why, for operators.
    Unavailable(String),
    /// Nothing was done; too many unresolved operations.
    Quota {
        /// The bound.
        limit: u64,
    },
    /// The principal's authorization was withdrawn.
    Denied,
    /// A fault of this server or of a handler; nothing of the call was kept. The text is for
    /// operators, not for callers.
    Internal(String),
}

impl Reason {
    /// The permanent code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::Conflict => Code::IdempotencyConflict,
            Self::InProgress { .. } => Code::IdempotencyInProgress,
            Self::Committed { .. } => Code::IdempotencyCommitted,
            Self::ResultUnavailable | Self::NotHappened => Code::IdempotencyResultUnavailable,
            Self::Unknown { .. } => Code::OutcomeUnknown,
            Self::Expired => Code::IdempotencyKeyExpired,
            Self::Busy { .. } => Code::Busy,
            Self::Unavailable(_) => Code::Unavailable,
            Self::Quota { .. } => Code::QuotaExceeded,
            Self::Denied => Code::Unauthorized,
            Self::Internal(_) => Code::Internal,
        }
    }

    /// Repeating the call unchanged, with the same key, is safe and may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::InProgress { .. } | Self::Busy { .. } | Self::Unavailable(_) => true,
            Self::Committed { retry_after } => retry_after.is_some(),
            Self::Unknown { retryable, .. } => *retryable,
            Self::Conflict
            | Self::ResultUnavailable
            | Self::NotHappened
            | Self::Expired
            | Self::Quota { .. }
            | Self::Denied
            | Self::Internal(_) => false,
        }
    }

    /// When to try again, where there is such a time.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::InProgress { retry_after } | Self::Busy { retry_after } => Some(*retry_after),
            Self::Committed { retry_after } => *retry_after,
            Self::Unavailable(_) => Some(Duration::from_secs(5)),
            Self::Conflict
            | Self::ResultUnavailable
            | Self::NotHappened
            | Self::Unknown { .. }
            | Self::Expired
            | Self::Quota { .. }
            | Self::Denied
            | Self::Internal(_) => None,
        }
    }

    /// One plain sentence about what happened, for callers. Never holds what an operator should
    /// see only.
    #[must_use]
    pub const fn message(&self) -> &'static str {
        match self {
            Self::Conflict => "Idempotency-Key was reused with different content",
            Self::InProgress { .. }
            | Self::Committed {
                retry_after: Some(_),
            } => "This operation has already started",
            Self::Committed { retry_after: None } => {
                "This operation has already started: its write is committed, and its answer was lost"
            }
            Self::NotHappened => "This operation did not happen, and its key will not run it again",
            Self::ResultUnavailable => {
                "This operation ran and will not run again; its result is not stored"
            }
            Self::Unknown { .. } => "It is not known whether this operation happened",
            Self::Expired => {
                "This key is past its window; the operation ran before and will not run again"
            }
            Self::Busy { .. } => "The server is busy; nothing was done",
            Self::Unavailable(_) => "The receipt store cannot be used; nothing was done",
            Self::Quota { .. } => "Too many unresolved operations; nothing was done",
            Self::Denied => "The credential is not valid (any more)",
            Self::Internal(_) => "The server failed; nothing was kept of this call",
        }
    }

    /// What the caller does next.
    #[must_use]
    pub const fn next_action(&self) -> &'static str {
        match self {
            Self::Conflict => {
                "Find out which of the two requests was meant, and give the other one a key of its own"
            }
            Self::InProgress { .. }
            | Self::Committed {
                retry_after: Some(_),
            } => "Wait, then send the same call with the same key",
            Self::Committed { retry_after: None } | Self::ResultUnavailable => {
                "Read the current state, and look the operation up with get_operation; do not send it again under a new key before that"
            }
            Self::NotHappened => "Read the current state; a new attempt needs a new key",
            Self::Unknown {
                retryable: true, ..
            } => "Send the same call with the same key",
            Self::Unknown {
                retryable: false, ..
            } => {
                "Call get_operation with the operation id, and check the target itself before anything is sent again"
            }
            Self::Expired => "Read the current state; a deliberate new action needs a new key",
            Self::Busy { .. } | Self::Unavailable(_) => {
                "Wait, then send the same call with the same key"
            }
            Self::Quota { .. } => "Resolve operations in doubt (list_operations shows them)",
            Self::Denied => "Use a valid credential",
            Self::Internal(_) => {
                "Report it with the time of the call; the same key may be used again"
            }
        }
    }
}

impl Answer {
    /// The handle of the operation it is about, if there is one the caller may see.
    #[must_use]
    pub const fn operation_id(&self) -> Option<OperationId> {
        match self {
            Self::Ran { operation_id, .. }
            | Self::Replayed { operation_id, .. }
            | Self::Asked { operation_id, .. }
            | Self::NotRecorded { operation_id, .. } => Some(*operation_id),
            Self::Failed { .. } => None,
            Self::Refused(refusal) => refusal.operation_id,
        }
    }
}

impl From<Reason> for Answer {
    fn from(reason: Reason) -> Self {
        Self::Refused(Refusal {
            reason,
            operation_id: None,
        })
    }
}
