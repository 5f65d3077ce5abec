//! Against servers that do byte for byte what a test says.

mod connecting;
mod cuts;
mod outcomes;
mod sent;
mod server;
mod sessions;
mod streams;

use std::sync::Arc;

use bytes::Bytes;
use counterfoil_mcp::framing::Id;

use self::server::{Ear, Server, Told, soon};
use super::{HttpTransport, UNDER_WAY_MAX};
use crate::wire::{Failure, Kind, Outbound, Transport as _};

const BYTES_MAX: usize = 2000;
const MODERN: &str = "2026-07-28";
const OLDER: &str = "2025-11-25";
const ANSWER: &str = r#"{"jsonrpc":"2.0","id":7,"result":{"n":1.50}}"#;
const PROGRESS: &str = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{}}"#;

fn id(text: &str) -> Id {
    Id::from_json(text).unwrap()
}

fn request(version: Option<&str>) -> Outbound {
    request_as("7", version)
}

fn request_as(number: &str, version: Option<&str>) -> Outbound {
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{{"name":"pay"}}}}"#
    );
    Outbound {
        text: Bytes::from(text),
        kind: Kind::Request {
            id: id(number),
            method: "tools/call".to_owned(),
            name: Some("pay".to_owned()),
        },
        version: version.map(str::to_owned),
        http: None,
        headers: Vec::new(),
    }
}

fn initialize() -> Outbound {
    Outbound {
        text: Bytes::from_static(br#"{"jsonrpc":"2.0","id":0,"method":"initialize"}"#),
        kind: Kind::Request {
            id: id("0"),
            method: "initialize".to_owned(),
            name: None,
        },
        version: None,
        http: None,
        headers: Vec::new(),
    }
}

fn notification(method: &str) -> Outbound {
    let text = format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#);
    Outbound {
        text: Bytes::from(text),
        kind: Kind::Notification {
            method: method.to_owned(),
        },
        version: None,
        http: None,
        headers: Vec::new(),
    }
}

/// A transport to a server, and what it tells.
struct Line {
    ear: Arc<Ear>,
    transport: Arc<HttpTransport>,
}

impl Line {
    fn to(url: &str) -> Self {
        Self::with_headers(url, &[])
    }

    fn with_headers(url: &str, headers: &[(String, String)]) -> Self {
        let ear = Ear::new();
        let transport = HttpTransport::start(url, headers, BYTES_MAX, ear.sink()).unwrap();
        Self { ear, transport }
    }

    async fn send(&self, message: Outbound) {
        soon(self.transport.send(message)).await.unwrap();
    }

    /// All exchanges are over.
    async fn quiet(&self) {
        let all = u32::try_from(UNDER_WAY_MAX).unwrap();
        drop(
            soon(self.transport.upstream.room.acquire_many(all))
                .await
                .unwrap(),
        );
    }

    /// Nothing at all is going on any more, beside the requests either.
    async fn idle(&self) {
        soon(async {
            while Arc::strong_count(&self.transport.upstream) > 1 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Sends a request; what the sink is told until the exchange is over.
    async fn told(&self, message: Outbound) -> Vec<Told> {
        self.send(message).await;
        self.quiet().await;
        self.ear.rest()
    }

    /// The one thing that is told about a request.
    async fn outcome(&self, message: Outbound) -> Told {
        let told = self.told(message).await;
        assert_eq!(told.len(), 1, "{told:?}");
        told.into_iter().next().unwrap()
    }
}

fn answered() -> Told {
    Told::Message(ANSWER.to_owned(), Some(id("7")))
}

fn why_lost(told: &Told) -> &str {
    let Told::Failed(failed, Failure::Lost(why)) = told else {
        panic!("not lost: {told:?}")
    };
    assert_eq!(*failed, id("7"));
    why
}

/// The outcome of one request to a server that answers so.
async fn outcome_of(bytes: Vec<u8>) -> Told {
    let server =
        Server::start(move |_| vec![server::Act::Send(bytes.clone()), server::Act::Close]).await;
    let outcome = Line::to(&server.url()).outcome(request(Some(OLDER))).await;
    assert_eq!(server.seen().len(), 1, "it was sent once");
    outcome
}
