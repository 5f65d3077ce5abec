//! The accept loop and its bounds, over real sockets.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
    http::{StatusCode, Version},
    middleware,
    routing::{get, post as post_to},
};
use bytes::Bytes;
use counterfoil_core::Policy;
use counterfoil_http::{Bounds, Drained, Mutation, Rest, bound_body, catch_panics, serve};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore, oneshot},
    task::JoinHandle,
};

use crate::app::{App, authenticated};

struct Server {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Drained>,
}

impl Server {
    async fn start(router: Router, bounds: Bounds) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = tokio::spawn(serve(listener, router, bounds, async {
            let _ = stopped.await;
        }));
        Self {
            addr,
            stop: Some(stop),
            ended,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    async fn ended(self) -> Drained {
        within(self.ended).await.unwrap()
    }
}

/// No test waits for ever.
async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .expect("in time")
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset after the answer is an end like another.
    let _ = within(stream.read_to_end(&mut answer)).await;
    String::from_utf8(answer).unwrap()
}

async fn exchange(server: &Server, request: &str) -> String {
    let mut stream = server.connect().await;
    stream.write_all(request.as_bytes()).await.unwrap();
    read_all(&mut stream).await
}

fn post_text(key: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /t HTTP/1.1\r\nhost: x\r\nconnection: close\r\nidempotency-key: {key}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

struct Gate {
    started: Arc<Notify>,
    open: Arc<Semaphore>,
}

fn gated(app: &App) -> (Router, Gate) {
    let (started, open) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let gate = Gate {
        started: Arc::clone(&started),
        open: Arc::clone(&open),
    };
    let run = app.counter();
    let handler = move || {
        let (started, open, n) = (Arc::clone(&started), Arc::clone(&open), run());
        async move {
            started.notify_one();
            open.acquire().await.unwrap().forget();
            ([("set-cookie", "a=b")], format!("run {n}"))
        }
    };
    let router = Router::new()
        .route("/t", post_to(handler))
        .route_layer(app.layer_with(Policy::default()))
        .route("/", get(|| async { "here" }));
    (authenticated(router), gate)
}

#[tokio::test]
async fn field_12_a_client_that_closes_its_socket_gets_its_answer_on_retry() {
    let app = App::new();
    let (router, gate) = gated(&app);
    let server = Server::start(router, Bounds::default()).await;
    let mut stream = server.connect().await;
    stream
        .write_all(post_text("k", "{}").as_bytes())
        .await
        .unwrap();
    within(gate.started.notified()).await;
    drop(stream);
    gate.open.add_permits(1);
    let retry = post_text("k", "{}").replace("host: x", "host: x\r\nprefer: wait=10");
    let again = exchange(&server, &retry).await;
    // Field case 7 too: no cookie, and the length fits.
    assert!(again.starts_with("HTTP/1.1 200 OK\r\n"), "{again}");
    assert!(again.contains("idempotent-replayed: true\r\n"));
    assert!(again.contains("content-length: 5\r\n"));
    assert!(!again.contains("set-cookie"));
    assert!(again.ends_with("\r\n\r\nrun 1"));
    assert_eq!(app.runs(), 1);
}

#[tokio::test]
async fn connections_beyond_the_bound_are_told_so() {
    let app = App::new();
    let (router, gate) = gated(&app);
    let bounds = Bounds {
        connections_max: 1,
        ..Bounds::default()
    };
    let server = Server::start(router, bounds).await;
    let mut first = server.connect().await;
    first
        .write_all(post_text("k", "{}").as_bytes())
        .await
        .unwrap();
    within(gate.started.notified()).await;
    let refused = exchange(&server, &post_text("k2", "{}")).await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(refused.contains("retry-after: 1\r\n"));
    let (_, body) = refused.split_once("\r\n\r\n").unwrap();
    let problem: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(problem["code"], "busy");
    gate.open.add_permits(1);
    assert!(read_all(&mut first).await.ends_with("run 1"));
    assert_eq!(app.runs(), 1);
}

#[tokio::test]
async fn heads_are_bounded_in_lines_bytes_and_time() {
    let app = App::new();
    let (router, _gate) = gated(&app);
    let bounds = Bounds {
        headers_max: 10,
        head_bytes_max: 8192,
        head_for: Duration::from_millis(200),
        ..Bounds::default()
    };
    let server = Server::start(router, bounds).await;
    let head =
        |extra: String| format!("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{extra}\r\n");
    let few: String = (0..8).map(|n| format!("x-{n}: 1\r\n")).collect();
    assert!(
        exchange(&server, &head(few))
            .await
            .starts_with("HTTP/1.1 200 ")
    );
    let many: String = (0..9).map(|n| format!("x-{n}: 1\r\n")).collect();
    assert!(
        exchange(&server, &head(many))
            .await
            .starts_with("HTTP/1.1 431 ")
    );
    let large = format!("x-large: {}\r\n", "x".repeat(20_000));
    assert!(
        exchange(&server, &head(large))
            .await
            .starts_with("HTTP/1.1 431 ")
    );
    // Nothing, the first letter that both protocols share, half a head: closed in time.
    for begun in ["", "P", "PRI * HTTP/2", "GET / HTTP/1.1\r\nhost"] {
        let answer = exchange(&server, begun).await;
        assert!(!answer.starts_with("HTTP/1.1 200 "), "{begun}: {answer}");
    }
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_given_up() {
    let app = App::new();
    let run = app.counter();
    let atomic = move |mutation: Mutation| {
        run();
        async move { mutation.body().clone() }
    };
    let router = Router::new().route("/t", post_to(atomic));
    let bounds = Bounds {
        body_for: Duration::from_millis(200),
        ..Bounds::default()
    };
    let server = Server::start(authenticated(router), bounds).await;
    let answer = exchange(
        &server,
        "POST /t HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("\"retryable\":true"));
    assert_eq!(app.runs(), 0);
}

#[tokio::test]
async fn a_shutdown_lets_what_is_in_flight_finish() {
    let app = App::new();
    let (router, gate) = gated(&app);
    let mut server = Server::start(router, Bounds::default()).await;
    let mut idle = server.connect().await;
    let mut stream = server.connect().await;
    stream
        .write_all(post_text("k", "{}").as_bytes())
        .await
        .unwrap();
    within(gate.started.notified()).await;
    server.stop();
    // The idle one is closed at once, the busy one answered.
    assert_eq!(read_all(&mut idle).await, "");
    gate.open.add_permits(1);
    assert!(read_all(&mut stream).await.ends_with("run 1"));
    let addr = server.addr;
    assert_eq!(server.ended().await, Drained { cut: 0 });
    assert!(TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
async fn a_shutdown_ends_within_its_bound() {
    let app = App::new();
    let (router, gate) = gated(&app);
    let bounds = Bounds {
        drain_for: Duration::from_millis(100),
        ..Bounds::default()
    };
    let mut server = Server::start(router, bounds).await;
    let mut stream = server.connect().await;
    stream
        .write_all(post_text("k", "{}").as_bytes())
        .await
        .unwrap();
    within(gate.started.notified()).await;
    server.stop();
    assert_eq!(read_all(&mut stream).await, "");
    assert_eq!(server.ended().await, Drained { cut: 1 });
    // The handler itself goes on, and its result is there.
    gate.open.add_permits(1);
    assert!(within(app.engine.drain(Duration::from_secs(10))).await);
    assert_eq!(
        app.store.receipts()[0].status.state,
        counterfoil_core::State::Succeeded
    );
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let app = App::new();
    let (router, _gate) = gated(&app);
    let bounds = Bounds {
        head_for: Duration::from_secs(1),
        idle_for: Duration::from_millis(200),
        ..Bounds::default()
    };
    let server = Server::start(router, bounds).await;
    let mut stream = server.connect().await;
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(read_all(&mut stream).await.ends_with("here"));
}

/// Says when it is dropped.
struct Dropped(Arc<Notify>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_its_answer_is_cut_off() {
    let gone = Arc::new(Notify::new());
    let guard = Arc::clone(&gone);
    let endless = move || {
        let dropped = Dropped(Arc::clone(&guard));
        let part = Bytes::from(vec![b'x'; 64 * 1024]);
        let parts = futures_util::stream::repeat_with(move || {
            let _held = &dropped;
            Ok::<_, std::io::Error>(part.clone())
        });
        async move { Body::from_stream(parts) }
    };
    let bounds = Bounds {
        idle_for: Duration::from_millis(100),
        head_for: Duration::from_millis(100),
        ..Bounds::default()
    };
    let server = Server::start(Router::new().route("/", get(endless)), bounds).await;
    let mut stream = server.connect().await;
    let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(request).await.unwrap();
    within(gone.notified()).await;
    drop(stream);
}

/// A server whose only answer comes when it is let, with bounds far shorter than the test.
async fn slow_server() -> (Server, oneshot::Sender<()>) {
    let (give, given) = oneshot::channel::<()>();
    let given = Arc::new(std::sync::Mutex::new(Some(given)));
    let slow = move || {
        let given = given.lock().unwrap().take().unwrap();
        let parts = futures_util::stream::once(async move {
            let _ = given.await;
            Ok::<_, std::io::Error>("at last")
        });
        async move { Body::from_stream(parts) }
    };
    let bounds = Bounds {
        idle_for: Duration::from_millis(100),
        head_for: Duration::from_millis(300),
        ..Bounds::default()
    };
    let server = Server::start(Router::new().route("/", get(slow)), bounds).await;
    (server, give)
}

/// That nothing happens has no event to wait for.
const SEVERAL_LOOKS: Duration = Duration::from_millis(900);

#[tokio::test]
async fn an_answer_the_application_is_slow_to_give_is_not_cut_off() {
    let (server, give) = slow_server().await;
    let mut stream = server.connect().await;
    let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    tokio::time::sleep(SEVERAL_LOOKS).await;
    give.send(()).unwrap();
    assert!(read_all(&mut stream).await.contains("at last"));
}

#[tokio::test]
async fn nor_is_it_on_http_2() {
    let (server, give) = slow_server().await;
    let io = TokioIo::new(server.connect().await);
    let (mut client, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::get(format!("http://{}/", server.addr));
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let response = within(client.send_request(request)).await.unwrap();
    tokio::time::sleep(SEVERAL_LOOKS).await;
    give.send(()).unwrap();
    let body = within(response.into_body().collect())
        .await
        .unwrap()
        .to_bytes();
    assert_eq!(&body[..], b"at last");
}

#[tokio::test]
async fn http_2_is_served_and_bounded_too() {
    let router = Router::new().route(
        "/",
        get(
            |ConnectInfo(peer): ConnectInfo<SocketAddr>, request: Request| async move {
                format!("{:?} {}", request.version(), peer.ip())
            },
        ),
    );
    let server = Server::start(router, Bounds::default()).await;
    let io = TokioIo::new(server.connect().await);
    let (mut client, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
        .await
        .unwrap();
    tokio::spawn(connection);
    let mut ask = async |headers: usize| {
        let mut request =
            hyper::Request::get(format!("http://{}/", server.addr)).version(Version::HTTP_2);
        for n in 0..headers {
            request = request.header(format!("x-{n}"), "1");
        }
        let request = request.body(Full::<Bytes>::default()).unwrap();
        let response = within(client.send_request(request)).await.unwrap();
        let status = response.status();
        (
            status,
            response.into_body().collect().await.unwrap().to_bytes(),
        )
    };
    let (status, body) = ask(3).await;
    assert_eq!(
        (status, &body[..]),
        (StatusCode::OK, &b"HTTP/2.0 127.0.0.1"[..])
    );
    let (status, body) = ask(70).await;
    assert_eq!(status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert!(body.starts_with(b"{\"type\":\"/docs/errors/too_large\""));
}

#[tokio::test]
async fn panics_and_large_bodies_are_problems() {
    let router = Router::new()
        .route("/panic", get(|| async { panic_now().to_string() }))
        .route("/echo", post_to(|body: Bytes| async { body }))
        .layer(middleware::from_fn_with_state(10_usize, bound_body))
        .layer(middleware::from_fn(catch_panics));
    let router = counterfoil_http::with_fallbacks(router, &Rest::default());
    let ask = async |request: Request| crate::app::send(&router, request).await;
    let panicked = ask(Request::get("/panic").body(Body::empty()).unwrap()).await;
    assert_eq!(panicked.refusal(), (500, "internal".to_owned()));
    assert!(!String::from_utf8_lossy(&panicked.body).contains("as planned"));
    let echoed = ask(Request::post("/echo")
        .body(Body::from("1234567890"))
        .unwrap())
    .await;
    assert_eq!(&echoed.body[..], b"1234567890");
    let large = ask(Request::post("/echo")
        .body(Body::from("12345678901"))
        .unwrap())
    .await;
    assert_eq!(large.refusal(), (413, "too_large".to_owned()));
    let parts = [Ok::<_, std::io::Error>("123456"), Ok("78901")];
    let streamed = Body::from_stream(futures_util::stream::iter(parts));
    let streamed = ask(Request::post("/echo").body(streamed).unwrap()).await;
    assert_eq!(streamed.status, 413);
}

fn panic_now() -> usize {
    let nothing: [usize; 0] = [];
    nothing.first().copied().expect("as planned")
}

#[tokio::test]
async fn who_asks_for_it_notices_that_a_client_closed_its_side() {
    let (started, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = {
        let (started, dropped) = (Arc::clone(&started), Arc::clone(&dropped));
        move || {
            let (started, dropped) = (Arc::clone(&started), Dropped(Arc::clone(&dropped)));
            async move {
                let _held = dropped;
                started.notify_one();
                std::future::pending::<()>().await;
            }
        }
    };
    let bounds = Bounds {
        half_close: false,
        ..Bounds::default()
    };
    let server = Server::start(Router::new().route("/", get(handler)), bounds).await;
    let mut stream = server.connect().await;
    let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(request).await.unwrap();
    within(started.notified()).await;
    stream.shutdown().await.unwrap();
    within(dropped.notified()).await;
}

#[tokio::test]
async fn requests_say_which_connection_they_came_on() {
    let router = Router::new().route(
        "/",
        get(|request: Request| async move {
            let since = request
                .extensions()
                .get::<ConnectInfo<std::time::Instant>>();
            let ConnectInfo(since) = since.unwrap();
            let ConnectInfo(peer) = request
                .extensions()
                .get::<ConnectInfo<SocketAddr>>()
                .unwrap();
            format!("{peer} {since:?}|")
        }),
    );
    let server = Server::start(router, Bounds::default()).await;
    let twice =
        "GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let mut seen = Vec::new();
    for _ in 0..2 {
        let answers = exchange(&server, twice).await;
        let mut names = answers.split("\r\n\r\n").skip(1);
        let mut name = || names.next().unwrap().split('|').next().unwrap().to_owned();
        let (first, second) = (name(), name());
        assert_eq!(first, second);
        seen.push(first.split_once(' ').unwrap().1.to_owned());
    }
    assert_ne!(seen[0], seen[1]);
}
