//! Clients over Streamable HTTP, of both eras: one route, `/mcp`.
//!
//! ```text
//! POST initialize            ──► a session of its own, named in the answer
//! POST with Mcp-Session-Id   ──► that session
//! POST of 2026-07-28, or with no session ──► one session for all of its principal's
//! GET                        ──► what the upstream says by itself, in a session
//! DELETE                     ──► the end of a session
//! ```
//!
//! An answer is one JSON document, unless something about the request comes before it, or nothing
//! for a while: then it is a stream of events.

mod callers;
mod exchange;
mod names;
mod outflow;
mod peer;
mod seats;
mod spoken;
#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse as _, Response},
    routing::any,
};
use counterfoil_core::{Code, PrincipalId};
use counterfoil_engine::Entropy;
use counterfoil_mcp::{
    HttpOptions, InvalidHttpOptions,
    streamable::{Accepts, Guard, content_type, events, for_now, plain, whole},
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tokio::sync::Semaphore;

use self::{
    callers::Callers,
    names::Names,
    outflow::{Listening, Outflow},
    seats::{NoSeat, Seats, Talks},
    spoken::{Era, SESSION, era_of, line},
};
use super::Conversation;
use crate::{InvalidSettings, Settings, wire::Client};

/// Why the HTTP front cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unready {
    /// A client.
    #[error(transparent)]
    Settings(#[from] InvalidSettings),
    /// An entry of the allowed hosts or origins.
    #[error(transparent)]
    Options(#[from] InvalidHttpOptions),
    /// Sessions could not be named so that nobody guesses them.
    #[error("the operating system gives no random bytes")]
    NoEntropy,
}

/// How much, and how long.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Largest body of a request, in bytes.
    message_bytes_max: usize,
    /// How long it may take.
    body_for: Duration,
    /// Sessions that are open.
    sessions_max: usize,
    /// How long one is kept that nobody uses.
    idle_for: Duration,
    /// How often that is looked at.
    sweep_every: Duration,
    /// How long what is under way in a session may take when it is ended.
    drain_for: Duration,
    /// HTTP requests with messages at once.
    requests_max: usize,
    /// How long a client hears nothing before its answer becomes a stream.
    quiet_for: Duration,
    /// How long a stream is silent before it says that it still stands.
    beat_every: Duration,
    /// Messages on the way to one stream.
    room: usize,
    /// How long room on a stream is waited for.
    room_for: Duration,
    /// Messages that wait for the next GET of a session.
    kept_max: usize,
    /// Their bytes.
    kept_bytes_max: usize,
    /// How long a request of the upstream's waits for that.
    kept_for: Duration,
}

impl Bounds {
    fn of(settings: &Settings) -> Self {
        Self {
            message_bytes_max: settings.message_bytes_max,
            body_for: Duration::from_secs(30),
            sessions_max: 256,
            idle_for: Duration::from_secs(30 * 60),
            sweep_every: Duration::from_secs(30),
            drain_for: settings.drain_for,
            requests_max: 1024,
            quiet_for: Duration::from_secs(10),
            beat_every: Duration::from_secs(15),
            room: 16,
            room_for: Duration::from_secs(5),
            kept_max: 64,
            kept_bytes_max: 4 << 20,
            kept_for: Duration::from_secs(30),
        }
    }
}

/// The HTTP front. Served by a server that says of each request which connection it came on
/// (`ConnectInfo<SocketAddr>` and `ConnectInfo<Instant>`), and that notices when a client closes
/// its connection before it has its answer.
#[derive(Clone)]
pub(crate) struct HttpFront {
    shared: Arc<Shared>,
}

struct Shared {
    bounds: Arc<Bounds>,
    guard: Guard,
    callers: Callers,
    names: Arc<Names>,
    seats: Arc<Seats>,
    room: Arc<Semaphore>,
}

impl HttpFront {
    /// A front whose sessions `begin` opens: for a principal, and the client to talk to.
    ///
    /// # Errors
    /// [`Unready`] says what is wrong with the settings.
    pub(crate) fn new<S: Conversation>(
        settings: &Settings,
        entropy: &dyn Entropy,
        begin: impl Fn(PrincipalId, Arc<dyn Client>) -> Arc<S> + Send + Sync + 'static,
    ) -> Result<Self, Unready> {
        Self::with(Bounds::of(settings), settings, entropy, begin)
    }

    fn with<S: Conversation>(
        bounds: Bounds,
        settings: &Settings,
        entropy: &dyn Entropy,
        begin: impl Fn(PrincipalId, Arc<dyn Client>) -> Arc<S> + Send + Sync + 'static,
    ) -> Result<Self, Unready> {
        let listening = &settings.listening;
        let options = HttpOptions {
            allowed_hosts: listening.allowed_hosts.clone(),
            allowed_origins: listening.allowed_origins.clone(),
            ..HttpOptions::default()
        };
        let bounds = Arc::new(bounds);
        let names = Arc::new(Names::new(entropy).ok_or(Unready::NoEntropy)?);
        let begin = move |principal, client| Arc::new(begin(principal, client)) as Arc<dyn Talks>;
        let seats = Seats::new(Arc::clone(&bounds), Arc::clone(&names), Box::new(begin));
        let shared = Shared {
            guard: Guard::new(&options)?,
            callers: Callers::new(listening)?,
            room: Arc::new(Semaphore::new(bounds.requests_max)),
            seats: Arc::new(seats),
            bounds,
            names,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// The routes. Must be called on a runtime: a task of its own ends idle sessions, as long as
    /// the front lives.
    pub(crate) fn router(&self) -> Router {
        let seats = Arc::downgrade(&self.shared.seats);
        tokio::spawn(sweep(seats, self.shared.bounds.sweep_every));
        Router::new()
            .route("/mcp", any(serve))
            .with_state(Arc::clone(&self.shared))
    }

    /// Opens no session any more, and ends the streams that are open until their client leaves.
    /// To be called when the server is told to stop, so that it need not wait for those.
    pub(crate) fn stop(&self) {
        self.shared.seats.stop();
    }

    /// Ends every session; what is under way has [`Settings::drain_for`] to finish. To be called
    /// when the server has stopped.
    pub(crate) async fn end(&self) {
        self.shared.seats.end_all().await;
    }
}

async fn sweep(seats: Weak<Seats>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        match seats.upgrade() {
            Some(seats) => seats.sweep(),
            None => return,
        }
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if let Err(why) = shared.guard.check(request.headers(), request.uri()) {
        return plain(StatusCode::FORBIDDEN, Code::Forbidden, why);
    }
    let principal = match shared.callers.of(request.headers()) {
        Ok(principal) => principal,
        Err(why) => {
            let mut response = plain(
                StatusCode::UNAUTHORIZED,
                Code::Unauthorized,
                &why.to_string(),
            );
            let challenge = HeaderValue::from_static("Bearer");
            let headers = response.headers_mut();
            headers.insert(header::WWW_AUTHENTICATE, challenge);
            return response;
        }
    };
    match (request.method(), era_of(request.headers())) {
        (&Method::POST, _) => shared.post(&principal, request).await,
        (&Method::GET, Era::Legacy) => shared.get(&principal, request.headers()),
        (&Method::DELETE, Era::Legacy) => shared.delete(&principal, request.headers()),
        (_, Era::Legacy) => not_allowed("POST, GET, DELETE", "this endpoint has no such method"),
        (_, Era::Modern) => not_allowed("POST", "this revision takes POST only"),
    }
}

impl Shared {
    async fn post(self: &Arc<Self>, principal: &PrincipalId, request: Request) -> Response {
        if let Err(response) = content_type(request.headers()) {
            return *response;
        }
        let Some(accepts) = Accepts::of(request.headers()) else {
            return not_acceptable("accept application/json, text/event-stream or both");
        };
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            return busy("too many requests are under way");
        };
        let (parts, body) = request.into_parts();
        let bounds = &self.bounds;
        match whole(body, bounds.message_bytes_max, bounds.body_for).await {
            Ok(body) => {
                exchange::Exchange::new(self, principal, &parts, accepts, room)
                    .body(&body)
                    .await
            }
            Err(response) => *response,
        }
    }

    fn get(&self, principal: &PrincipalId, headers: &HeaderMap) -> Response {
        let Some(name) = line(headers, SESSION) else {
            return not_allowed("POST", "there is no stream outside of a session");
        };
        if !Accepts::of(headers).is_some_and(|accepts| accepts.stream) {
            return not_acceptable("accept text/event-stream");
        }
        let Some(in_use) = self.seats.find(name, principal) else {
            return unknown_session();
        };
        let seat = Arc::clone(in_use.seat());
        let Some((number, kept, said)) = seat.peer.listen() else {
            return unavailable("this session is about to end");
        };
        let listening = Listening { number, said, seat };
        let stream = Outflow::listening(kept, listening).alive(self.bounds.beat_every);
        events(Body::from_stream(stream))
    }

    fn delete(&self, principal: &PrincipalId, headers: &HeaderMap) -> Response {
        let Some(name) = line(headers, SESSION) else {
            let why = "name the session to end with Mcp-Session-Id";
            return plain(StatusCode::BAD_REQUEST, Code::MalformedRequest, why);
        };
        if self.seats.find(name, principal).is_none() {
            return unknown_session();
        }
        self.seats.end(name);
        StatusCode::NO_CONTENT.into_response()
    }
}

fn not_allowed(allow: &'static str, why: &str) -> Response {
    let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, Code::MethodNotAllowed, why);
    let allow = HeaderValue::from_static(allow);
    response.headers_mut().insert(header::ALLOW, allow);
    response
}

fn not_acceptable(why: &str) -> Response {
    plain(StatusCode::NOT_ACCEPTABLE, Code::MalformedRequest, why)
}

/// The client starts over with `initialize`.
fn unknown_session() -> Response {
    let why = "there is no such session (any more); start over with `initialize`";
    plain(StatusCode::NOT_FOUND, Code::NotFound, why)
}

const RETRY_AFTER: Duration = Duration::from_secs(1);

fn busy(why: &str) -> Response {
    for_now(
        StatusCode::SERVICE_UNAVAILABLE,
        Code::Busy,
        why,
        RETRY_AFTER,
    )
}

fn unavailable(why: &str) -> Response {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    for_now(status, Code::Unavailable, why, RETRY_AFTER)
}

fn no_seat(why: NoSeat) -> Response {
    match why {
        NoSeat::Full => busy("all sessions are taken, and in each something is under way"),
        NoSeat::Stopping => unavailable("this proxy is about to end"),
        NoSeat::Unknown => unknown_session(),
    }
}
