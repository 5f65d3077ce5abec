/// One thing that is wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Which field: a property of the body, a parameter of the query.
    pub field: &'static str,
    /// What it must be.
    pub message: String,
}

impl Issue {
    pub(crate) fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self {
            field,
            message: message.into(),
        }
    }
}

/// Why a step of the application did not happen. Nothing is changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request is not what it must be.
    #[error("{}: {}", .0.field, .0.message)]
    Invalid(Issue),
    /// There is no such thing in the caller's workspace, or the caller may not see it.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// The caller's role does not allow it.
    #[error("only an agent key with the role admin may do this")]
    Forbidden,
    /// The settings contradict each other.
    #[error("the settings are wrong: {0}")]
    Settings(String),
    /// The operating system gave no randomness.
    #[error("the operating system gave no random bytes")]
    NoRandomness,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] counterfoil_store::Error),
}

impl Error {
    pub(crate) fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid(Issue::new(field, message))
    }
}
