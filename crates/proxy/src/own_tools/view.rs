//! An operation as a model sees it: never its arguments, its fingerprint, or a key that its caller
//! did not choose.

use std::time::{Duration, UNIX_EPOCH};

use counterfoil_core::{Effect, Kept, Phase, Receipt, State, Timestamp};
use serde_json::{Map, Value, json};

use crate::{keyless::is_made_here, say::aged};

/// What the operation part of a target begins with if it names a tool.
const TOOL: &str = "MCP ";
/// Longest key in a line of a list, in characters. Programs get it whole.
const KEY_CHARS_MAX: usize = 64;

pub(super) struct View<'a> {
    receipt: &'a Receipt,
    now: Timestamp,
    prefix: &'a str,
}

impl<'a> View<'a> {
    pub(super) const fn new(receipt: &'a Receipt, now: Timestamp, prefix: &'a str) -> Self {
        Self {
            receipt,
            now,
            prefix,
        }
    }

    /// The tool; `None` for a key in `_meta`, which names a call whatever its tool.
    fn tool(&self) -> Option<&'a str> {
        self.receipt.identity.target.operation.strip_prefix(TOOL)
    }

    /// The key that its caller chose; `None` for a call without one.
    fn key(&self) -> Option<&'a str> {
        let key = &self.receipt.identity.key;
        (!is_made_here(key)).then_some(key.as_str())
    }

    fn age(&self) -> Duration {
        self.now.since(self.receipt.created_at)
    }

    fn status(&self) -> &'static str {
        self.receipt.shown_state(self.now)
    }

    fn is_expired(&self) -> bool {
        self.receipt.phase(self.now) != Phase::Live
    }

    /// The facts for programs.
    pub(super) fn facts(&self) -> Map<String, Value> {
        let receipt = self.receipt;
        let facts = [
            ("operation_id", json!(receipt.operation_id.to_string())),
            ("tool", json!(self.tool())),
            ("status", json!(self.status())),
            ("effect", json!(receipt.effect().as_str())),
            ("key", json!(self.key())),
            ("age_seconds", json!(self.age().as_secs())),
            ("created_at", json!(rfc3339(receipt.created_at))),
            ("finished_at", json!(receipt.finished_at.map(rfc3339))),
            ("attempts", json!(receipt.status.attempts.latest())),
        ];
        let named = facts
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        named.collect()
    }

    /// One line of a list.
    pub(super) fn line(&self) -> String {
        let key = match self.key() {
            None => "without a key".to_owned(),
            Some(key) if key.len() > KEY_CHARS_MAX => {
                let short: String = key.chars().take(KEY_CHARS_MAX).collect();
                format!("key `{short}…`")
            }
            Some(key) => format!("key `{key}`"),
        };
        format!(
            "{} {} {}, {} ago ({}), {key}",
            self.receipt.operation_id,
            self.tool().unwrap_or("(key in _meta)"),
            self.status(),
            aged(self.age()),
            rfc3339(self.receipt.created_at)
        )
    }

    /// What it is and what its state means, and what to do.
    pub(super) fn sentence(&self) -> String {
        let call = match self.tool() {
            Some(tool) => format!("The call of `{tool}` ({})", self.receipt.operation_id),
            None => format!("The call {}", self.receipt.operation_id),
        };
        format!(
            "{call} of {} {}. {}.",
            rfc3339(self.receipt.created_at),
            self.meaning(),
            self.next_action()
        )
    }

    fn meaning(&self) -> &'static str {
        let effect = self.receipt.effect();
        match (self.receipt.status.state, effect) {
            (State::Free, _) => "did nothing and was released",
            (State::Accepted, _) => "is accepted and has not begun",
            (State::Running, _) => "is still running",
            (State::CancelRequested, _) => "is still running and was asked to stop",
            (State::InputRequired, _) => "waits for an answer to its question",
            (State::Succeeded, _) => "happened, once",
            // Nothing that a server answers proves that much: somebody looked.
            (State::Failed, Effect::None) if self.receipt.kept == Kept::Nothing => {
                "was found not to have happened"
            }
            (State::Failed, Effect::None) => "was refused, and nothing happened",
            (State::Failed, Effect::Happened | Effect::Unknown) => {
                "ended in an error, and what it left behind is not established"
            }
            (State::Cancelled, _) => "was stopped before anything happened",
            (State::OutcomeUnknown, _) => "may or may not have happened; nobody knows",
        }
    }

    pub(super) fn next_action(&self) -> String {
        let prefix = self.prefix;
        let effect = self.receipt.effect();
        match (self.receipt.status.state, effect) {
            (State::Free, _) => "The same call may be made again".to_owned(),
            (State::Accepted | State::Running, _) => format!(
                "Wait, then look again; {prefix}cancel_operation asks it to stop"
            ),
            (State::CancelRequested, _) => {
                "Wait, then look again to see what really happened".to_owned()
            }
            (State::InputRequired, _) => {
                "Make the same call again with the answer it asks for".to_owned()
            }
            (State::Succeeded, _) if self.is_expired() => {
                "Its result is no longer kept; read the current state".to_owned()
            }
            (State::Succeeded, _) => {
                "Do not repeat it, unless it is meant to happen once more".to_owned()
            }
            (State::Failed | State::Cancelled, Effect::None) => {
                "A new attempt needs a new idempotency key".to_owned()
            }
            (State::Failed | State::Cancelled, Effect::Happened | Effect::Unknown) => {
                "Read the current state; a new attempt needs a new idempotency key".to_owned()
            }
            (State::OutcomeUnknown, _) => "Read the current state to see whether it happened, before anything is repeated; then a new attempt needs a new idempotency key".to_owned(),
        }
    }
}

fn rfc3339(at: Timestamp) -> String {
    // What lies before 1970 or after 9999 cannot be written so; such a clock is shown as the end.
    const LAST_SECOND: u64 = 253_402_300_799;
    let millis = u64::try_from(at.as_millis()).unwrap_or(0);
    let time = UNIX_EPOCH + Duration::from_millis(millis.min(LAST_SECOND * 1000));
    humantime::format_rfc3339_millis(time).to_string()
}
