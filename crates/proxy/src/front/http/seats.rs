//! The sessions that are open: which, whose, and when each ends.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use counterfoil_core::PrincipalId;
use counterfoil_store::BoxFuture;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::{Bounds, names::Names, peer::Peer};
use crate::{
    front::Conversation,
    session::Incoming,
    wire::{Client, Ticket},
};

/// A conversation, whatever its type.
pub(super) trait Talks: Send + Sync + 'static {
    fn receive(&self, incoming: Incoming) -> BoxFuture<'static, ()>;
    fn disconnected(&self, ticket: Ticket);
    fn end(&self, within: std::time::Duration) -> BoxFuture<'static, ()>;
}

impl<S: Conversation> Talks for Arc<S> {
    fn receive(&self, incoming: Incoming) -> BoxFuture<'static, ()> {
        let session = Self::clone(self);
        Box::pin(async move { Conversation::receive(&session, incoming).await })
    }

    fn disconnected(&self, ticket: Ticket) {
        Conversation::disconnected(self, ticket);
    }

    fn end(&self, within: std::time::Duration) -> BoxFuture<'static, ()> {
        let session = Self::clone(self);
        Box::pin(async move { Conversation::end(&session, within).await })
    }
}

/// Opens a principal's conversation with the upstream.
pub(super) type Begin = Box<dyn Fn(PrincipalId, Arc<dyn Client>) -> Arc<dyn Talks> + Send + Sync>;

/// What a session is found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// The name it was given by `initialize`.
    Named(String),
    /// What a principal asks outside of any session.
    Shared(PrincipalId),
}

/// One session.
pub(super) struct Seat {
    principal: PrincipalId,
    pub(super) peer: Arc<Peer>,
    pub(super) conversation: Arc<dyn Talks>,
    requests: AtomicUsize,
    last: Mutex<Instant>,
}

impl Seat {
    fn last(&self) -> MutexGuard<'_, Instant> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn touch(&self) {
        *self.last() = Instant::now();
    }

    fn is_in_use(&self) -> bool {
        self.requests.load(Ordering::Acquire) > 0
    }

    fn begin(self: &Arc<Self>) -> InUse {
        self.requests.fetch_add(1, Ordering::AcqRel);
        self.touch();
        InUse(Arc::clone(self))
    }
}

/// A session with a request under way: it is not ended to make room, nor for being idle.
pub(super) struct InUse(Arc<Seat>);

impl InUse {
    pub(super) fn seat(&self) -> &Arc<Seat> {
        &self.0
    }
}

impl Clone for InUse {
    fn clone(&self) -> Self {
        self.0.begin()
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.touch();
        self.0.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Why there is no session for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSeat {
    /// All are taken, and each has a request under way.
    Full,
    /// The front is about to end.
    Stopping,
    /// There is none of this name, or it is somebody else's.
    Unknown,
}

#[derive(Default)]
struct Table {
    seats: HashMap<Key, Arc<Seat>>,
    stopping: bool,
}

/// All sessions of a front.
pub(super) struct Seats {
    bounds: Arc<Bounds>,
    names: Arc<Names>,
    begin: Begin,
    table: Mutex<Table>,
    endings: TaskTracker,
}

impl Seats {
    pub(super) fn new(bounds: Arc<Bounds>, names: Arc<Names>, begin: Begin) -> Self {
        Self {
            bounds,
            names,
            begin,
            table: Mutex::default(),
            endings: TaskTracker::new(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new session under a name that nobody can guess.
    pub(super) fn named(&self, principal: &PrincipalId) -> Result<(String, InUse), NoSeat> {
        let name = self.names.session();
        let seat = self.seat(Key::Named(name.clone()), principal)?;
        Ok((name, seat))
    }

    /// The principal's session for what is asked outside of any.
    pub(super) fn shared(&self, principal: &PrincipalId) -> Result<InUse, NoSeat> {
        self.seat(Key::Shared(principal.clone()), principal)
    }

    /// The session of this name, if it is this principal's.
    pub(super) fn find(&self, name: &str, principal: &PrincipalId) -> Option<InUse> {
        let table = self.table();
        let seat = table.seats.get(&Key::Named(name.to_owned()))?;
        (seat.principal == *principal).then(|| seat.begin())
    }

    fn seat(&self, key: Key, principal: &PrincipalId) -> Result<InUse, NoSeat> {
        let mut table = self.table();
        if let Some(seat) = table.seats.get(&key) {
            return Ok(seat.begin());
        }
        if table.stopping {
            return Err(NoSeat::Stopping);
        }
        if table.seats.len() >= self.bounds.sessions_max {
            let idle = table.seats.iter().filter(|(_, seat)| !seat.is_in_use());
            let longest = idle.min_by_key(|(_, seat)| (seat.peer.is_listening(), *seat.last()));
            let Some(key) = longest.map(|(key, _)| key.clone()) else {
                return Err(NoSeat::Full);
            };
            if let Some(seat) = table.seats.remove(&key) {
                tracing::info!("all sessions are taken; the one idle for longest is ended");
                self.finish(seat);
            }
        }
        let shared = matches!(key, Key::Shared(_));
        let peer = Peer::new(Arc::clone(&self.bounds), Arc::clone(&self.names), shared);
        let client = Arc::clone(&peer) as Arc<dyn Client>;
        let conversation = (self.begin)(principal.clone(), client);
        peer.belongs_to(Arc::downgrade(&conversation));
        let seat = Arc::new(Seat {
            principal: principal.clone(),
            peer,
            conversation,
            requests: AtomicUsize::new(0),
            last: Mutex::new(Instant::now()),
        });
        let in_use = seat.begin();
        table.seats.insert(key, seat);
        Ok(in_use)
    }

    /// Ends a session: it is not found any more, and what is under way may finish within the drain.
    pub(super) fn end(&self, name: &str) {
        let seat = self.table().seats.remove(&Key::Named(name.to_owned()));
        if let Some(seat) = seat {
            self.finish(seat);
        }
    }

    fn finish(&self, seat: Arc<Seat>) {
        // Called from drops, too, where no runtime need be left.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        seat.peer.stop_listening();
        let within = self.bounds.drain_for;
        self.endings.spawn_on(
            async move {
                seat.conversation.end(within).await;
                seat.peer.close();
            },
            &runtime,
        );
    }

    /// Ends the sessions that nobody has used for long.
    pub(super) fn sweep(&self) {
        let (now, idle_for) = (Instant::now(), self.bounds.idle_for);
        let mut table = self.table();
        let idle = table.seats.extract_if(|_, seat| {
            !seat.is_in_use() && !seat.peer.is_listening() && now - *seat.last() >= idle_for
        });
        let idle: Vec<Arc<Seat>> = idle.map(|(_, seat)| seat).collect();
        drop(table);
        for seat in idle {
            self.finish(seat);
        }
    }

    /// Opens no session any more, and ends the GET streams, which would hold up the end of the
    /// server. What is asked in the sessions there are is still answered.
    pub(super) fn stop(&self) {
        let mut table = self.table();
        table.stopping = true;
        for seat in table.seats.values() {
            seat.peer.stop_listening();
        }
    }

    /// Ends all sessions and waits for that.
    pub(super) async fn end_all(&self) {
        self.stop();
        let seats: Vec<Arc<Seat>> = self.table().seats.drain().map(|(_, seat)| seat).collect();
        for seat in seats {
            self.finish(seat);
        }
        self.endings.close();
        self.endings.wait().await;
    }
}

#[cfg(test)]
impl Seats {
    pub(super) fn len(&self) -> usize {
        self.table().seats.len()
    }
}
