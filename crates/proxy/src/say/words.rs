//! The words for a model: plain, under 60 words each, what happened and what to do next.

use std::time::Duration;

use counterfoil_core::{OperationId, State};
use counterfoil_engine::Reason;
use counterfoil_mcp::{Issue, whole_seconds};

use super::{Dialect, Manner, Refused, Unsent, Voice};
use crate::wire::Failure;

/// Most words of what somebody else wrote and a text quotes.
const QUOTED_WORDS_MAX: usize = 24;
/// Most characters of it.
const QUOTED_CHARS_MAX: usize = 400;
/// What 002 says, word for word; what to do follows.
const CONFLICT: &str = "Idempotency key was reused with different arguments";
/// The same for a key that names one call, whatever its tool.
const CONFLICT_META: &str = "Idempotency key was reused with another tool or different arguments";

impl Voice<'_> {
    fn tool(&self) -> String {
        format!("`{}`", quoted(self.tool, 1, 64))
    }

    /// How the same intention is sent again.
    fn again(&self) -> String {
        match self.dialect {
            Dialect::Argument => format!(
                "call again with the same arguments and the same {}",
                self.key_argument
            ),
            Dialect::Meta => {
                "call again with the same arguments and the same idempotency key".to_owned()
            }
            Dialect::None => "call again with the same arguments".to_owned(),
        }
    }

    /// How it is done once more on purpose.
    fn anew(&self) -> String {
        match self.dialect {
            Dialect::Argument | Dialect::None => {
                format!("call again with a new {}", self.key_argument)
            }
            Dialect::Meta => "call again with a new idempotency key".to_owned(),
        }
    }

    /// The call that this one repeats.
    fn earlier(&self) -> String {
        match self.dialect {
            Dialect::Argument => format!("The earlier call with this {}", self.key_argument),
            Dialect::Meta => "The earlier call with this idempotency key".to_owned(),
            Dialect::None => "The earlier identical call".to_owned(),
        }
    }

    /// How what became of it is looked up, as a sentence with a space before it.
    fn look_up(&self, operation_id: Option<OperationId>) -> String {
        match (operation_id, self.own_tools) {
            (None, _) => String::new(),
            (Some(id), Some(own)) => {
                format!(" `{own}get_operation` with operation_id {id} shows what became of it.")
            }
            (Some(id), None) => format!(" Its operation id is {id}."),
        }
    }

    /// The same for what is in doubt.
    fn late(&self, operation_id: Option<OperationId>) -> String {
        match (operation_id, self.own_tools) {
            (Some(id), Some(own)) => format!(
                " `{own}get_operation` with operation_id {id} shows whether an answer came late."
            ),
            (None, _) | (Some(_), None) => self.look_up(operation_id),
        }
    }

    pub(super) fn reason_words(
        &self,
        reason: &Reason,
        operation_id: Option<OperationId>,
    ) -> String {
        let (earlier, again, anew) = (self.earlier(), self.again(), self.anew());
        let (look_up, late) = (self.look_up(operation_id), self.late(operation_id));
        match reason {
            Reason::Conflict => {
                let conflict = match self.dialect {
                    Dialect::Argument | Dialect::None => CONFLICT,
                    Dialect::Meta => CONFLICT_META,
                };
                format!(
                    "{conflict}. Nothing was done now. If you are repeating the earlier call, send exactly what it was; if this is another action, {anew}."
                )
            }
            Reason::InProgress { retry_after }
            | Reason::Committed {
                retry_after: Some(retry_after),
            } => {
                let wait = seconds(*retry_after);
                // Without a key it is not certain that one more call finds this one again.
                let then = match (self.dialect, operation_id, self.own_tools) {
                    (Dialect::None, Some(id), Some(own)) => {
                        format!("call `{own}get_operation` with operation_id {id} for its answer.")
                    }
                    (Dialect::Argument | Dialect::Meta | Dialect::None, _, _) => {
                        format!("{again} for its answer.{look_up}")
                    }
                };
                format!(
                    "{earlier} is still running; nothing was started now. Wait {wait}, then {then}"
                )
            }
            Reason::Committed { retry_after: None } if self.is_found_out => format!(
                "{} was sent and its answer was lost; a look at the target shows that it happened. Do not repeat it: read the current state to see what it did.{look_up}",
                self.tool()
            ),
            Reason::Committed { retry_after: None } => format!(
                "{earlier} was carried out and its answer was lost. Nothing was done now. Do not repeat it: read the current state to see what it did.{look_up}"
            ),
            Reason::ResultUnavailable => format!(
                "{earlier} ran, and its result was not kept. Nothing was done now. Do not repeat it: read the current state to see what it did.{look_up} To do it once more on purpose, {anew}."
            ),
            Reason::NotHappened if self.is_found_out => format!(
                "{} was sent and its answer was lost; a look at the target shows that it did not happen. If it is still wanted, {anew}.{look_up}",
                self.tool()
            ),
            Reason::NotHappened => format!(
                "{earlier} did not happen, and nothing was done now. Read the current state; if it is still wanted, {anew}.{look_up}"
            ),
            Reason::Unknown {
                retryable: true, ..
            } => format!(
                "{} was sent and no answer came, so it may or may not have happened. Here repeating is safe: the server recognizes the repeat. Now {again}.{late}",
                self.tool()
            ),
            Reason::Unknown {
                first: true,
                timed_out,
                retryable: false,
            } => {
                let time = if *timed_out { " in time" } else { "" };
                format!(
                    "{} was sent and no answer came{time}: it may or may not have happened. Do not repeat it; first read the current state and see.{late} Only if it did not happen, {anew}.",
                    self.tool()
                )
            }
            Reason::Unknown {
                first: false,
                retryable: false,
                ..
            } => format!(
                "{earlier} may or may not have happened: no answer came. Nothing was sent now. Do not repeat it; first read the current state and see.{late} Only if it did not happen, {anew}."
            ),
            Reason::Expired => format!(
                "{}. Nothing was done now. Read the current state; to do it once more on purpose, {anew}.",
                reason.message()
            ),
            Reason::Busy { retry_after } => format!(
                "Nothing was done: too much is going on at the moment. Wait {}, then {again}.",
                seconds(*retry_after)
            ),
            Reason::Unavailable(_) => format!(
                "Nothing was done: calls cannot be recorded at the moment, so none that changes something is let through. Wait {}, then {again}. If it stays so, tell the user; the log of the counterfoil proxy says why.",
                seconds(reason.retry_after().unwrap_or_default())
            ),
            Reason::Quota { limit } => {
                let list = self.own_tools.map_or_else(
                    || "`counterfoil operations list` shows them".to_owned(),
                    |own| format!("`{own}list_operations` shows them"),
                );
                format!(
                    "Nothing was done: {limit} earlier calls have no known outcome, and no more are let through. Ask the user to settle some; {list}. Then {again}."
                )
            }
            Reason::Denied => format!(
                "You are not authorized (any more), so no answer is handed over. Ask the user for a valid credential, then {again}."
            ),
            Reason::Internal(_) => format!(
                "The counterfoil proxy failed and has no answer for this call. Read the current state before you repeat anything, and tell the user.{look_up}"
            ),
        }
    }

    pub(super) fn refused_words(&self, refused: &Refused<'_>) -> String {
        let tool = self.tool();
        let again = self.again();
        match refused {
            Refused::PossibleDuplicate {
                operation_id,
                state: State::OutcomeUnknown,
                age,
            } => format!(
                "Nothing was done: an identical call of {tool} was sent {} ago and may or may not have happened. First read the current state and see.{} If it did not happen, or you mean to do it once more, {}.",
                aged(*age),
                self.late(Some(*operation_id)),
                self.anew()
            ),
            Refused::PossibleDuplicate {
                operation_id,
                state,
                age,
            } => {
                let (stands, age) = (stands(*state), aged(*age));
                let retry = match self.own_tools {
                    Some(own) => format!(
                        "call `{own}get_operation` with operation_id {operation_id} to see what became of it"
                    ),
                    None => format!(
                        "read the current state to see what it did (operation id {operation_id})"
                    ),
                };
                format!(
                    "Nothing was done: an identical call of {tool}, made {age} ago, {stands}. If you are repeating that one, {retry}. If you mean to do it once more, {}.",
                    self.anew()
                )
            }
            Refused::InvalidArguments(issues) => {
                let told = quoted(&Issue::told(issues), QUOTED_WORDS_MAX, QUOTED_CHARS_MAX);
                let told = told.trim_end_matches('.');
                format!("{told}. Nothing was sent to {tool}. Correct the arguments and call again.")
            }
            Refused::KeyRequired => format!(
                "{tool} changes something, so it needs `{0}`, and nothing was done. Make one up for this intention, call again with it, and send the same one whenever you repeat this call.",
                self.key_argument
            ),
            Refused::Unsent(Unsent::Unreachable) => format!(
                "Nothing was done: the server of {tool} cannot be reached, and nothing was sent to it. Wait {}, then {again}. If it stays so, tell the user.",
                seconds(super::REACHABLE_AFTER)
            ),
            Refused::Unsent(Unsent::Credentials) => format!(
                "Nothing was done: the server of {tool} refused the credentials it was given. Tell the user to renew them where the counterfoil proxy is configured; then {again}."
            ),
        }
    }

    /// The one text that is put behind an answer of the upstream.
    pub(super) fn note(&self, manner: Manner) -> Option<String> {
        let anew = self.anew();
        if !manner.is_recorded {
            return Some(
                "Keep this answer: it could not be recorded, and repeating the call may not bring it back. Read the current state before you repeat anything."
                    .to_owned(),
            );
        }
        if let Some(age) = manner.attached {
            let failed = if manner.is_stored_failure {
                " It was an error."
            } else {
                ""
            };
            return Some(format!(
                "This is the answer to your identical call of {} ago, which had not been delivered.{failed} Nothing was done now. To do it once more on purpose, {anew}.",
                aged(age)
            ));
        }
        manner.is_stored_failure.then(|| {
            format!(
                "This is the stored error of the earlier call; nothing was done now, and repeating it brings the same. Read the current state; for another try, {anew}."
            )
        })
    }
}

/// What became of an identical call, after its subject.
const fn stands(state: State) -> &'static str {
    match state {
        State::Accepted | State::Running | State::CancelRequested => "is still running",
        State::Succeeded => "was carried out already, and its answer may not have reached you",
        State::Failed => "ended in an error, and its answer may not have reached you",
        State::OutcomeUnknown => "was sent, and it is not known whether it happened",
        State::InputRequired => "waits for an answer to its question",
        State::Cancelled => "was cancelled before it did anything",
        State::Free => "was made, and did nothing",
    }
}

/// How old something is, in the largest unit of which it has one whole: what is rounded up was not
/// there yet.
pub(crate) fn aged(age: Duration) -> String {
    let seconds = age.as_secs();
    let (count, unit) = match seconds {
        0 => return "less than a second".to_owned(),
        1..60 => (seconds, "second"),
        60..3_600 => (seconds / 60, "minute"),
        3_600..86_400 => (seconds / 3_600, "hour"),
        86_400.. => (seconds / 86_400, "day"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural}")
}

/// A wait, rounded up.
fn seconds(duration: Duration) -> String {
    match whole_seconds(duration) {
        1 => "1 second".to_owned(),
        seconds => format!("{seconds} seconds"),
    }
}

/// What somebody else wrote, on one line and bounded.
fn quoted(text: &str, words_max: usize, chars_max: usize) -> String {
    let mut words = text.split_whitespace();
    let mut short: Vec<&str> = words.by_ref().take(words_max).collect();
    if words.next().is_some() {
        short.push("…");
    }
    short.join(" ").chars().take(chars_max).collect()
}

pub(super) fn failed(why: &Failure) -> String {
    let because = |why: &str| quoted(why, QUOTED_WORDS_MAX, QUOTED_CHARS_MAX);
    match why {
        Failure::NotSent(why) => format!(
            "The server behind the counterfoil proxy cannot be reached, and nothing was sent to it ({}). Try again once it runs.",
            because(why)
        ),
        Failure::Unauthorized(why) => format!(
            "The server refused the credentials of the counterfoil proxy ({}). Renew them in its configuration.",
            because(why)
        ),
        Failure::Lost(why) => format!(
            "No answer came from the server ({}). If the request changes nothing, send it again; otherwise check first what it did.",
            because(why)
        ),
    }
}
