use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::call;
use crate::exchange::Exchange;
use crate::http;
use crate::ledger::Ledger;
use crate::message::{CAPABILITIES, LEGACY, MODERN, Message, VERSION};
use crate::options::{Era, Options};
use crate::stdio;
use crate::tasks::{self, Task};
use crate::tools;

const TASKS: &str = "io.modelcontextprotocol/tasks";
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// The one server of this process.
pub(crate) struct Server {
    pub(crate) options: Options,
    pub(crate) ledger: Ledger,
    /// With pipes: the handshake was made.
    initialized: AtomicBool,
    /// With [`Era::Lock`]: whether the first message was of the newer one.
    locked: Mutex<Option<bool>>,
    sessions: Mutex<HashSet<String>>,
    cancelled: Mutex<HashSet<String>>,
    next: AtomicU64,
    asked: Mutex<HashMap<String, Sender<Value>>>,
    listeners: Mutex<Vec<Sender<()>>>,
    pub(crate) tasks: Mutex<HashMap<String, Task>>,
    /// Only one call at a time is looked up in the ledger and written there.
    pub(crate) writing: Mutex<()>,
    /// The id of the call before.
    pub(crate) last: Mutex<String>,
}

/// Serves until the input ends (pipes) or for ever (HTTP).
///
/// # Errors
/// What the socket or the pipe says.
pub fn run(options: Options) -> io::Result<()> {
    let http = options.http.clone();
    let server = Arc::new(Server {
        ledger: Ledger::new(options.effects.clone()),
        options,
        initialized: AtomicBool::new(false),
        locked: Mutex::default(),
        sessions: Mutex::default(),
        cancelled: Mutex::default(),
        next: AtomicU64::new(1),
        asked: Mutex::default(),
        listeners: Mutex::default(),
        tasks: Mutex::default(),
        writing: Mutex::default(),
        last: Mutex::new("0".to_owned()),
    });
    let process = std::process::id();
    server.ledger.add(&json!({"kind": "start", "pid": process}));
    match http {
        Some(address) => http::serve(&server, &address),
        None => stdio::serve(&server),
    }
}

/// A lock, whoever panicked with it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// A request comes under this id: what was cancelled under it before is another one.
    pub(crate) fn begin(&self, place: &str) {
        lock(&self.cancelled).remove(place);
    }

    pub(crate) fn is_cancelled(&self, place: &str) -> bool {
        lock(&self.cancelled).contains(place)
    }

    pub(crate) fn begin_session(&self) -> String {
        // The process is in it: a session does not outlive its server.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let session = format!("session-{}-{number}", std::process::id());
        lock(&self.sessions).insert(session.clone());
        session
    }

    pub(crate) fn end_session(&self, session: &str) -> bool {
        lock(&self.sessions).remove(session)
    }

    pub(crate) fn knows(&self, session: &str) -> bool {
        lock(&self.sessions).contains(session)
    }

    /// A notification or an answer.
    pub(crate) fn take(&self, message: &Message) {
        self.note(message);
        match message.method.as_deref() {
            Some("notifications/cancelled") => {
                let id = &message.params["requestId"];
                let place = format!("{}/{id}", message.session);
                lock(&self.cancelled).insert(place);
            }
            Some(_) => {}
            None => {
                let id = message.id.clone().unwrap_or_default();
                if let Some(waits) = lock(&self.asked).remove(&id) {
                    let _ = waits.send(message.whole.clone());
                }
            }
        }
    }

    /// A request.
    pub(crate) fn serve(self: &Arc<Self>, exchange: &mut dyn Exchange, message: &Message) {
        let method = message.method.as_deref().unwrap_or_default();
        if method != "tools/call" {
            self.note(message);
        }
        let modern = match self.era(message) {
            Ok(modern) => modern,
            Err((status, code, why)) => {
                exchange.refuse(status, message.error(code, why).as_bytes());
                return;
            }
        };
        let result = match (method, modern) {
            ("initialize", false) => {
                self.initialized.store(true, Ordering::Release);
                initialized(&message.params)
            }
            ("server/discover", true) => discovered(),
            ("ping" | "logging/setLevel", false) => json!({}),
            ("tools/list", _) => tools::list(&message.params, self.options.page, modern),
            ("tools/call", _) => {
                call::run(self, exchange, message, modern);
                return;
            }
            ("subscriptions/listen", true) => {
                self.subscribe(exchange, message);
                return;
            }
            ("odd/echo", _) => json!({"received": message.text, "resultType": "complete"}),
            (method, _) if method.starts_with("tasks/") => {
                match tasks::answer(self, exchange, method, &message.params, modern) {
                    Ok(Some(result)) => result,
                    Ok(None) => return,
                    Err(why) => {
                        exchange.answer(message.error(-32602, why).as_bytes());
                        return;
                    }
                }
            }
            _ => {
                let text = message.error(-32601, "no such method");
                exchange.refuse(if modern { 404 } else { 200 }, text.as_bytes());
                return;
            }
        };
        exchange.answer(message.result(&result.to_string()).as_bytes());
    }

    /// Whether a request is of the newer era, or why it is refused: HTTP status, code, reason.
    fn era(&self, message: &Message) -> Result<bool, (u16, i64, &'static str)> {
        let said = message.is_modern();
        let meant = said
            || message.method.as_deref() == Some("server/discover")
            || message.header("mcp-protocol-version") == Some(MODERN);
        let modern = match self.options.era {
            Era::Both => meant,
            Era::Legacy => false,
            Era::Modern => true,
            Era::Lock => {
                let mut locked = lock(&self.locked);
                let first = *locked.get_or_insert(meant);
                if first != meant {
                    return Err((400, -32600, "the other era was chosen"));
                }
                first
            }
        };
        if modern {
            let meta = &message.params["_meta"];
            if !said || !meta[CAPABILITIES].is_object() {
                return Err((400, -32602, "_meta must name version and capabilities"));
            }
            if meta[VERSION] != MODERN {
                return Err((400, -32022, "no such version"));
            }
            return Ok(true);
        }
        let starts = matches!(message.method.as_deref(), Some("initialize" | "ping"));
        let pipe = message.headers.is_empty();
        if pipe && !starts && !self.initialized.load(Ordering::Acquire) {
            return Err((200, -32600, "initialize comes first"));
        }
        Ok(false)
    }

    /// Asks the client something and waits for its answer; `None` if it went away.
    pub(crate) fn ask(
        &self,
        exchange: &mut dyn Exchange,
        method: &str,
        params: &Value,
    ) -> Option<Value> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answers) = mpsc::channel();
        lock(&self.asked).insert(id.to_string(), sender);
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        exchange.tell(request.to_string().as_bytes());
        while !exchange.is_over() {
            match answers.recv_timeout(Duration::from_millis(20)) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        lock(&self.asked).remove(&id.to_string());
        None
    }

    /// Tells everybody who listens that the list of tools changed; how many that are.
    pub(crate) fn announce(&self) -> usize {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|listener| listener.send(()).is_ok());
        listeners.len()
    }

    fn subscribe(&self, exchange: &mut dyn Exchange, message: &Message) {
        exchange.stream();
        let wanted = &message.params["notifications"];
        let acknowledged = json!({
            "jsonrpc": "2.0",
            "method": "notifications/subscriptions/acknowledged",
            "params": {"_meta": {SUBSCRIPTION: message.whole["id"]}, "notifications": wanted},
        });
        let listener = self.listener();
        exchange.tell(acknowledged.to_string().as_bytes());
        listen(exchange, &listener, Some(&message.whole["id"]));
    }

    /// Passes on what is announced, until the client goes.
    pub(crate) fn listen(&self, exchange: &mut dyn Exchange, subscription: Option<&Value>) {
        listen(exchange, &self.listener(), subscription);
    }

    fn listener(&self) -> Receiver<()> {
        let (sender, listener) = mpsc::channel();
        lock(&self.listeners).push(sender);
        listener
    }

    fn note(&self, message: &Message) {
        let mut line = json!({"kind": "message", "text": message.text});
        if !message.headers.is_empty() {
            line["headers"] = headers(message);
        }
        self.ledger.add(&line);
    }
}

/// The headers of the HTTP request, as the ledger has them.
pub(crate) fn headers(message: &Message) -> Value {
    let pairs = message.headers.iter();
    Value::Object(
        pairs
            .map(|(name, value)| (name.clone(), json!(value)))
            .collect(),
    )
}

/// Whether the client of the newer era knows tasks.
pub(crate) fn knows_tasks(message: &Message) -> bool {
    message.params["_meta"][CAPABILITIES]["extensions"][TASKS].is_object()
}

fn listen(exchange: &mut dyn Exchange, listener: &Receiver<()>, subscription: Option<&Value>) {
    while !exchange.is_over() {
        match listener.recv_timeout(Duration::from_millis(20)) {
            Ok(()) => exchange.tell(changed(subscription).as_bytes()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
}

/// The list of tools changed.
pub(crate) fn changed(subscription: Option<&Value>) -> String {
    let mut message = json!({
        "jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {},
    });
    if let Some(subscription) = subscription {
        message["params"]["_meta"] = json!({SUBSCRIPTION: subscription});
    }
    message.to_string()
}

fn about() -> Value {
    json!({"name": "faulty-upstream", "version": "1", "x-unknown": true})
}

fn initialized(params: &Value) -> Value {
    let version = match params["protocolVersion"].as_str() {
        Some(MODERN) | None => LEGACY,
        Some(version) => version,
    };
    json!({
        "protocolVersion": version,
        "capabilities": {
            "tools": {"listChanged": true},
            "logging": {},
            "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
            "experimental": {"x-unknown": {"depth": 1}},
        },
        "serverInfo": about(),
        "instructions": "Fails on demand.",
    })
}

fn discovered() -> Value {
    json!({
        "resultType": "complete",
        "supportedVersions": [MODERN],
        "capabilities": {
            "tools": {"listChanged": true},
            "extensions": {TASKS: {}, "com.example/unknown": {"depth": 1}},
        },
        "_meta": {"io.modelcontextprotocol/serverInfo": about()},
        "instructions": "Fails on demand.",
        "ttlMs": 1000,
        "cacheScope": "private",
    })
}
