//! The client's side of one session: where what is said to it goes.

use std::{
    collections::{BTreeMap, VecDeque},
    future::ready,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use counterfoil_mcp::framing::{Id, RpcError, codes, error_text};
use counterfoil_store::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::{Bounds, names::Names, seats::Talks, spoken};
use crate::{
    session::Incoming,
    wire::{Client, Handed, Ticket},
};

/// One thing said to a client.
pub(super) enum Said {
    /// What answers nothing, and the room that it takes.
    Message {
        text: Bytes,
        _room: OwnedSemaphorePermit,
    },
    /// An answer, and where it is told what became of it. Dropped untold: the client is gone.
    Answer(Bytes, oneshot::Sender<Handed>),
}

/// A stream to the client that is open, or may become one.
#[derive(Clone)]
struct Way {
    /// Answers need no room: there is one to a request, and it is never left out.
    tell: mpsc::UnboundedSender<Said>,
    room: Arc<Semaphore>,
    /// The last message found no room for as long as one waits.
    stuck: Arc<AtomicBool>,
}

impl Way {
    fn new(room: usize) -> (Self, mpsc::UnboundedReceiver<Said>) {
        let (tell, said) = mpsc::unbounded_channel();
        let way = Self {
            tell,
            room: Arc::new(Semaphore::new(room)),
            stuck: Arc::new(AtomicBool::new(false)),
        };
        (way, said)
    }

    fn put(&self, text: Bytes, room: OwnedSemaphorePermit) -> Result<(), Bytes> {
        self.stuck.store(false, Ordering::Relaxed);
        match self.tell.send(Said::Message { text, _room: room }) {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendError(Said::Message { text, .. } | Said::Answer(text, _))) => {
                Err(text)
            }
        }
    }

    /// Says it if there is room now; gives it back if not.
    fn say_now(&self, text: Bytes) -> Result<(), Bytes> {
        match Arc::clone(&self.room).try_acquire_owned() {
            Ok(room) => self.put(text, room),
            Err(_) => Err(text),
        }
    }

    /// Gives the message back if it could not be said. One that is stuck is waited for once, so
    /// that it does not hold the others up at each message.
    async fn say(&self, text: Bytes, bounds: &Bounds) -> Result<(), Bytes> {
        let text = match self.say_now(text) {
            Ok(()) => return Ok(()),
            Err(text) => text,
        };
        if self.tell.is_closed() || self.stuck.load(Ordering::Relaxed) {
            return Err(text);
        }
        let room = tokio::select! {
            () = self.tell.closed() => return Err(text),
            room = Arc::clone(&self.room).acquire_owned() => room.ok(),
            () = tokio::time::sleep(bounds.room_for) => None,
        };
        match room {
            Some(room) => self.put(text, room),
            None => {
                self.stuck.store(true, Ordering::Relaxed);
                Err(text)
            }
        }
    }
}

/// A request whose client waits.
struct Exchange {
    way: Way,
    /// Its answer may become a stream.
    streams: bool,
    /// That may carry what does not belong to it.
    for_others: bool,
}

/// The stream of a GET.
struct Listener {
    number: u64,
    way: Way,
}

/// What waits for the next GET.
struct Kept {
    number: u64,
    text: Bytes,
}

#[derive(Default)]
struct Open {
    exchanges: BTreeMap<Ticket, Exchange>,
    listener: Option<Listener>,
    kept: VecDeque<Kept>,
    kept_bytes: usize,
    /// No stream is opened any more.
    closing: bool,
    over: bool,
}

/// How the answers of the requests in one HTTP request may look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// As a stream.
    pub(super) streams: bool,
    /// And that may carry what does not belong to them.
    pub(super) for_others: bool,
}

/// One client as its session sees it.
pub(super) struct Peer {
    me: Weak<Self>,
    bounds: Arc<Bounds>,
    names: Arc<Names>,
    /// Several clients of one principal share it, and none of them can open a GET stream.
    shared: bool,
    next: AtomicU64,
    conversation: OnceLock<Weak<dyn Talks>>,
    open: Mutex<Open>,
}

impl Peer {
    pub(super) fn new(bounds: Arc<Bounds>, names: Arc<Names>, shared: bool) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            bounds,
            names,
            shared,
            next: AtomicU64::new(0),
            conversation: OnceLock::new(),
            open: Mutex::default(),
        })
    }

    /// Whom to tell of requests of the upstream's that nobody will answer.
    pub(super) fn belongs_to(&self, conversation: Weak<dyn Talks>) {
        // It is set once, by whoever made both.
        let _ = self.conversation.set(conversation);
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A ticket for a message that wants no answer.
    pub(super) fn ticket(&self) -> Ticket {
        Ticket(self.number())
    }

    /// Waits for the answers of so many requests, all of them on one way.
    pub(super) fn expect(
        &self,
        requests: usize,
        form: Form,
    ) -> (Vec<Ticket>, mpsc::UnboundedReceiver<Said>) {
        let (way, said) = Way::new(self.bounds.room);
        let tickets: Vec<Ticket> = (0..requests).map(|_| self.ticket()).collect();
        let mut open = self.open();
        for ticket in &tickets {
            let exchange = Exchange {
                way: way.clone(),
                streams: form.streams,
                for_others: form.streams && form.for_others,
            };
            open.exchanges.insert(*ticket, exchange);
        }
        (tickets, said)
    }

    /// Nobody waits for this answer any more. Whether somebody did.
    pub(super) fn withdraw(&self, ticket: Ticket) -> bool {
        self.open().exchanges.remove(&ticket).is_some()
    }

    /// Opens the GET stream; one that is open ends. What was kept comes first. `None` if the
    /// session is about to end.
    pub(super) fn listen(&self) -> Option<(u64, VecDeque<Bytes>, mpsc::UnboundedReceiver<Said>)> {
        let (way, said) = Way::new(self.bounds.room);
        let number = self.number();
        let mut open = self.open();
        if open.closing {
            return None;
        }
        open.listener = Some(Listener { number, way });
        open.kept_bytes = 0;
        let kept = open.kept.drain(..).map(|kept| kept.text).collect();
        Some((number, kept, said))
    }

    /// The GET stream ended.
    pub(super) fn unlisten(&self, number: u64) {
        let mut open = self.open();
        if open.listener.as_ref().map(|listener| listener.number) == Some(number) {
            open.listener = None;
        }
    }

    pub(super) fn is_listening(&self) -> bool {
        self.open().listener.is_some()
    }

    /// Ends the GET stream, and opens none any more.
    pub(super) fn stop_listening(&self) {
        let mut open = self.open();
        open.closing = true;
        open.listener = None;
    }

    /// The session is over: who still waits is told so.
    pub(super) fn close(&self) {
        let mut open = self.open();
        open.closing = true;
        open.over = true;
        open.listener = None;
        open.exchanges.clear();
        open.kept.clear();
    }

    pub(super) fn is_over(&self) -> bool {
        self.open().over
    }

    /// Where a message about nothing in particular may go, the best first.
    fn ways(&self) -> Vec<Way> {
        let open = self.open();
        let listener = open.listener.as_ref().map(|listener| listener.way.clone());
        let mut exchanges = open.exchanges.values().rev();
        let newest = exchanges.find(|exchange| exchange.for_others);
        let newest = newest.map(|exchange| exchange.way.clone());
        listener.into_iter().chain(newest).collect()
    }

    fn way_of(&self, ticket: Ticket) -> Option<Way> {
        let open = self.open();
        let exchange = open.exchanges.get(&ticket)?;
        exchange.streams.then(|| exchange.way.clone())
    }

    async fn told(&self, about: Option<Ticket>, mut text: Bytes) {
        if let Some(ticket) = about {
            if let Some(way) = self.way_of(ticket) {
                match way.say(text, &self.bounds).await {
                    Ok(()) => return,
                    Err(back) => text = back,
                }
            }
            // Without the request it belongs to, a notification is worth nothing.
            if spoken::asked(&text).is_none() {
                return;
            }
        }
        for way in self.ways() {
            match way.say(text, &self.bounds).await {
                Ok(()) => return,
                Err(back) => text = back,
            }
        }
        self.keep(text);
    }

    /// Keeps a message for the next GET; a request not for long, because the upstream waits.
    pub(super) fn keep(&self, text: Bytes) {
        let request = spoken::asked(&text);
        let number = self.number();
        let kept = {
            let mut open = self.open();
            let fits = open.kept.len() < self.bounds.kept_max
                && open.kept_bytes + text.len() <= self.bounds.kept_bytes_max
                && !open.over
                && !self.shared;
            if fits {
                open.kept_bytes += text.len();
                open.kept.push_back(Kept { number, text });
            }
            fits
        };
        match request {
            None if kept => {}
            None => tracing::debug!("a notification was left out: no stream to its client is open"),
            Some(id) if kept => self.refuse_later(number, id),
            Some(id) => self.refuse(&id),
        }
    }

    fn refuse_later(&self, number: u64, id: Id) {
        let (me, kept_for) = (Weak::clone(&self.me), self.bounds.kept_for);
        spawn(async move {
            tokio::time::sleep(kept_for).await;
            let Some(peer) = me.upgrade() else { return };
            let mut open = peer.open();
            let Some(place) = open.kept.iter().position(|kept| kept.number == number) else {
                return;
            };
            if let Some(kept) = open.kept.remove(place) {
                open.kept_bytes = open.kept_bytes.saturating_sub(kept.text.len());
            }
            drop(open);
            peer.refuse(&id);
        });
    }

    /// Answers a request of the upstream's in the place of a client that cannot be reached.
    fn refuse(&self, id: &Id) {
        const WHY: &str = "The client could not be asked: it has no stream open";
        let Some(conversation) = self.conversation.get().and_then(Weak::upgrade) else {
            return;
        };
        let incoming = Incoming {
            text: error_text(Some(id), &RpcError::new(codes::INTERNAL, WHY)),
            ticket: self.ticket(),
            channel: self.names.nobody(),
            http: None,
        };
        spawn(conversation.receive(incoming));
    }
}

/// Drops happen while a runtime shuts down, too.
fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
    }
}

impl Client for Peer {
    /// What finds room goes by the call itself, so that messages keep the order of the calls.
    fn tell(&self, about: Option<Ticket>, text: Bytes) -> BoxFuture<'_, ()> {
        let way = match about {
            Some(ticket) => self.way_of(ticket),
            None => self.ways().into_iter().next(),
        };
        let text = match way {
            None => text,
            Some(way) => match way.say_now(text) {
                Ok(()) => return Box::pin(ready(())),
                Err(text) => text,
            },
        };
        Box::pin(self.told(about, text))
    }

    /// The answer is said by the call itself: the future only tells what became of it.
    fn answer(&self, ticket: Ticket, text: Bytes) -> BoxFuture<'_, Handed> {
        let Some(exchange) = self.open().exchanges.remove(&ticket) else {
            return Box::pin(ready(Handed::Gone));
        };
        let (handed, became) = oneshot::channel();
        if exchange.way.tell.send(Said::Answer(text, handed)).is_err() {
            return Box::pin(ready(Handed::Gone));
        }
        Box::pin(async move { became.await.unwrap_or(Handed::Gone) })
    }

    fn silence(&self, ticket: Ticket) {
        self.withdraw(ticket);
    }
}
