use counterfoil_core::{Effect, EventRecord, Kept, Phase, Receipt, Reply, State, Timestamp};
use serde_json::{Value, json};

use crate::ids::rfc3339;

/// An operation as it is shown: never its key, its arguments or its fingerprint.
#[derive(Clone, Debug)]
pub struct OperationView {
    pub(super) receipt: Receipt,
    pub(super) now: Timestamp,
    pub(super) result: Option<Reply>,
    pub(super) events: Vec<EventRecord>,
}

/// Operations, those in doubt first, then the newest first.
#[derive(Clone, Debug)]
pub struct OperationPage {
    /// The operations, without results and events.
    pub operations: Vec<OperationView>,
    /// Where the next page begins.
    pub next_cursor: Option<String>,
}

impl OperationPage {
    /// A page as every surface shows it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let operations: Vec<Value> = self.operations.iter().map(OperationView::summary).collect();
        json!({ "operations": operations, "next_cursor": self.next_cursor })
    }
}

impl OperationView {
    /// The receipt.
    #[must_use]
    pub const fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// What happened to it, the oldest first.
    #[must_use]
    pub fn events(&self) -> &[EventRecord] {
        &self.events
    }

    /// The state as it is shown: `expired` once only the tombstone is left.
    #[must_use]
    pub fn state(&self) -> &'static str {
        self.receipt.shown_state(self.now)
    }

    /// One sentence on what the state means and what to do.
    #[must_use]
    pub fn meaning(&self) -> &'static str {
        if self.state() == "expired" {
            return "It is past its replay window: its key is refused and its result is gone.";
        }
        match (self.receipt.status.state, self.receipt.effect()) {
            (State::Free, _) => "It was released: nothing happened, the same key runs it again.",
            (State::Accepted, _) => "It is accepted and has not begun.",
            (State::Running, _) => "An attempt is under way.",
            (State::CancelRequested, _) => "An attempt is under way and was asked to stop.",
            (State::InputRequired, _) => "It waits for the caller's answer under the same key.",
            (State::Succeeded, _) => "It happened, once.",
            // There is no answer that refused it: somebody found out.
            (State::Failed, Effect::None) if self.receipt.kept == Kept::Nothing => {
                "It was found not to have happened."
            }
            (State::Failed, Effect::None) => "It was refused, and nothing happened.",
            (State::Failed, _) => {
                "It ended in an error; what it left behind is not established. Check the target."
            }
            (State::Cancelled, _) => "It was stopped before anything happened.",
            (State::OutcomeUnknown, _) => {
                "Nobody knows whether it happened. Check the target before anything is sent again."
            }
        }
    }

    /// The short form, as a list shows it.
    #[must_use]
    pub fn summary(&self) -> Value {
        let receipt = &self.receipt;
        let until = |window| receipt.finished_at.map(|end| rfc3339(end.plus(window)));
        json!({
            "operation_id": receipt.operation_id.to_string(),
            "state": self.state(),
            "effect": receipt.effect().as_str(),
            "target": receipt.identity.target.to_string(),
            "principal": receipt.identity.principal.as_str(),
            "version": receipt.version,
            "mode": receipt.mode.as_str(),
            "attempts": receipt.status.attempts.latest(),
            "created_at": rfc3339(receipt.created_at),
            "finished_at": receipt.finished_at.map(rfc3339),
            "replay_until": until(receipt.retention.replay_for),
            "tombstone_until": until(receipt.retention.tombstone_for),
        })
    }

    /// The whole form.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut whole = self.summary();
        whole["meaning"] = json!(self.meaning());
        whole["result_kept"] = json!(kept_word(&self.receipt, self.now));
        whole["result"] = self.result.as_ref().map_or(Value::Null, result_json);
        whole["events"] = self.events.iter().map(event_json).collect();
        whole
    }
}

fn kept_word(receipt: &Receipt, now: Timestamp) -> &'static str {
    if receipt.phase(now) != Phase::Live {
        return "expired";
    }
    match receipt.kept {
        Kept::Nothing => "none",
        Kept::Stored => "stored",
        Kept::TooLarge => "too_large",
        Kept::AnswerLost => "answer_lost",
        Kept::Withheld => "withheld",
    }
}

fn result_json(reply: &Reply) -> Value {
    let body = serde_json::from_slice(&reply.body)
        .unwrap_or_else(|_| json!(String::from_utf8_lossy(&reply.body)));
    json!({
        "status": reply.status,
        "content_type": reply.content_type,
        "body": body,
    })
}

fn event_json(event: &EventRecord) -> Value {
    json!({
        "at": rfc3339(event.at),
        "attempt": event.attempt,
        "from": event.from.map(State::as_str),
        "to": event.to.as_str(),
        "reason": event.reason,
        "evidence": event.evidence,
    })
}
