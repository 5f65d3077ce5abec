//! The connection to the upstream of one session: what is in flight, under which id, and for whom.
//!
//! Ids and progress tokens go through as the client chose them. One that is in use on this connection
//! or was a moment ago (its late answer may still come), or that is spelled with an escape (a server
//! may spell it otherwise), is replaced, and put back in what comes for it.

mod incoming;
mod start;
mod table;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use counterfoil_mcp::framing::Id;
use futures_util::FutureExt as _;
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    call::{self, CallParams},
    catalog::{Catalog, Page, Tool},
    proxy::Shared,
    raw, say,
    settings::Target,
    wire::{Client, Failure, HttpFacts, Kind, Outbound, Ticket, Transport},
};
use start::Handshake;
use table::{Table, Waiter, Waiting, member, progress_token, replaced};

pub(crate) use table::TokenName;

/// Most requests in flight; beyond it a request is refused.
const IN_FLIGHT_MAX: usize = 1024;
/// Longest wait for an answer to what the proxy itself asks: the list of tools, the handshake of a
/// server that was started again.
const OWN_FOR: Duration = Duration::from_secs(30);

/// What is looked at in the answer to a client's request before it is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// Nothing.
    Nothing,
    /// The revision that was agreed on.
    Initialize,
    /// Nothing, and it stands until somebody ends it: a subscription.
    Standing,
    /// The tools, of the first page or of a later one.
    Tools {
        /// It is the first page, and how often the list had changed when it was asked for.
        first: Option<u64>,
    },
}

/// Requests that change nothing.
const READING: [&str; 8] = [
    "completion/complete",
    "ping",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/templates/list",
    "tools/list",
];

/// A client's request that is passed on.
#[derive(Clone)]
pub(crate) struct Forwarded {
    /// It, as it came.
    pub(crate) text: Bytes,
    /// Its id.
    pub(crate) id: Id,
    /// Its method.
    pub(crate) method: String,
    /// Whose answer it gets.
    pub(crate) ticket: Ticket,
    /// From an HTTP front.
    pub(crate) http: Option<Arc<HttpFacts>>,
    /// It is of 2026-07-28.
    pub(crate) is_modern: bool,
    /// What is looked at in its answer.
    pub(crate) watch: Watch,
    /// Headers made from it.
    pub(crate) headers: Vec<(String, String)>,
    /// It is known to change nothing.
    pub(crate) is_reading: bool,
}

/// The connection to the upstream of one session.
pub(crate) struct Link {
    me: Weak<Self>,
    shared: Arc<Shared>,
    client: Arc<dyn Client>,
    catalog: Mutex<Catalog>,
    table: Mutex<Table>,
    handshake: Mutex<Handshake>,
    /// The revision that the handshake agreed on.
    version: Mutex<Option<String>>,
    up: RwLock<Option<Arc<dyn Transport>>>,
    /// When it was started again lately.
    starts: tokio::sync::Mutex<VecDeque<Instant>>,
    was_up: AtomicBool,
    /// The handshake was made (again) on what is up.
    is_ready: AtomicBool,
    /// Nothing is started any more.
    is_closed: AtomicBool,
    /// When the list of tools could not be had, the last time.
    listing: tokio::sync::Mutex<Option<Instant>>,
    names: AtomicU64,
    salt: String,
    /// The client is gone: a request of the server's is answered by the proxy.
    is_alone: AtomicBool,
    ended: watch::Sender<Option<String>>,
    emptied: Notify,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    pub(crate) fn new(shared: Arc<Shared>, client: Arc<dyn Client>) -> Arc<Self> {
        let salt = shared.random_hex();
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            shared,
            client,
            catalog: Mutex::default(),
            table: Mutex::default(),
            handshake: Mutex::default(),
            version: Mutex::default(),
            up: RwLock::default(),
            starts: tokio::sync::Mutex::default(),
            was_up: AtomicBool::new(false),
            is_ready: AtomicBool::new(true),
            is_closed: AtomicBool::new(false),
            listing: tokio::sync::Mutex::default(),
            names: AtomicU64::new(0),
            salt,
            is_alone: AtomicBool::new(false),
            ended: watch::Sender::new(None),
            emptied: Notify::new(),
        })
    }

    /// The client is gone: whatever the upstream asks of it is answered with an error.
    pub(crate) fn alone(&self) {
        self.is_alone.store(true, Ordering::Release);
    }

    /// An id that no client uses.
    fn fresh(&self) -> String {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        format!("\"counterfoil-{}-{number}\"", self.salt)
    }

    pub(crate) fn fresh_id(&self) -> Id {
        let name = self.fresh();
        // Letters, digits and hyphens in quotes always are an id.
        Id::from_json(&name).unwrap_or_else(|| Id::number(self.names.load(Ordering::Relaxed)))
    }

    pub(crate) fn is_http(&self) -> bool {
        match self.shared.settings.target {
            Target::Command { .. } => false,
            Target::Url { .. } => true,
        }
    }

    pub(crate) fn outbound(&self, text: Bytes, kind: Kind) -> Outbound {
        let mut outbound = Outbound {
            text,
            kind,
            version: None,
            http: None,
            headers: Vec::new(),
        };
        self.add_facts(&mut outbound);
        outbound
    }

    /// What HTTP says beside the body.
    fn add_facts(&self, outbound: &mut Outbound) {
        if !self.is_http() {
            return;
        }
        let text = |path: &[&str]| {
            let found = member(&outbound.text, path)?;
            raw::string(found).map(std::borrow::Cow::into_owned)
        };
        let spoken = text(&["params", "_meta", "io.modelcontextprotocol/protocolVersion"]);
        if let Kind::Request { name, method, .. } = &mut outbound.kind {
            *name = match method.as_str() {
                "tools/call" | "prompts/get" => text(&["params", "name"]),
                "resources/read" => text(&["params", "uri"]),
                tasks if tasks.starts_with("tasks/") => text(&["params", "taskId"]),
                _ => None,
            };
        }
        let opens =
            matches!(&outbound.kind, Kind::Request { method, .. } if method == "initialize");
        // What was agreed on before is nothing to a handshake.
        let agreed = || locked(&self.version).clone().filter(|_| !opens);
        outbound.version = spoken.or_else(agreed);
    }

    /// Passes a client's request on; its answer goes to the client.
    pub(crate) async fn forward(&self, request: Forwarded) {
        self.forward_once(request, true).await;
    }

    /// `again`: if it only reads and its session has ended, it is sent once more in a new one. A
    /// client on a pipe cannot make one.
    pub(super) async fn forward_once(&self, request: Forwarded, again: bool) {
        let is_reading = request.is_reading || READING.contains(&request.method.as_str());
        let again = (again && is_reading && self.is_http() && !request.is_modern)
            .then(|| Box::new(request.clone()));
        let Forwarded {
            mut text,
            id,
            method,
            ticket,
            http,
            is_modern,
            watch,
            headers,
            is_reading: _,
        } = request;
        let up = match self.connect().await {
            Ok(up) => up,
            Err(why) => return self.refuse(ticket, &id, is_modern, &why),
        };
        let token = progress_token(&text);
        let mut original = None;
        let upstream_id;
        {
            let mut table = locked(&self.table);
            if table.waiting.len() >= IN_FLIGHT_MAX {
                drop(table);
                return self.refuse(ticket, &id, is_modern, &too_many());
            }
            if table.take_id(&id) {
                upstream_id = id;
            } else {
                upstream_id = self.fresh_id();
                if let Some(found) = member(&text, &["id"]) {
                    text = replaced(&text, found, upstream_id.as_str());
                }
                original = Some(id);
            }
            let token = token.map(|token| self.named(&mut table, &token));
            if let Some(token) = token.as_ref().filter(|token| token.original.is_some())
                && let Some(found) = member(&text, &["params", "_meta", "progressToken"])
            {
                text = replaced(&text, found, &token.upstream);
            }
            let waiting = Waiting {
                waiter: Waiter::Client {
                    ticket,
                    original,
                    is_modern,
                    watch,
                    again,
                },
                about: Some(ticket),
                token: None,
            };
            table.insert(upstream_id.clone(), waiting, token);
        }
        let kind = Kind::Request {
            id: upstream_id.clone(),
            name: None,
            method,
        };
        let mut outbound = self.outbound(text, kind);
        outbound.http = http;
        outbound.headers = headers;
        if let Err(why) = up.send(outbound).await {
            self.failed_one(&upstream_id, why);
        }
    }

    /// A progress token for the upstream: the client's, unless that is in use.
    fn named(&self, table: &mut Table, given: &str) -> TokenName {
        if table.take_token(given) {
            TokenName {
                upstream: given.into(),
                original: None,
            }
        } else {
            TokenName {
                upstream: self.fresh().into(),
                original: Some(given.into()),
            }
        }
    }

    /// The id and the progress token under which a request that [`Self::ask`] sends is known to
    /// the upstream: the client's if they are free. Nobody else gets them.
    pub(crate) fn name_for(&self, id: &Id, token: Option<&str>) -> (Id, Option<TokenName>) {
        let mut table = locked(&self.table);
        let upstream = if table.take_id(id) {
            id.clone()
        } else {
            self.fresh_id()
        };
        (upstream, token.map(|token| self.named(&mut table, token)))
    }

    /// Sends a request whose answer somebody here waits for. What comes in between is told to
    /// `about`; `sent` is completed when it is on its way. Dropping the future gives the answer up;
    /// the upstream is not told.
    pub(crate) async fn ask(
        &self,
        about: Option<Ticket>,
        token: Option<TokenName>,
        outbound: Outbound,
        sent: Option<&CancellationToken>,
    ) -> Result<Bytes, Failure> {
        let up = self.connect().await?;
        self.ask_over(&up, about, token, outbound, sent).await
    }

    async fn ask_over(
        &self,
        up: &Arc<dyn Transport>,
        about: Option<Ticket>,
        token: Option<TokenName>,
        outbound: Outbound,
        sent: Option<&CancellationToken>,
    ) -> Result<Bytes, Failure> {
        let Kind::Request { id, .. } = &outbound.kind else {
            return Err(Failure::NotSent("only a request has an answer".to_owned()));
        };
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            waiter: Waiter::Here(answer),
            about,
            token: None,
        };
        {
            let mut table = locked(&self.table);
            if table.waiting.len() >= IN_FLIGHT_MAX || table.waiting.contains_key(id) {
                return Err(too_many());
            }
            table.insert(id.clone(), waiting, token);
        }
        let _given = Given {
            link: self,
            id: id.clone(),
        };
        up.send(outbound).await?;
        if let Some(sent) = sent {
            sent.cancel();
        }
        let answered = answered.await;
        answered.unwrap_or_else(|_| Err(Failure::Lost("the wait was given up".to_owned())))
    }

    /// From now on nobody hears of what comes for this request but its answer.
    pub(crate) fn mute(&self, ticket: Ticket) {
        locked(&self.table).mute(ticket);
    }

    /// A notification or an answer of the client's, passed on.
    pub(crate) async fn post(&self, text: Bytes, kind: Kind, http: Option<Arc<HttpFacts>>) {
        let up = match &kind {
            // An answer is for whoever asked: one that was started since did not.
            Kind::Response => self
                .current()
                .ok_or_else(|| Failure::NotSent("the server that asked has ended".to_owned())),
            Kind::Request { .. } | Kind::Notification { .. } => self.connect().await,
        };
        let mut outbound = self.outbound(text, kind);
        outbound.http = http;
        let sent = match up {
            Ok(up) => up.send(outbound).await,
            Err(why) => Err(why),
        };
        if let Err(why) = sent {
            tracing::warn!(%why, "a message was not passed on");
        }
    }

    /// Passes the cancel of a client's request on, whose answer is then not waited for. Its
    /// ticket; `None`: there is no such request.
    pub(crate) async fn cancel(&self, id: &Id, notification: &Bytes) -> Option<Ticket> {
        let (upstream, ticket, is_modern) = locked(&self.table).of_client(id)?;
        self.given_up(&upstream)?;
        let named = member(notification, &["params", "requestId"]);
        let text = match named {
            Some(named) if upstream != *id => replaced(notification, named, upstream.as_str()),
            Some(_) | None => notification.clone(),
        };
        self.tell_cancelled(&upstream, text, is_modern).await;
        Some(ticket)
    }

    /// Passes on that a client's request of 2026-07-28 is not waited for any more.
    pub(crate) async fn cancel_ticket(&self, ticket: Ticket) {
        let upstream = locked(&self.table).of_ticket(ticket);
        if let Some(upstream) = upstream
            && self.given_up(&upstream).is_some()
        {
            let text = cancelled(&upstream);
            self.tell_cancelled(&upstream, text, true).await;
        }
    }

    /// Tells the upstream that a request is cancelled: with 2026-07-28 over HTTP the end of its
    /// stream says so, else a notification.
    pub(crate) async fn tell_cancelled(&self, id: &Id, text: Bytes, is_modern: bool) {
        let Some(up) = self.current() else {
            return;
        };
        if is_modern && self.is_http() {
            up.forget(id);
            return;
        }
        let kind = Kind::Notification {
            method: "notifications/cancelled".to_owned(),
        };
        if let Err(why) = up.send(self.outbound(text, kind)).await {
            tracing::warn!(%why, "a cancel was not passed on");
        }
    }

    /// A tool, if the upstream's list is known and has it.
    pub(crate) fn tool(&self, name: &str) -> Option<Arc<Tool>> {
        locked(&self.catalog).get(name)
    }

    /// `Mcp-Param-*` headers of a call, where they matter and the client did not bring them.
    pub(crate) fn param_headers(
        &self,
        tool: &Tool,
        params: &CallParams<'_>,
        http: Option<&HttpFacts>,
    ) -> Vec<(String, String)> {
        if !self.is_http() || http.is_some() {
            return Vec::new();
        }
        call::param_headers(tool, params.arguments())
    }

    /// Every tool that the upstream lists is known.
    pub(crate) fn knows_all_tools(&self) -> bool {
        locked(&self.catalog).knows_all()
    }

    /// Completes when nothing of the client's is in flight that will be answered by itself.
    pub(crate) async fn idle(&self) {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            if locked(&self.table).is_idle() {
                return;
            }
            emptied.await;
        }
    }

    fn taken(&self, id: &Id) -> Option<Waiting> {
        let mut table = locked(&self.table);
        let waiting = table.remove(id);
        if table.is_idle() {
            self.emptied.notify_waiters();
        }
        waiting
    }

    /// The same for what gets no answer. Nobody waits for a handshake that has none.
    fn given_up(&self, id: &Id) -> Option<Waiting> {
        let waiting = self.taken(id)?;
        if let Waiter::Client {
            watch: Watch::Initialize,
            ..
        } = waiting.waiter
        {
            self.handshake_over();
        }
        Some(waiting)
    }

    /// How often the list of tools was said to have changed.
    pub(crate) fn changes(&self) -> u64 {
        locked(&self.catalog).changes()
    }

    /// The list of tools is not known, or has changed.
    pub(crate) fn is_stale(&self) -> bool {
        locked(&self.catalog).is_stale()
    }

    /// Reads the tools, unless they are known. `meta`: what 2026-07-28 wants in `_meta`, as JSON
    /// text.
    pub(crate) async fn learn_tools(&self, meta: Option<&str>) -> Result<(), Failure> {
        let since = Instant::now();
        let mut failed_at = self.listing.lock().await;
        if failed_at.is_some_and(|at| at >= since) {
            // Whoever waited for the turn need not find that out once more.
            return Err(Failure::Lost("the tools were not listed".to_owned()));
        }
        let read = self.read_tools(meta).await;
        *failed_at = read.is_err().then(Instant::now);
        read
    }

    async fn read_tools(&self, meta: Option<&str>) -> Result<(), Failure> {
        let mut cursor: Option<String> = None;
        while cursor.is_some() || self.is_stale() {
            let first = cursor.is_none().then(|| self.changes());
            let id = self.fresh_id();
            let mut params: Vec<String> = Vec::new();
            params.extend(cursor.as_ref().map(|cursor| format!("\"cursor\":{cursor}")));
            params.extend(meta.map(|meta| format!("\"_meta\":{meta}")));
            let text = format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"tools/list\",\"params\":{{{}}}}}",
                id.as_str(),
                params.join(",")
            );
            let kind = Kind::Request {
                id,
                method: "tools/list".to_owned(),
                name: None,
            };
            let asked = self.ask(None, None, self.outbound(text.into(), kind), None);
            let answer = tokio::time::timeout(OWN_FOR, asked)
                .await
                .map_err(|_| Failure::Lost("the list of tools did not come".to_owned()))??;
            let page = match member(&answer, &["result"]) {
                Some(result) => locked(&self.catalog).take_page(result, first),
                None => Page::Unreadable,
            };
            match page {
                Page::More(next) => cursor = Some(next),
                Page::Last => return Ok(()),
                Page::Unreadable => {
                    return Err(Failure::Lost("the tools were not listed".to_owned()));
                }
            }
        }
        Ok(())
    }

    fn refuse(&self, ticket: Ticket, id: &Id, is_modern: bool, why: &Failure) {
        self.answer(ticket, say::failed(id, is_modern, why));
    }

    /// Hands an answer to the client. It is queued when the future is first polled; what becomes
    /// of it is not waited for.
    fn answer(&self, ticket: Ticket, text: Bytes) {
        let _ = self.client.answer(ticket, text).now_or_never();
    }
}

fn too_many() -> Failure {
    Failure::NotSent(format!("{IN_FLIGHT_MAX} requests are under way"))
}

/// Takes a request out of the table when nobody waits for it any more.
struct Given<'a> {
    link: &'a Link,
    id: Id,
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        self.link.taken(&self.id);
    }
}

/// A `notifications/cancelled` of the proxy's own.
pub(crate) fn cancelled(id: &Id) -> Bytes {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{{\"requestId\":{}}}}}",
        id.as_str()
    )
    .into()
}

#[cfg(test)]
mod tests;
