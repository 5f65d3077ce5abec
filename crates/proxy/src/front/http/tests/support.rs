use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use counterfoil_core::PrincipalId;
use counterfoil_engine::SystemEntropy;
use counterfoil_http::Drained;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming as Received;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

use super::super::{Bounds, HttpFront, Unready};
use crate::{
    Listening, Settings, Target,
    front::Conversation,
    keyless::Channel,
    session::Incoming,
    wire::{Client, Handed, Ticket},
};

pub(super) const MODERN: &str = "2026-07-28";
/// No event of a test takes this long.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What became of a conversation.
pub(super) enum Event {
    Received(Message),
    Disconnected(Ticket),
    Ended(usize),
}

/// A message that a conversation was handed.
pub(super) struct Message {
    pub(super) conversation: usize,
    pub(super) principal: String,
    pub(super) text: Bytes,
    pub(super) ticket: Ticket,
    pub(super) channel: Channel,
    pub(super) headers: Vec<(String, String)>,
    pub(super) client: Arc<dyn Client>,
}

impl Message {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.text).unwrap()
    }

    /// Answers with this, and says what became of that.
    pub(super) async fn answer_text(&self, text: impl Into<Bytes>) -> Handed {
        let answer = self.client.answer(self.ticket, text.into());
        timeout(PATIENCE, answer).await.unwrap()
    }

    pub(super) async fn result(&self, result: Value) -> Handed {
        let answer = json!({"jsonrpc": "2.0", "id": self.json()["id"], "result": result});
        self.answer_text(answer.to_string()).await
    }

    pub(super) async fn error(&self, code: i64) -> Handed {
        let error = json!({"code": code, "message": "as the test says"});
        let answer = json!({"jsonrpc": "2.0", "id": self.json()["id"], "error": error});
        self.answer_text(answer.to_string()).await
    }

    /// Says something that belongs to this message.
    pub(super) async fn tell(&self, text: &str) {
        let about = Some(self.ticket);
        self.client.tell(about, Bytes::from(text.to_owned())).await;
    }

    /// Says something that belongs to none.
    pub(super) async fn tell_all(&self, text: &str) {
        self.client.tell(None, Bytes::from(text.to_owned())).await;
    }
}

/// A conversation that leaves everything to the test.
struct Fake {
    number: usize,
    principal: String,
    client: Arc<dyn Client>,
    events: mpsc::UnboundedSender<Event>,
    may_end: Arc<Semaphore>,
}

impl Conversation for Fake {
    async fn receive(self: &Arc<Self>, incoming: Incoming) {
        let message = Message {
            conversation: self.number,
            principal: self.principal.clone(),
            text: incoming.text,
            ticket: incoming.ticket,
            channel: incoming.channel,
            headers: incoming.http.map(|h| h.headers.clone()).unwrap_or_default(),
            client: Arc::clone(&self.client),
        };
        let _ = self.events.send(Event::Received(message));
    }

    fn disconnected(self: &Arc<Self>, ticket: Ticket) {
        let _ = self.events.send(Event::Disconnected(ticket));
    }

    async fn end(self: &Arc<Self>, _: Duration) {
        let _ = self.events.send(Event::Ended(self.number));
        let _ = self.may_end.acquire().await.unwrap();
    }
}

pub(super) fn settings() -> Settings {
    Settings::new(Target::Url {
        url: "http://localhost:1/mcp".to_owned(),
        headers: Vec::new(),
    })
}

/// A front on a port of its own.
pub(super) struct Proxy {
    pub(super) front: HttpFront,
    pub(super) address: SocketAddr,
    events: mpsc::UnboundedReceiver<Event>,
    /// Without a permit, conversations take for ever to end.
    pub(super) may_end: Arc<Semaphore>,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<Drained>,
}

impl Proxy {
    pub(super) async fn start() -> Self {
        Self::with(settings(), |_| {}).await
    }

    pub(super) async fn bounded(change: impl FnOnce(&mut Bounds)) -> Self {
        Self::with(settings(), change).await
    }

    pub(super) async fn clients(clients: &[(&str, &str)]) -> Self {
        let owned = |(name, token): &(&str, &str)| ((*name).to_owned(), (*token).to_owned());
        let mut settings = settings();
        settings.listening = Listening {
            clients: clients.iter().map(owned).collect(),
            ..Listening::default()
        };
        Self::with(settings, |_| {}).await
    }

    pub(super) async fn with(settings: Settings, change: impl FnOnce(&mut Bounds)) -> Self {
        let (front, events, may_end) = front(&settings, change).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let bounds = counterfoil_http::Bounds {
            half_close: false,
            ..counterfoil_http::Bounds::default()
        };
        let router = front.router();
        let served = tokio::spawn(counterfoil_http::serve(listener, router, bounds, async {
            let _ = stopped.await;
        }));
        Self {
            front,
            address,
            events,
            may_end,
            stop: Some(stop),
            served,
        }
    }

    /// What happens next.
    pub(super) async fn event(&mut self) -> Event {
        let event = timeout(PATIENCE, self.events.recv()).await;
        event.expect("nothing happened").unwrap()
    }

    pub(super) async fn message(&mut self) -> Message {
        match self.event().await {
            Event::Received(message) => message,
            Event::Disconnected(ticket) => panic!("{ticket:?} was left"),
            Event::Ended(number) => panic!("conversation {number} ended"),
        }
    }

    pub(super) async fn disconnected(&mut self) -> Ticket {
        match self.event().await {
            Event::Disconnected(ticket) => ticket,
            Event::Received(message) => panic!("received {}", message.json()),
            Event::Ended(number) => panic!("conversation {number} ended"),
        }
    }

    pub(super) async fn ended(&mut self) -> usize {
        match self.event().await {
            Event::Ended(number) => number,
            Event::Received(message) => panic!("received {}", message.json()),
            Event::Disconnected(ticket) => panic!("{ticket:?} was left"),
        }
    }

    /// Nothing has happened that was not asked for.
    pub(super) fn assert_quiet(&mut self) {
        assert!(self.events.try_recv().is_err());
    }

    pub(super) async fn connect(&self) -> Connection {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        let task = tokio::spawn(async move {
            let _ = connection.await;
        });
        Connection { sender, task }
    }

    /// A connection that speaks HTTP/2.
    pub(super) async fn connect_h2(&self) -> hyper::client::conn::http2::SendRequest<Body> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let io = TokioIo::new(stream);
        let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
            .await
            .unwrap();
        tokio::spawn(connection);
        sender
    }

    /// Opens a session and says its name and its number.
    pub(super) async fn initialize(&mut self, connection: &mut Connection) -> (String, usize) {
        let pending = connection.send(post(&[], &request(1, "initialize", json!({}))));
        let message = self.message().await;
        assert_eq!(
            message.result(json!({"capabilities": {}})).await,
            Handed::Over
        );
        let got = pending.got().await;
        let name = got.headers["mcp-session-id"].to_str().unwrap().to_owned();
        (name, message.conversation)
    }

    /// Stops the server, and says how it ended.
    pub(super) async fn stop(&mut self) -> Drained {
        let _ = self.stop.take().unwrap().send(());
        timeout(PATIENCE, &mut self.served).await.unwrap().unwrap()
    }
}

type Front = (HttpFront, mpsc::UnboundedReceiver<Event>, Arc<Semaphore>);

pub(super) fn front(
    settings: &Settings,
    change: impl FnOnce(&mut Bounds),
) -> Result<Front, Unready> {
    let mut bounds = Bounds::of(settings);
    change(&mut bounds);
    let (tell, events) = mpsc::unbounded_channel();
    let count = AtomicUsize::new(0);
    let may_end = Arc::new(Semaphore::new(1));
    let permit = Arc::clone(&may_end);
    let begin = move |principal: PrincipalId, client| {
        Arc::new(Fake {
            number: count.fetch_add(1, Ordering::SeqCst),
            principal: principal.as_str().to_owned(),
            client,
            events: tell.clone(),
            may_end: Arc::clone(&permit),
        })
    };
    let front = HttpFront::with(bounds, settings, &SystemEntropy, begin)?;
    Ok((front, events, may_end))
}

/// A client's connection.
pub(super) struct Connection {
    sender: hyper::client::conn::http1::SendRequest<Body>,
    task: JoinHandle<()>,
}

impl Connection {
    /// Sends a request; what comes back is waited for elsewhere.
    pub(super) fn send(&mut self, request: Request<Body>) -> Pending {
        Pending(tokio::spawn(self.sender.send_request(request)))
    }

    /// The same, and all of its answer.
    pub(super) async fn ask(&mut self, request: Request<Body>) -> Got {
        // The connection may still be about to become ready for it.
        self.sender.ready().await.unwrap();
        self.send(request).got().await
    }

    pub(super) async fn ready(&mut self) {
        self.sender.ready().await.unwrap();
    }

    /// Closes the connection, whatever is under way.
    pub(super) async fn close(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// A response that may not be there yet.
pub(super) struct Pending(JoinHandle<hyper::Result<Response<Received>>>);

impl Pending {
    pub(super) async fn response(self) -> Response<Received> {
        timeout(PATIENCE, self.0).await.unwrap().unwrap().unwrap()
    }

    pub(super) async fn got(self) -> Got {
        let (parts, body) = self.response().await.into_parts();
        let body = timeout(PATIENCE, body.collect()).await.unwrap().unwrap();
        Got {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(body.to_bytes().to_vec()).unwrap(),
        }
    }

    pub(super) async fn stream(self) -> Events {
        let response = self.response().await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events {
            body: response.into_body(),
            text: String::new(),
        }
    }
}

/// A whole response.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

impl Got {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// Its status, and its error's code.
    pub(super) fn refusal(&self) -> (u16, i64) {
        let code = self.json()["error"]["code"].as_i64();
        (
            self.status.as_u16(),
            code.unwrap_or_else(|| panic!("{self:?}")),
        )
    }
}

/// A response that is a stream.
pub(super) struct Events {
    body: Received,
    text: String,
}

impl Events {
    /// The next block; `None` at the end.
    pub(super) async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let block = block.to_owned();
                self.text = rest.to_owned();
                return Some(block);
            }
            let frame = timeout(PATIENCE, self.body.frame()).await.unwrap()?;
            let bytes = frame.unwrap().into_data().unwrap();
            self.text.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }

    /// The next message; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Value> {
        loop {
            let block = self.block().await?;
            if block.starts_with(':') {
                continue;
            }
            let lines = block.lines().filter_map(|line| line.strip_prefix("data: "));
            let text = lines.collect::<Vec<_>>().join("\n");
            return Some(serde_json::from_str(&text).unwrap());
        }
    }
}

pub(super) fn request(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// A request of the newer era.
pub(super) fn modern(id: u64, method: &str, mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    request(id, method, params)
}

/// The headers that a client of the newer era sends with it.
pub(super) fn post_modern(headers: &[(&str, &str)], body: &Value) -> Request<Body> {
    let mut all = vec![
        ("mcp-protocol-version", MODERN),
        ("mcp-method", body["method"].as_str().unwrap()),
    ];
    if let Some(name) = body["params"]["name"].as_str() {
        all.push(("mcp-name", name));
    }
    all.extend(headers);
    post(&all, body)
}

pub(super) fn post(headers: &[(&str, &str)], body: &Value) -> Request<Body> {
    plain(Method::POST, headers, Body::from(body.to_string()))
}

pub(super) fn get(session: &str) -> Request<Body> {
    let headers = [("mcp-session-id", session)];
    plain(Method::GET, &headers, Body::empty())
}

pub(super) fn delete(headers: &[(&str, &str)]) -> Request<Body> {
    plain(Method::DELETE, headers, Body::empty())
}

/// A request with the usual headers where it has none of its own.
pub(super) fn plain(method: Method, headers: &[(&str, &str)], body: Body) -> Request<Body> {
    let mut request = Request::builder().method(method).uri("/mcp");
    for (name, value) in [
        ("host", "localhost"),
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
    ] {
        if !headers.iter().any(|(given, _)| *given == name) {
            request = request.header(name, value);
        }
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body).unwrap()
}
