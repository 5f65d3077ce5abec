//! What became of keyed calls, for those who may know.

mod view;

use counterfoil_core::{OperationId, Phase, PrincipalId, State, WorkspaceId};
use counterfoil_engine::Engine;
use counterfoil_store::{Cursor, Query};

use crate::{
    AgentKey, Error, Role,
    cursor::{read_cursor, write_cursor},
};
pub use view::{OperationPage, OperationView};

/// Operations on a page, unless the caller says otherwise.
pub(crate) const PAGE_DEFAULT: u32 = 50;
/// Most operations on a page.
pub(crate) const PAGE_MAX: u32 = 100;
/// Most reads for one page, which may be short or empty because of it.
const LOOKS_MAX: u32 = 20;
const CURSOR_KIND: char = 'o';
/// What stands between the place and the part of the list in a cursor.
const IN_DOUBT: char = 'd';
const THE_REST: char = 'r';

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
    /// The state's word as [`OperationView::state`] shows it; `None`: all of them.
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

/// What a finished operation is shown as once only its tombstone is left. No state of the row.
const EXPIRED: &str = "expired";

fn listed_states() -> impl Iterator<Item = State> {
    State::all().filter(|state| *state != State::Free)
}

/// The words a list can be narrowed by.
pub(crate) fn listed_words() -> impl Iterator<Item = &'static str> {
    listed_states()
        .map(State::as_str)
        .chain(std::iter::once(EXPIRED))
}

/// The recorded states to look through.
fn states(filter: Option<&str>) -> Result<Vec<State>, Error> {
    match filter {
        None => Ok(listed_states().collect()),
        Some(EXPIRED) => Ok(State::all().filter(|state| state.is_finished()).collect()),
        Some(word) => match listed_states().find(|state| state.as_str() == word) {
            Some(state) => Ok(vec![state]),
            None => {
                let words: Vec<_> = listed_words().collect();
                let message = format!("must be one of {}", words.join(", "));
                Err(Error::invalid("state", message))
            }
        },
    }
}

async fn page(
    engine: &Engine,
    workspace: &WorkspaceId,
    principal: Option<PrincipalId>,
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
    let mut operations: Vec<OperationView> = Vec::new();
    let mut looks = 0;
    let next_cursor = loop {
        looks += 1;
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
            let live = found.receipts.into_iter().filter(|receipt| {
                let shown = receipt.shown_state(now);
                receipt.phase(now) != Phase::Gone && filter.state.is_none_or(|word| word == shown)
            });
            operations.extend(live.map(|receipt| OperationView {
                receipt,
                now,
                result: None,
                events: Vec::new(),
            }));
            found.next
        };
        match next {
            // Few of the rows are shown as what was asked for.
            Some(next) if looks < LOOKS_MAX && operations.is_empty() => place = Some(next),
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
        assert!(states(Some("expired")).is_ok_and(|states| states.contains(&State::Failed)));
        assert!(states(Some("free")).is_err());
        assert!(states(Some("gone")).is_err());
        assert!(!states(None).unwrap().contains(&State::Free));
    }
}
