//! Which requests wait for their answer. Whoever takes one off this list may, and must, say what
//! became of it, so that it is said once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use counterfoil_mcp::framing::Id;
use tokio_util::sync::CancellationToken;

#[derive(Default)]
struct Table {
    last: u64,
    under_way: HashMap<Id, (u64, CancellationToken)>,
}

/// The requests under way.
#[derive(Default)]
pub(super) struct Flights {
    table: Mutex<Table>,
}

/// One of them. Off the list when it is dropped.
pub(super) struct Flight {
    flights: Arc<Flights>,
    number: u64,
    /// Whose.
    pub(super) id: Id,
    /// It is not to go on: it was given up, or everything ends.
    pub(super) end: CancellationToken,
}

impl Flights {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a request on the list; `None` if there is one under this id.
    pub(super) fn begin(self: &Arc<Self>, id: &Id, closed: &CancellationToken) -> Option<Flight> {
        let mut table = self.table();
        if table.under_way.contains_key(id) {
            return None;
        }
        table.last += 1;
        let number = table.last;
        let end = closed.child_token();
        table.under_way.insert(id.clone(), (number, end.clone()));
        Some(Flight {
            flights: Arc::clone(self),
            number,
            id: id.clone(),
            end,
        })
    }

    /// Takes a request off the list and ends its exchange; `false` if there is none.
    pub(super) fn take(&self, id: &Id) -> bool {
        let taken = self.table().under_way.remove(id);
        taken.inspect(|(_, end)| end.cancel()).is_some()
    }
}

impl Flight {
    /// Takes it off the list; `false` if somebody else has.
    pub(super) fn claim(&self) -> bool {
        let mut table = self.flights.table();
        let is_there = table
            .under_way
            .get(&self.id)
            .is_some_and(|(number, _)| *number == self.number);
        if is_there {
            table.under_way.remove(&self.id);
        }
        is_there
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.claim();
    }
}
