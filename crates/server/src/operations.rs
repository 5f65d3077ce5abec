use counterfoil_core::{
    Effect, EventRecord, Kept, OperationId, Phase, Receipt, Reply, State, Timestamp, WorkspaceId,
};
use counterfoil_engine::Engine;
use counterfoil_store::{Cursor, Query};
use serde_json::{Value, json};

use crate::{
    AgentKey, Error, Role,
    cursor::{read_cursor, write_cursor},
    ids::rfc3339,
};

/// Operations on a page, unless the caller says otherwise.
pub(crate) const PAGE_DEFAULT: u32 = 50;
/// Most operations on a page.
pub(crate) const PAGE_MAX: u32 = 100;
const CURSOR_KIND: char = 'o';
/// What stands between the place and the part of the list in a cursor.
const IN_DOUBT: char = 'd';
const THE_REST: char = 'r';

/// An operation as it is shown: never its key, its arguments or its fingerprint.
#[derive(Clone, Debug)]
pub struct OperationView {
    receipt: Receipt,
    now: Timestamp,
    result: Option<Reply>,
    events: Vec<EventRecord>,
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

/// The operation `id` with its events, and for its own principal with its stored result.
/// Everybody else but an admin of its workspace gets [`Error::NotFound`].
pub(crate) async fn get(
    engine: &Engine,
    caller: &AgentKey,
    id: &str,
) -> Result<OperationView, Error> {
    let absent = Error::NotFound("operation");
    let id: OperationId = id.parse().map_err(|_| absent.clone())?;
    let now = engine.now();
    let found = engine.store().get(id).await?.ok_or(absent.clone())?;
    let identity = &found.receipt.identity;
    let own = identity.workspace == caller.workspace && identity.principal == caller.id;
    let admin = identity.workspace == caller.workspace && caller.role == Role::Admin;
    if !(own || admin) || found.receipt.phase(now) == Phase::Gone {
        return Err(absent);
    }
    let events = engine.store().events(id).await?;
    let result = if own { engine.result(&found) } else { None };
    Ok(OperationView {
        receipt: found.receipt,
        now,
        result,
        events,
    })
}

/// The operation `id` of whatever workspace, without its result: for the machine's operator.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Store`].
pub async fn show_operation(engine: &Engine, id: &str) -> Result<OperationView, Error> {
    let absent = Error::NotFound("operation");
    let id: OperationId = id.parse().map_err(|_| absent.clone())?;
    let found = engine.store().get(id).await?.ok_or(absent)?;
    Ok(OperationView {
        receipt: found.receipt,
        now: engine.now(),
        result: None,
        events: engine.store().events(id).await?,
    })
}

/// Which operations to list.
#[derive(Clone, Debug)]
pub struct OperationFilter<'a> {
    /// The state's word; `None`: all of them.
    pub state: Option<&'a str>,
    /// From 1 to 100.
    pub limit: u32,
    /// From [`OperationPage::next_cursor`].
    pub cursor: Option<&'a str>,
}

/// The operations the caller may see: an admin those of the workspace, a member its own.
pub(crate) async fn list(
    engine: &Engine,
    caller: &AgentKey,
    filter: &OperationFilter<'_>,
) -> Result<OperationPage, Error> {
    let principal = match caller.role {
        Role::Admin => None,
        Role::Member => Some(caller.id.clone()),
    };
    page(engine, &caller.workspace, principal, filter).await
}

/// The operations of a workspace: for the machine's operator.
///
/// # Errors
/// [`Error::Invalid`] for a wrong state, limit or cursor, [`Error::Store`].
pub async fn list_operations(
    engine: &Engine,
    workspace: &WorkspaceId,
    filter: &OperationFilter<'_>,
) -> Result<OperationPage, Error> {
    page(engine, workspace, None, filter).await
}

/// The states a list can be narrowed to.
pub(crate) fn listed_states() -> impl Iterator<Item = State> {
    State::all().filter(|state| *state != State::Free)
}

fn states(filter: Option<&str>) -> Result<Vec<State>, Error> {
    let Some(word) = filter else {
        return Ok(listed_states().collect());
    };
    match listed_states().find(|state| state.as_str() == word) {
        Some(state) => Ok(vec![state]),
        None => {
            let words: Vec<_> = listed_states().map(State::as_str).collect();
            let message = format!("must be one of {}", words.join(", "));
            Err(Error::invalid("state", message))
        }
    }
}

async fn page(
    engine: &Engine,
    workspace: &WorkspaceId,
    principal: Option<counterfoil_core::PrincipalId>,
    filter: &OperationFilter<'_>,
) -> Result<OperationPage, Error> {
    if !(1..=PAGE_MAX).contains(&filter.limit) {
        return Err(Error::invalid(
            "limit",
            format!("must be between 1 and {PAGE_MAX}"),
        ));
    }
    let all = states(filter.state)?;
    let (doubt, rest): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|state| *state == State::OutcomeUnknown);
    let (mut part, mut place) = match filter.cursor {
        None => (IN_DOUBT, None),
        Some(text) => read_place(text).ok_or_else(|| {
            Error::invalid("cursor", "is none of this list; take it from next_cursor")
        })?,
    };
    let now = engine.now();
    let mut operations = Vec::new();
    let next_cursor = loop {
        let room = filter.limit - u32::try_from(operations.len()).unwrap_or(filter.limit);
        let states = if part == IN_DOUBT { &doubt } else { &rest };
        let next = if states.is_empty() {
            None
        } else if room == 0 {
            // The next part begins on the next page, if there is anything in it.
            break (!rest.is_empty()).then(|| write_place(part, None));
        } else {
            let query = Query {
                workspace: workspace.clone(),
                principal: principal.clone(),
                states: states.clone(),
                cursor: place,
                limit: room,
            };
            let found = engine.store().list(&query).await?;
            let live = found
                .receipts
                .into_iter()
                .filter(|receipt| receipt.phase(now) != Phase::Gone);
            operations.extend(live.map(|receipt| OperationView {
                receipt,
                now,
                result: None,
                events: Vec::new(),
            }));
            found.next
        };
        match next {
            Some(next) => break Some(write_place(part, Some(next))),
            None if part == IN_DOUBT => (part, place) = (THE_REST, None),
            None => break None,
        }
    };
    Ok(OperationPage {
        operations,
        next_cursor,
    })
}

fn write_place(part: char, place: Option<Cursor>) -> String {
    let place = place.map_or_else(String::new, |Cursor(place)| place.to_string());
    write_cursor(CURSOR_KIND, &format!("{part}{place}"))
}

fn read_place(text: &str) -> Option<(char, Option<Cursor>)> {
    let text = read_cursor(CURSOR_KIND, text)?;
    let part = text
        .chars()
        .next()
        .filter(|c| [IN_DOUBT, THE_REST].contains(c))?;
    let place = text.get(1..)?;
    if place.is_empty() {
        return Some((part, None));
    }
    Some((part, Some(Cursor(place.parse().ok()?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_survive_the_cursor() {
        for place in [(IN_DOUBT, None), (THE_REST, Some(Cursor(77)))] {
            assert_eq!(read_place(&write_place(place.0, place.1)), Some(place));
        }
        assert_eq!(read_place(&write_cursor('o', "x1")), None);
        assert_eq!(read_place(&write_cursor('o', "dx")), None);
        assert_eq!(read_place(&write_cursor('n', "d1")), None);
    }

    #[test]
    fn states_are_checked() {
        assert_eq!(states(Some("running")), Ok(vec![State::Running]));
        assert!(states(Some("free")).is_err());
        assert!(states(Some("gone")).is_err());
        assert!(!states(None).unwrap().contains(&State::Free));
    }
}
