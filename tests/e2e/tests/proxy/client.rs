use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::pipe::Pipe;
use crate::said::{Inbox, Missing, Said};
use crate::web::Web;

/// Longest wait for an answer that must come.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Modern,
}

/// A raw MCP client. It says what it is told to say, and answers what the server asks.
pub(crate) struct Client {
    era: Era,
    way: Way,
    inbox: Arc<Inbox>,
    next: AtomicU64,
    errors: PathBuf,
}

enum Way {
    Pipe(Pipe),
    Web(Web),
}

impl Era {
    pub(crate) const BOTH: [Self; 2] = [Self::Legacy, Self::Modern];

    pub(crate) const fn version(self) -> &'static str {
        match self {
            Self::Legacy => "2025-11-25",
            Self::Modern => "2026-07-28",
        }
    }
}

impl Client {
    /// Starts a server and shakes hands with it, if that is the custom of the era. What the server
    /// prints beside its messages goes into a file of this folder.
    pub(crate) fn pipe(words: &[String], era: Era, folder: &Path) -> Self {
        let client = Self::silent_pipe(words, era, folder);
        client.shake_hands();
        client
    }

    /// The same without a word.
    pub(crate) fn silent_pipe(words: &[String], era: Era, folder: &Path) -> Self {
        let inbox = Arc::<Inbox>::default();
        let errors = folder.join("errors.txt");
        let way = Way::Pipe(Pipe::start(words, &errors, &inbox));
        Self {
            era,
            way,
            inbox,
            next: AtomicU64::new(1),
            errors,
        }
    }

    /// Goes to a server that listens.
    pub(crate) fn web(address: SocketAddr, era: Era, token: Option<&str>, folder: &Path) -> Self {
        let client = Self::silent_web(address, era, token, folder);
        client.shake_hands();
        client
    }

    /// The same with a connection for each message, which is closed after it.
    pub(crate) fn closing_web(address: SocketAddr, era: Era, folder: &Path) -> Self {
        let mut client = Self::silent_web(address, era, None, folder);
        match &mut client.way {
            Way::Pipe(_) => {}
            Way::Web(web) => web.closes(),
        }
        client.shake_hands();
        client
    }

    fn silent_web(address: SocketAddr, era: Era, token: Option<&str>, folder: &Path) -> Self {
        let inbox = Arc::<Inbox>::default();
        let modern = era == Era::Modern;
        let web = Web::new(address, era.version(), modern, token, &inbox);
        Self {
            era,
            way: Way::Web(web),
            inbox,
            next: AtomicU64::new(1),
            errors: folder.join("errors.txt"),
        }
    }

    fn shake_hands(&self) {
        if self.era == Era::Modern {
            return;
        }
        let params = json!({
            "protocolVersion": self.era.version(),
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "raw", "version": "1"},
        });
        let said = self.ask("initialize", params);
        assert_eq!(said.result()["protocolVersion"], self.era.version());
        self.notify("notifications/initialized", json!({}));
    }

    /// Calls a tool and waits for nothing; the id of the request.
    pub(crate) fn begin(&self, tool: &str, arguments: Value, meta: Value) -> u64 {
        let mut params = json!({"name": tool, "arguments": arguments});
        if meta.as_object().is_some_and(|meta| !meta.is_empty()) {
            params["_meta"] = meta;
        }
        self.request("tools/call", params)
    }

    /// Calls a tool and waits for the answer.
    pub(crate) fn call(&self, tool: &str, arguments: Value, meta: Value) -> Said {
        let id = self.begin(tool, arguments, meta);
        self.must(id)
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn ask(&self, method: &str, params: Value) -> Said {
        let id = self.request(method, params);
        self.must(id)
    }

    /// Sends a request and waits for nothing; its id.
    pub(crate) fn request(&self, method: &str, params: Value) -> u64 {
        let id = self.next_id();
        let message = json!({
            "jsonrpc": "2.0", "id": id, "method": method, "params": self.dressed(params),
        });
        self.send(Some(id), &message.to_string());
        id
    }

    /// An id that no request has had.
    pub(crate) fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends text as it is.
    pub(crate) fn send(&self, id: Option<u64>, text: &str) {
        match &self.way {
            Way::Pipe(pipe) => pipe.send(text),
            Way::Web(web) => web.send(id, text),
        }
    }

    /// Sends a notification. Over HTTP it has been taken when this returns.
    pub(crate) fn notify(&self, method: &str, params: Value) {
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        match &self.way {
            Way::Pipe(pipe) => pipe.send(&message.to_string()),
            Way::Web(web) => web.exchange(None, &message.to_string()),
        }
    }

    /// What the revision wants in each request.
    pub(crate) fn dressed(&self, mut params: Value) -> Value {
        if self.era == Era::Modern {
            let name = |last: &str| format!("io.modelcontextprotocol/{last}");
            if params["_meta"].is_null() {
                params["_meta"] = json!({});
            }
            let meta = &mut params["_meta"];
            meta[name("protocolVersion")] = json!(self.era.version());
            meta[name("clientInfo")] = json!({"name": "raw", "version": "1"});
            if meta[name("clientCapabilities")].is_null() {
                meta[name("clientCapabilities")] = json!({"elicitation": {}});
            }
        }
        params
    }

    pub(crate) fn answer(&self, id: u64, limit: Duration) -> Result<Said, Missing> {
        self.inbox.answer(id, limit)
    }

    /// The answer to a request, which must come.
    pub(crate) fn must(&self, id: u64) -> Said {
        self.answer(id, PATIENCE)
            .unwrap_or_else(|why| panic!("no answer to {id}: {why:?}\n{}", self.errors()))
    }

    pub(crate) fn heard(&self) -> Vec<Said> {
        self.inbox.all()
    }

    pub(crate) fn answers(&self, id: u64) -> Vec<Said> {
        self.inbox.answers(id)
    }

    /// Gives up on a request as its kind of client does: a notification on a pipe; a closed
    /// connection over HTTP.
    pub(crate) fn give_up(&self, id: u64) {
        match &self.way {
            Way::Pipe(_) => self.cancel(id),
            Way::Web(web) => web.close(id),
        }
    }

    /// Says that a request is cancelled.
    pub(crate) fn cancel(&self, id: u64) {
        let params = json!({"requestId": id, "reason": "the test gives up"});
        self.notify("notifications/cancelled", params);
    }

    /// Ends a pipe as a host does first: what it says to the server ends.
    pub(crate) fn end_input(&self) {
        match &self.way {
            Way::Pipe(pipe) => pipe.end_input(),
            Way::Web(_) => panic!("no pipe"),
        }
    }

    /// Waits until the server at the other end of a pipe has ended.
    pub(crate) fn ended(&self, limit: Duration) -> ExitStatus {
        match &self.way {
            Way::Pipe(pipe) => pipe.ended(limit),
            Way::Web(_) => panic!("no pipe"),
        }
    }

    /// Kills the server at the other end of a pipe.
    pub(crate) fn kill(&self) {
        match &self.way {
            Way::Pipe(pipe) => pipe.kill(),
            Way::Web(_) => panic!("no pipe"),
        }
    }

    pub(crate) fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }
}

/// What these clients answer when a server asks.
pub(crate) fn answer_to(message: &Value) -> Option<String> {
    let id = message.get("id")?;
    let result = match message["method"].as_str()? {
        "elicitation/create" => json!({"action": "accept", "content": {"yes": true}}),
        _ => json!({}),
    };
    Some(json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
}
