use counterfoil_core::Code;
use http::StatusCode;

/// The status of a refusal: 400 to 599. A problem can never say that something worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorStatus(StatusCode);

impl ErrorStatus {
    /// 408: the request's body did not arrive in time.
    pub const REQUEST_TIMEOUT: Self = Self(StatusCode::REQUEST_TIMEOUT);
    /// 409.
    pub const CONFLICT: Self = Self(StatusCode::CONFLICT);
    /// 422.
    pub const UNPROCESSABLE: Self = Self(StatusCode::UNPROCESSABLE_ENTITY);
    /// 431: too many or too large headers.
    pub const HEADERS_TOO_LARGE: Self = Self(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    /// 502: the exchange broke, and it is not known whether it happened.
    pub const BAD_GATEWAY: Self = Self(StatusCode::BAD_GATEWAY);
    /// 504: no answer in time.
    pub const GATEWAY_TIMEOUT: Self = Self(StatusCode::GATEWAY_TIMEOUT);

    /// A status of 400 to 599; `None` for any other.
    #[must_use]
    pub fn new(status: StatusCode) -> Option<Self> {
        (status.is_client_error() || status.is_server_error()).then_some(Self(status))
    }

    /// The status as HTTP has it.
    #[must_use]
    pub const fn get(self) -> StatusCode {
        self.0
    }

    /// The status of a code where nothing more is known (contract §6). `outcome_unknown` is 409
    /// here; the first answer of a call is 502 or 504.
    #[must_use]
    pub const fn of(code: Code) -> Self {
        Self(match code {
            Code::IdempotencyKeyRequired | Code::MalformedRequest => StatusCode::BAD_REQUEST,
            Code::InvalidKey | Code::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Code::IdempotencyConflict
            | Code::IdempotencyInProgress
            | Code::IdempotencyCommitted
            | Code::IdempotencyResultUnavailable
            | Code::IdempotencyKeyExpired
            | Code::OutcomeUnknown
            | Code::PossibleDuplicate => StatusCode::CONFLICT,
            Code::Busy | Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::QuotaExceeded | Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::Forbidden => StatusCode::FORBIDDEN,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        })
    }
}

/// The title of a code; never changes between two occurrences.
pub(crate) const fn title_of(code: Code) -> &'static str {
    match code {
        Code::IdempotencyKeyRequired => "This route requires an Idempotency-Key header",
        Code::InvalidKey => "The Idempotency-Key header is not a valid key",
        Code::IdempotencyConflict => "Idempotency-Key was reused with different content",
        Code::IdempotencyInProgress | Code::IdempotencyCommitted => {
            "This operation has already started"
        }
        Code::IdempotencyResultUnavailable => {
            "This operation ran and will not run again; its result is not stored"
        }
        Code::IdempotencyKeyExpired => {
            "This key is past its window; the operation ran before and will not run again"
        }
        Code::OutcomeUnknown => "It is not known whether this operation happened",
        Code::PossibleDuplicate => "This may be a duplicate of an earlier call; nothing was done",
        Code::Busy => "The server is busy; nothing was done",
        Code::Unavailable => "The receipt store cannot be used; nothing was done",
        Code::QuotaExceeded => "Too many unresolved operations; nothing was done",
        Code::RateLimited => "Too many requests; nothing was done",
        Code::Unauthorized => "The credential is missing or not valid (any more)",
        Code::Forbidden => "The credential does not allow this",
        Code::NotFound => "There is no such thing here",
        Code::MethodNotAllowed => "This path does not take this method",
        Code::Invalid => "Invalid request",
        Code::MalformedRequest => "The request cannot be read",
        Code::TooLarge => "The request is too large",
        Code::UnsupportedMediaType => "The body has a content type this route does not take",
        Code::Internal => "The server failed",
    }
}

/// What the caller does next, where the engine has no better word.
pub(crate) const fn next_action_of(code: Code) -> &'static str {
    match code {
        Code::IdempotencyKeyRequired => {
            "Make a key when you decide to act, keep it, and send it with this call and every retry of it"
        }
        Code::InvalidKey => "Send one key of 1 to 200 characters without control characters",
        Code::IdempotencyConflict => {
            "Find out which of the two requests was meant, and give the other one a key of its own"
        }
        Code::IdempotencyInProgress | Code::IdempotencyCommitted => {
            "Wait, then send the same call with the same key"
        }
        Code::IdempotencyResultUnavailable | Code::IdempotencyKeyExpired => {
            "Read the current state; do not send it again under a new key before that"
        }
        Code::OutcomeUnknown => {
            "Look the operation up by its id, and check the target itself before anything is sent again"
        }
        Code::PossibleDuplicate => {
            "Look the earlier operation up by its id; if it is meant to happen again, send it with a new key"
        }
        Code::Busy | Code::Unavailable | Code::RateLimited => {
            "Wait, then send the same call with the same key"
        }
        Code::QuotaExceeded => "Resolve operations in doubt, then send the same call again",
        Code::Unauthorized => "Use a valid credential",
        Code::Forbidden => "Use a credential that allows it",
        Code::NotFound => "Check the path and the id",
        Code::MethodNotAllowed => "Use a method of the Allow header",
        Code::Invalid => "Correct what `issues` names; the key is not used up",
        Code::MalformedRequest => "Correct the request; the key is not used up",
        Code::TooLarge => "Send less; the key is not used up",
        Code::UnsupportedMediaType => {
            "Send the body with a content type this route takes, such as application/json"
        }
        Code::Internal => "Report it with the time of the call; the same key may be used again",
    }
}

/// Repeating the call unchanged may help.
pub(crate) const fn is_retryable(code: Code) -> bool {
    match code {
        Code::IdempotencyInProgress
        | Code::IdempotencyCommitted
        | Code::Busy
        | Code::Unavailable
        | Code::RateLimited => true,
        Code::IdempotencyKeyRequired
        | Code::InvalidKey
        | Code::IdempotencyConflict
        | Code::IdempotencyResultUnavailable
        | Code::IdempotencyKeyExpired
        | Code::OutcomeUnknown
        | Code::PossibleDuplicate
        | Code::QuotaExceeded
        | Code::Unauthorized
        | Code::Forbidden
        | Code::NotFound
        | Code::MethodNotAllowed
        | Code::Invalid
        | Code::MalformedRequest
        | Code::TooLarge
        | Code::UnsupportedMediaType
        | Code::Internal => false,
    }
}
