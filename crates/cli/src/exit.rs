use std::{fmt, process::ExitCode};

/// The exit codes, as `--help` and the README list them. 2 is also what clap ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Something else went wrong.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The configuration is wrong.
    Config = 3,
    /// The store or its folder cannot be used.
    Store = 4,
    /// There is no such thing.
    NotFound = 5,
    /// The address cannot be listened on.
    Listen = 6,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command did not do what was asked: what is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    message: String,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            hint: None,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// From a message of the form `what is wrong; what to do`.
    pub(crate) fn split(exit: Exit, text: &str) -> Self {
        match text.split_once("; ") {
            Some((message, hint)) => Self::new(exit, message).hint(hint),
            None => Self::new(exit, text),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl From<counterfoil_server::Error> for Failure {
    fn from(error: counterfoil_server::Error) -> Self {
        use counterfoil_server::Error;
        match &error {
            Error::Invalid(_) => Self::new(Exit::Usage, error.to_string()),
            Error::NotFound(what) => Self::new(Exit::NotFound, error.to_string()).hint(format!(
                "`counterfoil {}` shows what there is",
                if *what == "operation" {
                    "operations list"
                } else {
                    "keys list"
                }
            )),
            Error::Settings(_) => Self::split(Exit::Config, &error.to_string()),
            Error::Forbidden | Error::NoRandomness => Self::new(Exit::Failure, error.to_string()),
            Error::Store(error) => error.clone().into(),
        }
    }
}

impl From<counterfoil_store::Error> for Failure {
    fn from(error: counterfoil_store::Error) -> Self {
        use counterfoil_store::Error;
        match &error {
            Error::Busy { .. } => Self::new(Exit::Store, error.to_string())
                .hint("another process holds the database; try again"),
            Error::Unavailable(_) | Error::Corrupt(_) => {
                Self::split(Exit::Store, &error.to_string())
            }
            Error::CommitUnknown => Self::new(Exit::Store, error.to_string())
                .hint("look at what is there before doing it again"),
            Error::NotFound => Self::new(Exit::NotFound, error.to_string()),
            Error::Fenced(_)
            | Error::Handler(_)
            | Error::Statement(_)
            | Error::RolledBack
            | Error::Quota { .. } => Self::new(Exit::Failure, error.to_string()),
        }
    }
}

impl From<counterfoil_sqlite::OpenError> for Failure {
    fn from(error: counterfoil_sqlite::OpenError) -> Self {
        Self::split(Exit::Store, &error.to_string())
    }
}
