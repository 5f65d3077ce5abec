use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use counterfoil_core::Code;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, Sleep},
};
use tower::{ServiceExt as _, service_fn};

use crate::{ErrorStatus, Problem, body::Slow};

/// Connections that are told at once that there is no room; more than these are simply closed.
const TURNED_AWAY_MAX: usize = 64;
/// How long one that is turned away has to read why.
const TURNED_AWAY_FOR: Duration = Duration::from_secs(2);
/// Pause after the operating system refused to accept (no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bounds of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Open connections; one more is told 503 and closed. Default 1,024.
    pub connections_max: usize,
    /// Headers of a request. Default 64.
    pub headers_max: usize,
    /// Bytes of a request's head. Default 64 KiB, at least 8 KiB.
    pub head_bytes_max: usize,
    /// How long a request's head may take; on HTTP/1 also how long an idle connection is kept.
    /// Default 30 s.
    pub head_for: Duration,
    /// How long a connection without requests is kept; and one whose client takes nothing of its
    /// answer, twice as long at the most. Default 75 s.
    pub idle_for: Duration,
    /// How long a request's body may take, from when it is first read. Default 30 s.
    pub body_for: Duration,
    /// Requests under way at once on one HTTP/2 connection. Default 100.
    pub streams_max: u32,
    /// How long requests in flight may take to finish after the shutdown. Default 10 s.
    pub drain_for: Duration,
    /// A client of HTTP/1 that sends a whole request and closes its side is still served. If not,
    /// that ends its connection and drops what was under way. Default yes: its going away stops
    /// nothing. No for who has to tell whether an answer still found its client.
    pub half_close: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            headers_max: 64,
            head_bytes_max: 64 * 1024,
            head_for: Duration::from_secs(30),
            idle_for: Duration::from_secs(75),
            body_for: Duration::from_secs(30),
            streams_max: 100,
            drain_for: Duration::from_secs(10),
            half_close: true,
        }
    }
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were cut because their requests took longer than the bound.
    pub cut: usize,
}

/// Serves `router` over HTTP/1.1 and HTTP/2 (without TLS) until `shutdown` completes. Then it
/// accepts no more, lets what is in flight finish within [`Bounds::drain_for`], and closes.
///
/// Each request has a `ConnectInfo<SocketAddr>` among its extensions, and a `ConnectInfo<Instant>`
/// with the (standard library's) time at which its connection was accepted; both together are no
/// other connection's. Guarded handlers live on the
/// engine's tasks and survive their connection: drain the engine afterwards.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    shutdown: impl Future<Output = ()>,
) -> Drained {
    let builder = Arc::new(builder(&bounds));
    let room = Arc::new(Semaphore::new(bounds.connections_max));
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
    let (close, closing) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let accepted = std::time::Instant::now();
        if let Ok(seat) = Arc::clone(&room).try_acquire_owned() {
            let connection = Connection {
                builder: Arc::clone(&builder),
                router: router.clone(),
                bounds,
                closing: closing.clone(),
            };
            connections.spawn(async move {
                connection.run(stream, (peer, accepted)).await;
                drop(seat);
            });
        } else if let Ok(seat) = Arc::clone(&turned_away).try_acquire_owned() {
            tracing::warn!("all connections are taken; one is turned away");
            connections.spawn(async move {
                let _ = tokio::time::timeout(TURNED_AWAY_FOR, turn_away(stream)).await;
                drop(seat);
            });
        }
    }
    drop(listener);
    drop(close);
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(bounds.drain_for, all).await;
    let cut = connections.len();
    connections.shutdown().await;
    Drained { cut }
}

fn builder(bounds: &Bounds) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .half_close(bounds.half_close)
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head_for)
        .max_headers(bounds.headers_max)
        .max_buf_size(bounds.head_bytes_max.max(8 * 1024));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(bounds.head_bytes_max).unwrap_or(u32::MAX))
        .max_concurrent_streams(bounds.streams_max)
        .keep_alive_interval(bounds.idle_for)
        .keep_alive_timeout(bounds.head_for);
    builder
}

/// Whose connection it is, and since when.
type Peer = (SocketAddr, std::time::Instant);

struct Connection {
    builder: Arc<auto::Builder<TokioExecutor>>,
    router: Router,
    bounds: Bounds,
    closing: watch::Receiver<()>,
}

/// What a connection has been asked so far.
#[derive(Default)]
struct Activity {
    requests: AtomicU64,
    in_flight: AtomicUsize,
    /// How often the bodies of its answers were asked for more.
    pulls: AtomicU64,
    /// How many of them wait for the application, not for the client.
    waiting: AtomicUsize,
}

impl Activity {
    /// What has happened so far, and whether something is still to come from this side.
    fn look(&self) -> ((u64, u64), bool) {
        let so_far = (
            self.requests.load(Ordering::Acquire),
            self.pulls.load(Ordering::Acquire),
        );
        let busy =
            self.in_flight.load(Ordering::Acquire) > 0 || self.waiting.load(Ordering::Acquire) > 0;
        (so_far, busy)
    }
}

struct InFlight(Arc<Activity>);

impl InFlight {
    fn begin(activity: &Arc<Activity>) -> Self {
        activity.requests.fetch_add(1, Ordering::AcqRel);
        activity.in_flight.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(activity))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Connection {
    async fn run(self, stream: TcpStream, peer: Peer) {
        let Self {
            builder,
            router,
            bounds,
            mut closing,
        } = self;
        let _ = stream.set_nodelay(true);
        let activity = Arc::new(Activity::default());
        let service = {
            let activity = Arc::clone(&activity);
            service_fn(move |request| {
                let in_flight = InFlight::begin(&activity);
                let router = router.clone();
                async move {
                    let response = answer(router, request, peer, bounds).await;
                    Ok::<_, Infallible>(response.map(|body| Pulled {
                        body,
                        activity: Arc::clone(&in_flight.0),
                        waiting: false,
                    }))
                }
            })
        };
        let connection =
            builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        let mut connection = pin!(connection);
        // Until it is known which protocol it is, nobody else's timer runs.
        let mut look = pin!(tokio::time::sleep(bounds.head_for));
        let (mut seen, mut told) = ((0, 0), false);
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection ended early");
                    }
                    return;
                }
                _ = closing.changed(), if !told => {
                    told = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = look.as_mut() => {
                    let (so_far, busy) = activity.look();
                    let quiet = !busy && so_far == seen;
                    // Asked to end, and even what was answered is not taken.
                    if quiet && told {
                        return;
                    }
                    if quiet {
                        told = true;
                        connection.as_mut().graceful_shutdown();
                    }
                    seen = so_far;
                    look.as_mut().reset(Instant::now() + bounds.idle_for);
                }
            }
        }
    }
}

async fn answer(
    router: Router,
    request: hyper::Request<Incoming>,
    (peer, accepted): Peer,
    bounds: Bounds,
) -> Response {
    // HTTP/2 bounds the bytes of a head and not the number of its lines.
    if request.headers().len() > bounds.headers_max {
        return Problem::new(Code::TooLarge)
            .status(ErrorStatus::HEADERS_TOO_LARGE)
            .detail(format!(
                "A request may have {} headers.",
                bounds.headers_max
            ))
            .into_response();
    }
    let mut request: Request = request.map(|body| {
        Body::new(Timed {
            body,
            limit: bounds.body_for,
            ends: None,
        })
    });
    request.extensions_mut().insert(ConnectInfo(peer));
    request.extensions_mut().insert(ConnectInfo(accepted));
    match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// A request's body that has to arrive in time. What comes too late is an [`std::io::Error`] of
/// the kind `TimedOut`, so that whoever reads it can tell.
struct Timed {
    body: Incoming,
    limit: Duration,
    ends: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for Timed {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let limit = this.limit;
        let ends = this
            .ends
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        match ends.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err(Slow::error()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer, which tells a client that takes nothing from an application that has
/// nothing to give yet.
struct Pulled {
    body: Body,
    activity: Arc<Activity>,
    waiting: bool,
}

impl Pulled {
    fn set_waiting(&mut self, waiting: bool) {
        match (self.waiting, waiting) {
            (false, true) => self.activity.waiting.fetch_add(1, Ordering::AcqRel),
            (true, false) => self.activity.waiting.fetch_sub(1, Ordering::AcqRel),
            (true, true) | (false, false) => return,
        };
        self.waiting = waiting;
    }
}

impl Drop for Pulled {
    fn drop(&mut self) {
        self.set_waiting(false);
    }
}

impl HttpBody for Pulled {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        this.activity.pulls.fetch_add(1, Ordering::AcqRel);
        let frame = Pin::new(&mut this.body).poll_frame(context);
        this.set_waiting(frame.is_pending());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Says in a few bytes that there is no room, and lets the caller read it: closing with unread
/// bytes in the buffer would reset the connection under the answer.
async fn turn_away(mut stream: TcpStream) -> std::io::Result<()> {
    let body = br#"{"type":"/docs/errors/busy","title":"The server is busy; nothing was done","status":503,"detail":"All connections are taken.","code":"busy","retryable":true,"retry_after_ms":1000,"next_action":"Wait, then send the same call with the same key"}"#;
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await?;
    stream.shutdown().await?;
    let mut unread = [0; 4096];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}
