//! A client on a pair of streams: a message a line.

mod standard;
#[cfg(test)]
mod tests;

pub(crate) use standard::{Streams, standard};

use std::{
    collections::{HashSet, VecDeque},
    future::ready,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use counterfoil_mcp::framing::{self, FramingLimits, Message, RpcError, codes, error_text};
use counterfoil_store::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
    time::timeout,
};

use super::Conversation;
use crate::{
    keyless::Channel,
    lines::{self, Bounds, Entry, Line, Lines, Outbox, Refused, Seldom, Shape, Tag},
    session::Incoming,
    wire::{Client, Handed, Ticket},
};

/// Cancelled requests that are remembered.
const SILENCED_MAX: usize = 4096;
/// A request of the server's is not left out where a notification is: it would be waited for.
/// Beyond so many times the bounds it is, too.
const REQUESTS_WITHIN: usize = 2;

/// How a client is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Longest line it may write, in bytes; a longer one is refused.
    pub(crate) message_bytes_max: usize,
    /// What may wait until it reads; answers, which wait beside that, not counted.
    pub(crate) waiting: Bounds,
    /// How long calls under way may take once it has closed its stream.
    pub(crate) drain_for: Duration,
    /// How long it may take then to read what waits for it. Default 5 s.
    pub(crate) flush_within: Duration,
}

impl Limits {
    /// The defaults.
    pub(crate) fn new(message_bytes_max: usize, drain_for: Duration) -> Self {
        Self {
            message_bytes_max,
            waiting: Bounds::default(),
            drain_for,
            flush_within: Duration::from_secs(5),
        }
    }
}

/// Serves one client until its stream ends, it takes no more, or `stop` completes. What is under
/// way is then given [`Limits::drain_for`] to be answered, and the client [`Limits::flush_within`]
/// to read it. `session` makes its conversation; `channel` is the name of this connection.
///
/// A line that is no message is answered with a JSON-RPC error and goes no further.
pub(crate) async fn serve<S, R, W>(
    session: impl FnOnce(Arc<dyn Client>) -> Arc<S>,
    channel: Channel,
    (reader, writer): (R, W),
    limits: Limits,
    stop: impl Future<Output = ()>,
) where
    S: Conversation,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (outbox, drain) = Outbox::new(writer, limits.waiting);
    let client = Arc::new(Stdio {
        outbox,
        silenced: Mutex::default(),
        left_out: Seldom::default(),
    });
    tokio::spawn(drain.run());
    let session = session(Arc::clone(&client) as Arc<dyn Client>);
    let over = async {
        tokio::select! {
            () = client.outbox.ended() => {}
            () = stop => {}
        }
    };
    let lines = Lines::new(reader, limits.message_bytes_max);
    receive_all(&session, &client, channel, lines, limits, over).await;
    session.end(limits.drain_for).await;
    client.outbox.close();
    if timeout(limits.flush_within, client.outbox.ended())
        .await
        .is_err()
    {
        tracing::warn!("the client did not read everything before it was given up");
        client.outbox.abort();
        client.outbox.ended().await;
    }
}

async fn receive_all<S: Conversation, R: AsyncRead + Unpin>(
    session: &Arc<S>,
    client: &Stdio,
    channel: Channel,
    mut lines: Lines<R>,
    limits: Limits,
    over: impl Future<Output = ()>,
) {
    tokio::pin!(over);
    let mut tickets = 0;
    loop {
        while let Some(line) = lines.at_hand() {
            tickets += 1;
            let receive = async {
                match acceptable(line, limits.message_bytes_max) {
                    Ok(text) => {
                        let ticket = Ticket(tickets);
                        let incoming = Incoming {
                            text,
                            ticket,
                            channel,
                            http: None,
                        };
                        session.receive(incoming).await;
                    }
                    Err(refusal) => client.tell(None, refusal).await,
                }
            };
            tokio::pin!(receive);
            tokio::select! {
                biased;
                () = &mut receive => {}
                () = &mut over => {
                    // Not left in the middle at once: it may be about to send something.
                    let _ = timeout(limits.drain_for, receive).await;
                    return;
                }
            }
        }
        tokio::select! {
            biased;
            more = lines.fill() => match more {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(%error, "the client's stream cannot be read");
                    return;
                }
            },
            () = &mut over => return,
        }
    }
}

/// The text of a line, or what is answered to it.
fn acceptable(line: Line, message_bytes_max: usize) -> Result<Bytes, Bytes> {
    let refusal = match line {
        Line::Text(text) => match Shape::of(&text) {
            Shape::Message => return Ok(text),
            Shape::Scalar => {
                let what = "Invalid request: a message is a JSON object";
                RpcError::new(codes::INVALID_REQUEST, what)
            }
            Shape::Other => RpcError::new(codes::PARSE, "Parse error: not JSON"),
        },
        Line::TooLong => {
            let what = format!("Invalid request: larger than {message_bytes_max} bytes");
            RpcError::new(codes::INVALID_REQUEST, what)
        }
    };
    Err(error_text(None, &refusal))
}

/// Told when an answer was flushed; dropped when it cannot be.
type Report = Option<oneshot::Sender<()>>;

impl Tag for Report {
    fn flushed(self) {
        if let Some(report) = self {
            // Nobody need be waiting for it.
            let _ = report.send(());
        }
    }
}

/// The client at the other end.
struct Stdio {
    outbox: Outbox<Report>,
    silenced: Mutex<Silenced>,
    left_out: Seldom,
}

/// The tickets about which nothing more is said, in the order in which that was said.
#[derive(Default)]
struct Silenced {
    tickets: HashSet<Ticket>,
    order: VecDeque<Ticket>,
}

impl Stdio {
    fn is_silenced(&self, ticket: Ticket) -> bool {
        let silenced = self.silenced.lock().unwrap_or_else(PoisonError::into_inner);
        silenced.tickets.contains(&ticket)
    }

    /// There was no room for longer than one waits.
    fn without_room(&self, entry: Entry<Report>) {
        let is_request = matches!(
            framing::read(
                &entry.text,
                FramingLimits {
                    message_bytes_max: usize::MAX,
                    ..FramingLimits::default()
                }
            ),
            Ok(framing::Incoming::Single(Message::Request(_)))
        );
        if is_request && self.outbox.put_within(REQUESTS_WITHIN, entry).is_ok() {
            return;
        }
        if let Some(messages) = self.left_out.again() {
            tracing::warn!(
                messages,
                "the client does not read; notifications were left out"
            );
        }
    }
}

impl Client for Stdio {
    fn tell(&self, about: Option<Ticket>, text: Bytes) -> BoxFuture<'_, ()> {
        if about.is_some_and(|ticket| self.is_silenced(ticket)) {
            return Box::pin(ready(()));
        }
        let text = lines::one_line(text);
        // Taken at once if there is room, so that messages keep the order of the calls.
        match self.outbox.put_within(1, Entry { text, tag: None }) {
            Ok(()) => Box::pin(ready(())),
            Err(left) => Box::pin(async move {
                match left.why {
                    Refused::Ended => {}
                    Refused::Full => match self.outbox.offer(left.entry).await {
                        Err(left) if left.why == Refused::Full => self.without_room(left.entry),
                        Ok(()) | Err(_) => {}
                    },
                }
            }),
        }
    }

    /// The answer is queued by the call itself: the future only says what became of it.
    fn answer(&self, ticket: Ticket, text: Bytes) -> BoxFuture<'_, Handed> {
        if self.is_silenced(ticket) {
            return Box::pin(ready(Handed::Gone));
        }
        let (report, flushed) = oneshot::channel();
        let entry = Entry {
            text: lines::one_line(text),
            tag: Some(report),
        };
        if self.outbox.put(entry).is_err() {
            return Box::pin(ready(Handed::Gone));
        }
        Box::pin(async move {
            match flushed.await {
                Ok(()) => Handed::Over,
                Err(_) => Handed::Gone,
            }
        })
    }

    fn silence(&self, ticket: Ticket) {
        let mut silenced = self.silenced.lock().unwrap_or_else(PoisonError::into_inner);
        if !silenced.tickets.insert(ticket) {
            return;
        }
        silenced.order.push_back(ticket);
        if silenced.order.len() > SILENCED_MAX
            && let Some(oldest) = silenced.order.pop_front()
        {
            silenced.tickets.remove(&oldest);
        }
    }
}
