//! What the parts of the proxy say to each other: a front ([`Client`]), a session, a link, a
//! transport ([`Transport`], [`Sink`]).

use std::sync::Arc;

use bytes::Bytes;
use counterfoil_mcp::framing::Id;
use counterfoil_store::BoxFuture;

/// Names one request of a client while it is under way. Unique in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ticket(pub(crate) u64);

/// Whether an answer reached its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// It was written and flushed. Whether it was read is not known.
    Over,
    /// The client's connection ended before it was written.
    Gone,
}

/// Where the messages for one client go. Implemented by each front.
pub(crate) trait Client: Send + Sync + 'static {
    /// A message that answers nothing: a notification or a request of the server's. It belongs to
    /// the request `about`, or to none. Waits for room within a bound; a notification may be left
    /// out when the client takes nothing for long.
    fn tell(&self, about: Option<Ticket>, text: Bytes) -> BoxFuture<'_, ()>;

    /// The answer of a request. Never left out, and completes when the transport has taken it (or
    /// the client is gone). Nothing more is told about the ticket afterwards.
    fn answer(&self, ticket: Ticket, text: Bytes) -> BoxFuture<'_, Handed>;

    /// The request was cancelled by the client: nothing more is said about it, and whatever waits
    /// for its answer ends.
    fn silence(&self, ticket: Ticket);
}

/// What a client's HTTP request said beside its body; for messages from an HTTP front.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HttpFacts {
    /// `Mcp-Method`, `Mcp-Name`, `Mcp-Param-*` and `MCP-Protocol-Version` as they came, names in
    /// lower case. Nothing else: credentials stay here.
    pub(crate) headers: Vec<(String, String)>,
}

/// What a message is, for a transport that must say so outside of the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A request under this id.
    Request {
        /// As it goes to the upstream.
        id: Id,
        /// Its method.
        method: String,
        /// `params.name`, or `params.uri` of `resources/read`, or `params.taskId` of `tasks/*`.
        name: Option<String>,
    },
    /// A notification.
    Notification {
        /// Its method.
        method: String,
    },
    /// An answer to a request of the upstream's.
    Response,
}

/// One message to the upstream.
#[derive(Clone, Debug)]
pub(crate) struct Outbound {
    /// The message, one line of JSON.
    pub(crate) text: Bytes,
    /// What it is.
    pub(crate) kind: Kind,
    /// The revision it speaks, as far as is known: from `_meta` of a request of 2026-07-28, or as
    /// negotiated.
    pub(crate) version: Option<String>,
    /// From the client's HTTP request, if it came by one.
    pub(crate) http: Option<Arc<HttpFacts>>,
    /// Headers for this message alone (a provider key, `Mcp-Param-*` made from its arguments).
    pub(crate) headers: Vec<(String, String)>,
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// Not one byte was sent on any hop (refused connection, DNS, TLS, no process).
    #[error("nothing was sent: {0}")]
    NotSent(String),
    /// The upstream refused the credentials before it looked at the request (HTTP 401 or 403).
    #[error("the upstream refused the credentials: {0}")]
    Unauthorized(String),
    /// It may have been sent, and no answer came.
    #[error("the exchange failed: {0}")]
    Lost(String),
}

/// A way to the upstream: a child's pipes, or HTTP.
pub(crate) trait Transport: Send + Sync + 'static {
    /// Sends a message. A request's answer, or that there will be none ([`Sink::failed`]), comes
    /// through the sink, exactly once; an error here takes the place of that. Waits for the
    /// upstream to take it, not for an answer.
    fn send(&self, message: Outbound) -> BoxFuture<'_, Result<(), Failure>>;

    /// Gives up waiting for the answer to a request: with HTTP its stream is closed. With pipes
    /// nothing happens. [`Sink::failed`] need not follow.
    fn forget(&self, id: &Id);

    /// The revision that the handshake agreed on, for what follows it.
    fn negotiated(&self, version: &str) {
        let _ = version;
    }

    /// The upstream has ended the session of the handshake (HTTP 404): it must be made again.
    fn is_expired(&self) -> bool {
        false
    }

    /// Forgets the session, before the handshake is repeated.
    fn renew(&self) {}

    /// Ends the connection in order: a child's input is closed, then it is waited for, terminated,
    /// killed, each within a bound; a session is ended with DELETE.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Where what the upstream says goes. Implemented by the link.
pub(crate) trait Sink: Send + Sync + 'static {
    /// A message. `related` is the request whose stream it came on, where the transport knows.
    fn message<'a>(&'a self, text: Bytes, related: Option<&'a Id>) -> BoxFuture<'a, ()>;

    /// There will be no answer to this request.
    fn failed(&self, id: &Id, why: Failure);

    /// The upstream is gone, with everything it was asked. The text says why, for people.
    fn closed(&self, why: &str);
}
