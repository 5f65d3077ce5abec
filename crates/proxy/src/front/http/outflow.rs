//! The body of a response: what it says and when, and what became of it.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use counterfoil_mcp::{framing::Id, streamable::event};
use futures_util::Stream;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot},
    time::{Instant, Sleep},
};

use super::{
    peer::Said,
    seats::{InUse, Seat, Seats},
    spoken::{self, Verdict},
};
use crate::wire::{Handed, Ticket};

/// A large message is handed over in pieces, so that a connection that ends in the middle of it is
/// seen: the last piece is what counts.
const PIECE_BYTES: usize = 64 * 1024;

/// What is said about the requests in one HTTP request. Dropped before all of them are answered,
/// it tells the session that their client has gone away.
pub(super) struct Outlet {
    said: mpsc::UnboundedReceiver<Said>,
    waiting: Vec<(Ticket, Id)>,
    left: usize,
    seat: InUse,
    _room: Arc<OwnedSemaphorePermit>,
}

impl Outlet {
    pub(super) fn new(
        said: mpsc::UnboundedReceiver<Said>,
        waiting: Vec<(Ticket, Id)>,
        seat: InUse,
        room: Arc<OwnedSemaphorePermit>,
    ) -> Self {
        let left = waiting.len();
        Self {
            said,
            waiting,
            left,
            seat,
            _room: room,
        }
    }

    /// The next thing; `None` when there will be no more.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Said>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let said = std::task::ready!(self.said.poll_recv(context));
        if matches!(said, Some(Said::Answer(..))) {
            self.left -= 1;
        }
        Poll::Ready(said)
    }

    pub(super) async fn next(&mut self) -> Option<Said> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Every request has its answer.
    pub(super) const fn is_complete(&self) -> bool {
        self.left == 0
    }

    /// The ids of the requests, answered or not.
    pub(super) fn ids(&self) -> impl Iterator<Item = &Id> {
        self.waiting.iter().map(|(_, id)| id)
    }

    /// The session ended under the requests.
    pub(super) fn is_cut(&self) -> bool {
        self.seat.seat().peer.is_over()
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        let seat = self.seat.seat();
        for (ticket, _) in &self.waiting {
            // While a runtime shuts down there is nobody left to tell.
            if seat.peer.withdraw(*ticket) && tokio::runtime::Handle::try_current().is_ok() {
                seat.conversation.disconnected(*ticket);
            }
        }
        // A request of the upstream's that was on its way here is asked elsewhere, or refused.
        self.said.close();
        while let Ok(said) = self.said.try_recv() {
            if let Said::Message { text, .. } = said
                && spoken::asked(&text).is_some()
            {
                seat.peer.keep(text);
            }
        }
    }
}

/// The stream of a GET.
pub(super) struct Listening {
    pub(super) number: u64,
    pub(super) said: mpsc::UnboundedReceiver<Said>,
    pub(super) seat: Arc<Seat>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.seat.touch();
        self.seat.peer.unlisten(self.number);
        self.said.close();
        while let Ok(said) = self.said.try_recv() {
            if let Said::Message { text, .. } = said {
                self.seat.peer.keep(text);
            }
        }
    }
}

/// A session that ends again unless its client has heard that it is open.
pub(super) struct Fresh {
    seats: Arc<Seats>,
    name: Option<String>,
}

impl Fresh {
    pub(super) fn new(seats: Arc<Seats>, name: String) -> Self {
        let name = Some(name);
        Self { seats, name }
    }

    fn keep(mut self) {
        self.name = None;
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            self.seats.end(&name);
        }
    }
}

/// Told once the bytes before it are with the HTTP server.
pub(super) type Receipts = Vec<oneshot::Sender<Handed>>;

struct Piece {
    bytes: Bytes,
    receipts: Receipts,
    opens: bool,
}

enum Source {
    Exchange(Outlet),
    Listener(Listening),
}

/// A body. What is in it counts as handed over when the HTTP server has taken the last piece; if it
/// is dropped before, the client is gone.
pub(super) struct Outflow {
    pieces: VecDeque<Piece>,
    source: Option<Source>,
    beat: Option<(Duration, Pin<Box<Sleep>>)>,
    fresh: Option<Fresh>,
}

impl Outflow {
    /// One document.
    pub(super) fn whole(text: &Bytes, receipts: Receipts, fresh: Option<Fresh>) -> Self {
        let mut outflow = Self {
            pieces: VecDeque::new(),
            source: None,
            beat: None,
            fresh,
        };
        outflow.push(text, receipts, true);
        outflow
    }

    /// Events, the first of them known.
    pub(super) fn events(said: Vec<Said>, outlet: Option<Outlet>, fresh: Option<Fresh>) -> Self {
        let mut outflow = Self {
            pieces: VecDeque::new(),
            source: outlet.map(Source::Exchange),
            beat: None,
            fresh,
        };
        for said in said {
            outflow.say(said);
        }
        outflow
    }

    /// What the upstream says by itself.
    pub(super) fn listening(kept: VecDeque<Bytes>, listening: Listening) -> Self {
        let mut outflow = Self {
            pieces: VecDeque::new(),
            source: Some(Source::Listener(listening)),
            beat: None,
            fresh: None,
        };
        for text in kept {
            outflow.message(&text);
        }
        outflow
    }

    /// The same with a comment after each silence of this length, so that both ends see whether
    /// the connection still stands.
    pub(super) fn alive(mut self, every: Duration) -> Self {
        self.beat = Some((every, Box::pin(tokio::time::sleep(every))));
        self
    }

    fn message(&mut self, text: &[u8]) {
        self.push(&event(text), Vec::new(), false);
    }

    fn say(&mut self, said: Said) {
        match said {
            Said::Message { text, .. } => self.message(&text),
            Said::Answer(text, handed) => {
                let opens = self.fresh.is_some() && matches!(Verdict::of(&text), Verdict::Result);
                self.push(&event(&text), vec![handed], opens);
            }
        }
    }

    /// `opens`: with the last byte of it a fresh session is known to its client.
    fn push(&mut self, text: &Bytes, receipts: Receipts, opens: bool) {
        let mut from = 0;
        while text.len() - from > PIECE_BYTES {
            self.pieces.push_back(Piece {
                bytes: text.slice(from..from + PIECE_BYTES),
                receipts: Vec::new(),
                opens: false,
            });
            from += PIECE_BYTES;
        }
        self.pieces.push_back(Piece {
            bytes: text.slice(from..),
            receipts,
            opens,
        });
    }

    fn hand_over(&mut self) -> Option<Bytes> {
        let piece = self.pieces.pop_front()?;
        for receipt in piece.receipts {
            let _ = receipt.send(Handed::Over);
        }
        if piece.opens
            && let Some(fresh) = self.fresh.take()
        {
            fresh.keep();
        }
        if let Some((every, beat)) = &mut self.beat {
            beat.as_mut().reset(Instant::now() + *every);
        }
        Some(piece.bytes)
    }
}

impl Stream for Outflow {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        const COMMENT: &[u8] = b": still here\n\n";
        let this = self.get_mut();
        loop {
            if let Some(bytes) = this.hand_over() {
                return Poll::Ready(Some(Ok(bytes)));
            }
            let said = match &mut this.source {
                None => return Poll::Ready(None),
                Some(Source::Exchange(outlet)) => outlet.poll_next(context),
                Some(Source::Listener(listening)) => listening.said.poll_recv(context),
            };
            match said {
                Poll::Ready(Some(said)) => this.say(said),
                Poll::Ready(None) => {
                    this.source = None;
                    return Poll::Ready(None);
                }
                Poll::Pending => break,
            }
        }
        let Some((every, beat)) = &mut this.beat else {
            return Poll::Pending;
        };
        std::task::ready!(beat.as_mut().poll(context));
        beat.as_mut().reset(Instant::now() + *every);
        Poll::Ready(Some(Ok(Bytes::from_static(COMMENT))))
    }
}
