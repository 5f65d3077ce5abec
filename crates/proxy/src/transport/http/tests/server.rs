//! A server that does byte for byte what a test says, and a sink that keeps what it is told.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use bytes::Bytes;
use counterfoil_mcp::framing::Id;
use counterfoil_store::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    sync::{Notify, mpsc},
    task::JoinHandle,
};

use crate::wire::{Failure, Sink};

/// No test waits longer for anything.
const SOON: Duration = Duration::from_secs(20);

/// A request as it came.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Which connection it came on.
    pub(super) connection: usize,
    pub(super) method: String,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// What the server does next.
pub(super) enum Act {
    Send(Vec<u8>),
    /// Waits until the test says so.
    Wait(Arc<Notify>),
    /// Ends the connection. Without it the next request may come on it.
    Close,
    /// Waits for the client to end the connection, and tells the test.
    Hang,
}

pub(super) type Script = dyn Fn(&Seen) -> Vec<Act> + Send + Sync;

pub(super) struct Server {
    pub(super) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    arrivals: tokio::sync::Mutex<mpsc::UnboundedReceiver<Seen>>,
    hung_up: tokio::sync::Mutex<mpsc::UnboundedReceiver<()>>,
    task: JoinHandle<()>,
}

impl Server {
    pub(super) async fn start(script: impl Fn(&Seen) -> Vec<Act> + Send + Sync + 'static) -> Self {
        Self::start_over(script, |stream| async { Some(stream) }).await
    }

    /// With something around each connection, such as TLS; `None`: it did not come about.
    pub(super) async fn start_over<S, F>(
        script: impl Fn(&Seen) -> Vec<Act> + Send + Sync + 'static,
        around: impl Fn(tokio::net::TcpStream) -> F + Send + 'static,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = Option<S>> + Send,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let (gone, hung_up) = mpsc::unbounded_channel();
        let script: Arc<Script> = Arc::new(script);
        let keep = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let Some(stream) = around(stream).await else {
                    continue;
                };
                let (script, keep) = (Arc::clone(&script), Arc::clone(&keep));
                let (arrived, gone) = (arrived.clone(), gone.clone());
                tokio::spawn(async move {
                    let mut stream = stream;
                    while let Some(request) = read(&mut stream, connection).await {
                        keep.lock().unwrap().push(request.clone());
                        let acts = script(&request);
                        let _ = arrived.send(request);
                        if !act(&mut stream, acts, &gone).await {
                            break;
                        }
                    }
                });
            }
        });
        Self {
            address,
            seen,
            arrivals: tokio::sync::Mutex::new(arrivals),
            hung_up: tokio::sync::Mutex::new(hung_up),
            task,
        }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The next request, in the order of their arrival.
    pub(super) async fn arrival(&self) -> Seen {
        let mut arrivals = self.arrivals.lock().await;
        soon(arrivals.recv()).await.unwrap()
    }

    /// The client has ended a connection on which the server hangs.
    pub(super) async fn hung_up(&self) {
        let mut hung_up = self.hung_up.lock().await;
        soon(hung_up.recv()).await.unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future)
        .await
        .expect("it did not happen in time")
}

/// `false`: the connection is to end.
async fn act(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    acts: Vec<Act>,
    gone: &mpsc::UnboundedSender<()>,
) -> bool {
    for act in acts {
        match act {
            Act::Send(bytes) => {
                if stream.write_all(&bytes).await.is_err() || stream.flush().await.is_err() {
                    return false;
                }
            }
            Act::Wait(go) => go.notified().await,
            Act::Close => {
                let _ = stream.shutdown().await;
                return false;
            }
            Act::Hang => {
                let mut rest = [0; 64];
                while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
                let _ = gone.send(());
                return false;
            }
        }
    }
    true
}

async fn read(stream: &mut (impl AsyncRead + Unpin), connection: usize) -> Option<Seen> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.trim_end().split("\r\n");
    let method = lines.next()?.split(' ').next()?.to_owned();
    let headers: HeaderMap = lines
        .map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, HeaderValue::from_str(value.trim()).unwrap())
        })
        .collect();
    let length = headers.get("content-length");
    let length = length.map_or(0, |length| length.to_str().unwrap().parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Seen {
        connection,
        method,
        headers,
        body: String::from_utf8(body).unwrap(),
    })
}

/// A whole response with a body of JSON.
pub(super) fn json(status: u16, body: &str) -> Vec<u8> {
    response(status, "Content-Type: application/json\r\n", body)
}

/// A whole response with other headers, each with its line end.
pub(super) fn response(status: u16, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} Said\r\n{headers}Content-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// The head of a stream of events that goes to the end of the connection.
pub(super) fn stream() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n".to_vec()
}

/// The head of a stream of events in chunks.
pub(super) fn chunked_stream() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        .to_vec()
}

pub(super) fn chunk(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

/// What a sink was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Message(String, Option<Id>),
    Failed(Id, Failure),
    Closed,
}

pub(super) struct Ear {
    told: mpsc::UnboundedSender<Told>,
    heard: tokio::sync::Mutex<mpsc::UnboundedReceiver<Told>>,
}

impl Ear {
    pub(super) fn new() -> Arc<Self> {
        let (told, heard) = mpsc::unbounded_channel();
        Arc::new(Self {
            told,
            heard: tokio::sync::Mutex::new(heard),
        })
    }

    pub(super) fn sink(self: &Arc<Self>) -> Weak<dyn Sink> {
        let me: Weak<Self> = Arc::downgrade(self);
        me
    }

    pub(super) async fn next(&self) -> Told {
        soon(self.heard.lock().await.recv()).await.unwrap()
    }

    /// What was told and not asked for.
    pub(super) fn rest(&self) -> Vec<Told> {
        let mut heard = self.heard.try_lock().unwrap();
        std::iter::from_fn(|| heard.try_recv().ok()).collect()
    }
}

impl Sink for Ear {
    fn message<'a>(&'a self, text: Bytes, related: Option<&'a Id>) -> BoxFuture<'a, ()> {
        let text = String::from_utf8(text.to_vec()).unwrap();
        let _ = self.told.send(Told::Message(text, related.cloned()));
        Box::pin(async {})
    }

    fn failed(&self, id: &Id, why: Failure) {
        let _ = self.told.send(Told::Failed(id.clone(), why));
    }

    fn closed(&self, _why: &str) {
        let _ = self.told.send(Told::Closed);
    }
}
