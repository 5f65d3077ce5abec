use std::time::Duration;

/// What goes wrong with a call. *After* means that the effect was done and is in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `die_before`, `die_after`: the process ends, without a word.
    Die {
        /// The effect is done.
        after: bool,
    },
    /// `never`, `never_before`: no answer, for as long as the client waits.
    Never {
        /// The effect is done.
        after: bool,
    },
    /// `late:MS`: the effect at once, the answer later.
    Late(Duration),
    /// `twice`: the answer is sent two times.
    Twice,
    /// `half`: half of the answer, then the connection ends (with pipes: the process).
    Half,
    /// `torn`: half of the answer, and the connection stays.
    Torn,
    /// `cut`, `cut_before`: the answer's stream is opened and ends without it (with pipes: the
    /// process ends in order).
    Cut {
        /// The effect is done.
        after: bool,
    },
    /// `404_after`, `500_before`, …: an HTTP status with a body that is no JSON-RPC; with pipes an
    /// error of a code that servers use for that.
    Status {
        /// The status.
        code: u16,
        /// The effect is done.
        after: bool,
    },
    /// `401`: the credentials are refused before anything is done.
    Unauthorized,
    /// `redirect`: 307 to the same place, after the effect.
    Redirect,
    /// `error_32603`, `error_32602_before`, …: a JSON-RPC error of that code, negative.
    Error {
        /// The code.
        code: i64,
        /// The effect is done.
        after: bool,
    },
    /// `is_error`, `is_error_before`: a tool result with `isError`.
    IsError {
        /// The effect is done.
        after: bool,
    },
    /// `flood`: thousands of notifications, then the answer.
    Flood,
    /// `reuse_id`: a request of the server's under the id of the call, then the answer.
    ReuseId,
    /// `stale_id`: a second answer under the id of the call before, then the answer.
    StaleId,
    /// `wrong_id`: the answer, under an id that nobody used.
    WrongId,
    /// `garbage`: bytes that are no message, in place of the answer.
    Garbage,
    /// `noise`: bytes that are no message, then the answer.
    Noise,
    /// `big:BYTES`: the answer is that long.
    Big(usize),
}

impl Fault {
    /// Reads a name; `None` if it is not known.
    #[must_use]
    pub fn read(name: &str) -> Option<Self> {
        let (stem, after) = match name.strip_suffix("_before") {
            Some(stem) => (stem, false),
            None => (name.strip_suffix("_after").unwrap_or(name), true),
        };
        let (word, value) = stem.split_once(':').unwrap_or((stem, ""));
        Some(match word {
            "die" => Self::Die { after },
            "never" => Self::Never { after },
            "late" => Self::Late(Duration::from_millis(value.parse().ok()?)),
            "twice" => Self::Twice,
            "half" => Self::Half,
            "torn" => Self::Torn,
            "cut" => Self::Cut { after },
            "401" => Self::Unauthorized,
            "redirect" => Self::Redirect,
            "is_error" => Self::IsError { after },
            "flood" => Self::Flood,
            "reuse_id" => Self::ReuseId,
            "stale_id" => Self::StaleId,
            "wrong_id" => Self::WrongId,
            "garbage" => Self::Garbage,
            "noise" => Self::Noise,
            "big" => Self::Big(value.parse().ok()?),
            word => match word.strip_prefix("error_") {
                Some(code) => Self::Error {
                    code: -code.parse::<i64>().ok()?,
                    after,
                },
                None => Self::Status {
                    code: word.parse().ok().filter(|code| (400..600).contains(code))?,
                    after,
                },
            },
        })
    }

    /// Whether the effect is done before it goes wrong.
    #[must_use]
    pub const fn after(&self) -> bool {
        match self {
            Self::Die { after }
            | Self::Never { after }
            | Self::Cut { after }
            | Self::Status { after, .. }
            | Self::Error { after, .. }
            | Self::IsError { after } => *after,
            Self::Unauthorized => false,
            Self::Late(_)
            | Self::Twice
            | Self::Half
            | Self::Torn
            | Self::Redirect
            | Self::Flood
            | Self::ReuseId
            | Self::StaleId
            | Self::WrongId
            | Self::Garbage
            | Self::Noise
            | Self::Big(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        let read = |name| Fault::read(name);
        assert_eq!(read("die_before"), Some(Fault::Die { after: false }));
        assert_eq!(read("never"), Some(Fault::Never { after: true }));
        let late = Duration::from_millis(50);
        assert_eq!(read("late:50"), Some(Fault::Late(late)));
        let code = |code, after| Some(Fault::Status { code, after });
        assert_eq!(read("404_after"), code(404, true));
        assert_eq!(read("500_before"), code(500, false));
        assert_eq!(read("401"), Some(Fault::Unauthorized));
        let error = |code, after| Some(Fault::Error { code, after });
        assert_eq!(read("error_32603"), error(-32603, true));
        assert_eq!(read("error_32602_before"), error(-32602, false));
        assert_eq!(read("nothing_known"), None);
        assert_eq!(read("999_after"), None);
    }
}
