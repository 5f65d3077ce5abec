/// The permanent codes of everything a caller can be told. Each has a page in `docs/errors/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the page of each code says what it means")]
pub enum Code {
    IdempotencyKeyRequired,
    InvalidKey,
    IdempotencyConflict,
    IdempotencyInProgress,
    IdempotencyCommitted,
    IdempotencyResultUnavailable,
    IdempotencyKeyExpired,
    OutcomeUnknown,
    PossibleDuplicate,
    Busy,
    Unavailable,
    QuotaExceeded,
    RateLimited,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Invalid,
    MalformedRequest,
    TooLarge,
    UnsupportedMediaType,
    Internal,
}

impl Code {
    const ALL: [(Self, &'static str); 22] = [
        (Self::IdempotencyKeyRequired, "idempotency_key_required"),
        (Self::InvalidKey, "invalid_key"),
        (Self::IdempotencyConflict, "idempotency_conflict"),
        (Self::IdempotencyInProgress, "idempotency_in_progress"),
        (Self::IdempotencyCommitted, "idempotency_committed"),
        (
            Self::IdempotencyResultUnavailable,
            "idempotency_result_unavailable",
        ),
        (Self::IdempotencyKeyExpired, "idempotency_key_expired"),
        (Self::OutcomeUnknown, "outcome_unknown"),
        (Self::PossibleDuplicate, "possible_duplicate"),
        (Self::Busy, "busy"),
        (Self::Unavailable, "unavailable"),
        (Self::QuotaExceeded, "quota_exceeded"),
        (Self::RateLimited, "rate_limited"),
        (Self::Unauthorized, "unauthorized"),
        (Self::Forbidden, "forbidden"),
        (Self::NotFound, "not_found"),
        (Self::MethodNotAllowed, "method_not_allowed"),
        (Self::Invalid, "invalid"),
        (Self::MalformedRequest, "malformed_request"),
        (Self::TooLarge, "too_large"),
        (Self::UnsupportedMediaType, "unsupported_media_type"),
        (Self::Internal, "internal"),
    ];

    /// Every code, for the documentation check.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(|(code, _)| code)
    }

    /// The code as it stands on the wire; never changes.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}
