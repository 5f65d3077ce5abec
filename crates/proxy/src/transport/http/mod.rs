//! A server behind Streamable HTTP, of both eras.
//!
//! ```text
//! send(request) ──► exchange ──► POST ─┬─ JSON ───────────────────────► Sink::message, once
//!                                      ├─ events ─ cut ─ GET (older) ─► … or
//!                                      └─ refused, cut, closed ───────► Sink::failed, once
//! notifications/initialized ──► listening ──► GET (older) ──► Sink::message
//! ```
//!
//! Nothing is ever sent twice. [`Failure::NotSent`] is said only where there was no connection;
//! whatever happens after that is [`Failure::Lost`].

mod answers;
mod body;
mod client;
mod exchange;
mod flights;
mod headers;
mod listening;
mod session;
mod sse;

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use counterfoil_mcp::framing::Id;
use counterfoil_store::BoxFuture;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::{
    client::Sends,
    flights::Flights,
    session::{Known, Session},
};
use crate::wire::{Failure, Kind, Outbound, Sink, Transport};

/// Most requests at once; others wait for room.
const UNDER_WAY_MAX: usize = 256;
/// Longest wait for the server to take a notification or an answer of the client's.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);
/// Longest wait for the end of a session.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);

/// The way to one server.
pub(crate) struct HttpTransport {
    upstream: Arc<Upstream>,
}

struct Upstream {
    client: Arc<dyn Sends>,
    uri: Uri,
    /// The configured ones.
    headers: HeaderMap,
    message_bytes_max: usize,
    sink: Weak<dyn Sink>,
    session: Session,
    flights: Arc<Flights>,
    room: Arc<Semaphore>,
    closed: CancellationToken,
}

impl HttpTransport {
    /// For the server at `url`, with `given` headers on each request. No connection is made yet.
    /// Answers and events are at most `message_bytes_max` bytes long.
    ///
    /// # Errors
    /// [`Failure::NotSent`]: the address or a header is of no use.
    pub(crate) fn start(
        url: &str,
        given: &[(String, String)],
        message_bytes_max: usize,
        sink: Weak<dyn Sink>,
    ) -> Result<Arc<Self>, Failure> {
        let uri = client::endpoint(url)?;
        let client = client::client(client::roots(&uri))?;
        Self::with_client(client, uri, given, message_bytes_max, sink)
    }

    fn with_client(
        client: Arc<dyn Sends>,
        uri: Uri,
        given: &[(String, String)],
        message_bytes_max: usize,
        sink: Weak<dyn Sink>,
    ) -> Result<Arc<Self>, Failure> {
        let upstream = Upstream {
            client,
            uri,
            headers: headers::configured(given)?,
            message_bytes_max,
            sink,
            session: Session::default(),
            flights: Arc::default(),
            room: Arc::new(Semaphore::new(UNDER_WAY_MAX)),
            closed: CancellationToken::new(),
        };
        Ok(Arc::new(Self {
            upstream: Arc::new(upstream),
        }))
    }
}

impl Upstream {
    async fn tell(&self, text: Bytes, related: Option<&Id>) {
        if let Some(sink) = self.sink.upgrade() {
            sink.message(text, related).await;
        }
    }

    fn fail(&self, id: &Id, why: Failure) {
        if let Some(sink) = self.sink.upgrade() {
            sink.failed(id, why);
        }
    }

    async fn post(self: &Arc<Self>, message: Outbound) -> Result<(), Failure> {
        let closed = || Failure::NotSent("the connection is closed".to_owned());
        if self.closed.is_cancelled() {
            return Err(closed());
        }
        let flight = match &message.kind {
            Kind::Request { id, .. } => {
                let flight = self.flights.begin(id, &self.closed);
                Some(flight.ok_or_else(|| {
                    Failure::NotSent("a request with this id is under way".to_owned())
                })?)
            }
            Kind::Notification { .. } | Kind::Response => None,
        };
        let Some(flight) = flight else {
            return tokio::time::timeout(TAKEN_WITHIN, self.notify(message))
                .await
                .unwrap_or_else(|_| {
                    let seconds = TAKEN_WITHIN.as_secs();
                    Err(Failure::Lost(format!(
                        "it was not taken within {seconds} s"
                    )))
                });
        };
        let room = tokio::select! {
            biased;
            () = flight.end.cancelled() => None,
            room = Arc::clone(&self.room).acquire_owned() => room.ok(),
        };
        let Some(room) = room else {
            // Without the flight's claim it was given up, and nobody waits for it.
            return if flight.claim() {
                Err(closed())
            } else {
                Ok(())
            };
        };
        // As of now: the session may have changed while there was no room.
        let known = self.session.known();
        let mut sent = headers::of(&self.headers, &message, &known)?;
        let headers = std::mem::take(&mut sent.headers);
        let request = self.request(Method::POST, headers, message.text);
        tokio::spawn(exchange::run(Arc::clone(self), flight, request, sent, room));
        Ok(())
    }

    fn request(&self, method: Method, headers: HeaderMap, text: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(text));
        *request.method_mut() = method;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = headers;
        request
    }

    /// Sends what has no answer, and waits until it is taken.
    async fn notify(self: &Arc<Self>, message: Outbound) -> Result<(), Failure> {
        let is_initialized = matches!(
            &message.kind,
            Kind::Notification { method } if method == "notifications/initialized"
        );
        let known = self.session.known();
        let mut sent = headers::of(&self.headers, &message, &known)?;
        let headers = std::mem::take(&mut sent.headers);
        let request = self.request(Method::POST, headers, message.text);
        let response = self.client.send(request).await?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && sent.in_session {
            self.session.expire(sent.epoch);
        }
        if !status.is_success() {
            let code = status.as_u16();
            return Err(match code {
                401 | 403 => {
                    let challenge = exchange::challenge(response.headers());
                    Failure::Unauthorized(format!("HTTP {code}{challenge}"))
                }
                _ => Failure::Lost(format!("HTTP {code}")),
            });
        }
        if is_initialized && !sent.is_modern {
            self.listen(&known);
        }
        Ok(())
    }

    fn listen(self: &Arc<Self>, known: &Known) {
        if let Some(end) = self.session.listen(known.epoch, &self.closed) {
            tokio::spawn(listening::run(Arc::clone(self), known.epoch, end));
        }
    }

    async fn close(&self) {
        let session = self.session.close();
        self.closed.cancel();
        let Some(known) = session else {
            return;
        };
        let headers = headers::without_body(&self.headers, &known, None);
        let request = self.request(Method::DELETE, headers, Bytes::new());
        // The server may have none of it (405), or be gone: it finds out by itself in time.
        let _ = tokio::time::timeout(CLOSED_WITHIN, self.client.send(request)).await;
    }
}

impl Transport for HttpTransport {
    fn send(&self, message: Outbound) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(self.upstream.post(message))
    }

    fn forget(&self, id: &Id) {
        self.upstream.flights.take(id);
    }

    fn negotiated(&self, version: &str) {
        self.upstream.session.negotiated(version);
    }

    fn is_expired(&self) -> bool {
        self.upstream.session.is_expired()
    }

    fn renew(&self) {
        self.upstream.session.renew();
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.upstream.close())
    }
}

impl Drop for HttpTransport {
    fn drop(&mut self) {
        self.upstream.closed.cancel();
    }
}
