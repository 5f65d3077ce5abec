//! One client's conversation with the upstream.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use counterfoil_core::PrincipalId;
use counterfoil_mcp::framing::{
    FramingLimits, Id, Incoming as Read, Message, Notification, Request, RpcError, error_text, read,
};
use serde_json::value::RawValue;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::{
    call::{CallParams, check_param_headers},
    front::Conversation,
    guard::{GuardedCall, Passing, Stop, Turn},
    keyless::{Channel, Delivery},
    link::{Forwarded, Link, Watch},
    proxy::Shared,
    raw::{self, Object},
    settings::Target,
    wire::{Client, Failure, HttpFacts, Kind, Ticket},
};

/// Guarded calls of one session under way at once; beyond it a call is told that it is busy.
pub(crate) const CALLS_MAX: usize = 256;
/// Answers that a cancel may still cross.
const ANSWERED_MAX: usize = 64;
/// What a request of 2026-07-28 says of itself, each time.
const META: [&str; 3] = [
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/clientInfo",
];
/// Tickets for the members of a batch, which the front cannot number.
const BATCH_TICKETS: u64 = 1 << 63;

/// A message of a client's, as its front hands it over.
pub(crate) struct Incoming {
    /// One message (or batch), as it came.
    pub(crate) text: Bytes,
    /// Names it, should it be a request.
    pub(crate) ticket: Ticket,
    /// The connection it came on.
    pub(crate) channel: Channel,
    /// From an HTTP front.
    pub(crate) http: Option<Arc<HttpFacts>>,
}

/// One client's conversation.
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) link: Arc<Link>,
    pub(crate) client: Arc<dyn Client>,
    pub(crate) principal: PrincipalId,
    /// What the client calls itself.
    name: Mutex<String>,
    calls: Mutex<Calls>,
    tasks: TaskTracker,
    batched: AtomicU64,
}

/// Guarded calls.
#[derive(Default)]
struct Calls {
    /// Completes when the latest one is on its way to the upstream, or is not to be sent.
    latest: Option<CancellationToken>,
    under_way: HashMap<Ticket, (Id, Arc<Stop>)>,
    /// Answered, the latest last.
    answered: VecDeque<(Id, Delivery)>,
    /// Answers that are being written; each completes when it is known what became of it.
    handing: Vec<CancellationToken>,
}

impl Calls {
    fn being_handed(&self) -> Vec<CancellationToken> {
        let open = self.handing.iter().filter(|token| !token.is_cancelled());
        open.cloned().collect()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// Opens a conversation. Nothing is said to the upstream before the client speaks.
    pub(crate) fn open(
        shared: &Arc<Shared>,
        principal: PrincipalId,
        client: Arc<dyn Client>,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            link: Link::new(Arc::clone(shared), Arc::clone(&client)),
            client,
            principal,
            name: Mutex::default(),
            calls: Mutex::default(),
            tasks: TaskTracker::new(),
            batched: AtomicU64::new(0),
        })
    }

    /// Starts the upstream, so that one that cannot be started is noticed at once.
    pub(crate) async fn start(&self) -> Result<(), Failure> {
        self.link.connect().await.map(drop)
    }

    fn stop(&self, ticket: Ticket, stop: &Stop) {
        self.link.mute(ticket);
        stop.stop(self.shared.engine.now());
    }

    async fn message(self: &Arc<Self>, message: Message<'_>, incoming: Incoming) {
        let now = self.shared.engine.now();
        if let Message::Notification(notification) = &message
            && notification.method == "notifications/cancelled"
        {
            return self.cancelled(notification, incoming).await;
        }
        self.shared.deliveries.heard(incoming.channel, now);
        match message {
            Message::Request(request) => self.request(request, incoming).await,
            // Some servers would carry it out all the same, past everything that is kept of calls.
            Message::Notification(notification) if notification.method == "tools/call" => {
                tracing::warn!("a call without an id was not passed on: nobody could answer it");
            }
            Message::Notification(notification) => {
                if notification.method == "notifications/initialized" {
                    self.link.initialized(incoming.text.clone());
                }
                let kind = Kind::Notification {
                    method: notification.method.into_owned(),
                };
                self.in_order().await;
                self.link.post(incoming.text, kind, incoming.http).await;
            }
            Message::Response(_) => {
                let text = incoming.text;
                self.link.post(text, Kind::Response, incoming.http).await;
            }
        }
    }

    /// The client does not wait for an answer any more. That stops the waiting; a guarded call
    /// goes on.
    async fn cancelled(self: &Arc<Self>, notification: &Notification<'_>, incoming: Incoming) {
        let id = notification
            .params
            .and_then(|params| Object::read(params.get())?.get("requestId"))
            .and_then(Id::from_json);
        let Some(id) = id else {
            let kind = Kind::Notification {
                method: notification.method.to_string(),
            };
            return self.link.post(incoming.text, kind, incoming.http).await;
        };
        let found = {
            let mut calls = locked(&self.calls);
            let ticket = calls
                .under_way
                .iter()
                .find_map(|(ticket, (own, _))| (*own == id).then_some(*ticket));
            let stop = ticket.and_then(|ticket| Some((ticket, calls.under_way.remove(&ticket)?.1)));
            if stop.is_none()
                && let Some((_, delivery)) = calls.answered.iter().rev().find(|(own, _)| *own == id)
            {
                // It crossed the answer: whoever sends it did not take that.
                delivery.doubted();
            }
            stop
        };
        self.shared
            .deliveries
            .heard(incoming.channel, self.shared.engine.now());
        match found {
            Some((ticket, stop)) => {
                self.client.silence(ticket);
                self.stop(ticket, &stop);
            }
            None => {
                if let Some(ticket) = self.link.cancel(&id, &incoming.text).await {
                    self.client.silence(ticket);
                }
            }
        }
    }

    /// Waits, within a bound, until the guarded calls before it are on their way: what a client
    /// says on one stream reaches the upstream in that order.
    async fn in_order(&self) {
        let latest = locked(&self.calls).latest.clone();
        let Some(latest) = latest else {
            return;
        };
        if Turn::after(&latest).await {
            let mut calls = locked(&self.calls);
            if calls
                .latest
                .as_ref()
                .is_some_and(CancellationToken::is_cancelled)
            {
                calls.latest = None;
            }
        }
    }

    async fn request(self: &Arc<Self>, request: Request<'_>, incoming: Incoming) {
        let watch = match &*request.method {
            "initialize" => {
                let is_modern = self.is_modern(&incoming);
                // That era has none; it is refused, and must not be repeated.
                if !is_modern {
                    self.opened(&request, &incoming.text);
                }
                return self
                    .forward(request, incoming, Watch::Initialize, is_modern, Vec::new())
                    .await;
            }
            "tools/list" => {
                let cursor = request
                    .params
                    .and_then(|params| Object::read(params.get())?.get("cursor"));
                let is_first = cursor.is_none_or(|cursor| cursor == "null");
                let first = is_first.then(|| self.link.changes());
                Watch::Tools { first }
            }
            "tools/call" => return self.call(request, incoming).await,
            "subscriptions/listen" => Watch::Standing,
            _ => Watch::Nothing,
        };
        let is_modern = self.is_modern(&incoming);
        self.in_order().await;
        self.forward(request, incoming, watch, is_modern, Vec::new())
            .await;
    }

    /// Whether a request is of 2026-07-28: such a one names its revision. The word is looked for, not
    /// the member, which costs less than reading the parameters.
    fn is_modern(&self, incoming: &Incoming) -> bool {
        memchr::memmem::find(&incoming.text, META[0].as_bytes()).is_some()
    }

    async fn forward(
        &self,
        request: Request<'_>,
        incoming: Incoming,
        watch: Watch,
        is_modern: bool,
        headers: Vec<(String, String)>,
    ) {
        let is_reading = request.method == "tools/call";
        let forwarded = Forwarded {
            id: request.id,
            method: request.method.into_owned(),
            text: incoming.text,
            ticket: incoming.ticket,
            http: incoming.http,
            is_modern,
            watch,
            headers,
            // Of the calls of tools only those that read come this way.
            is_reading,
        };
        self.link.forward(forwarded).await;
    }

    fn opened(&self, request: &Request<'_>, text: &Bytes) {
        let answered = self.link.opened(text.clone());
        if let Target::Url { .. } = self.shared.settings.target {
            // What follows belongs to the session that the answer names.
            locked(&self.calls).latest = Some(answered);
        }
        let name = request.params.and_then(|params| {
            let info = Object::read(params.get())?.get("clientInfo")?;
            raw::string(Object::read(info)?.get("name")?).map(std::borrow::Cow::into_owned)
        });
        *locked(&self.name) = name.unwrap_or_default();
    }

    /// What the client calls itself: in this request, or in its handshake.
    fn client_name(&self, params: &CallParams<'_>) -> String {
        let info = params.meta(META[2]).and_then(Object::read);
        let name = info.and_then(|info| raw::string(info.get("name")?).map(String::from));
        name.unwrap_or_else(|| locked(&self.name).clone())
    }

    /// Whether the headers of a call say what its arguments say. An upstream on pipes never sees
    /// them, so nobody else would look; one on HTTP looks itself.
    async fn agrees(
        &self,
        params: &CallParams<'_>,
        http: &HttpFacts,
        meta: Option<&str>,
    ) -> Result<(), RpcError> {
        if self.link.is_http() {
            return Ok(());
        }
        if self.link.is_stale() {
            // Without a list it is not known which arguments have headers.
            let _ = self.link.learn_tools(meta).await;
        }
        match self.link.tool(&params.name) {
            Some(tool) => check_param_headers(&tool, params.arguments(), &http.headers),
            None => Ok(()),
        }
    }

    async fn call(self: &Arc<Self>, request: Request<'_>, incoming: Incoming) {
        let id = request.id.clone();
        let params = match CallParams::read(request.params.map_or("{}", RawValue::get)) {
            Ok(params) => params,
            Err(error) => {
                let text = error_text(Some(&id), &error);
                return self.answer_at_once(incoming.ticket, text);
            }
        };
        let is_modern = params.meta(META[0]).is_some();
        let meta = META
            .iter()
            .filter_map(|name| Some(format!("{}:{}", raw::quoted(name), params.meta(name)?)))
            .collect::<Vec<_>>();
        let meta = (!meta.is_empty()).then(|| format!("{{{}}}", meta.join(",")));
        if let Some(http) = incoming.http.as_ref().filter(|_| is_modern)
            && let Err(error) = self.agrees(&params, http, meta.as_deref()).await
        {
            let text = error_text(Some(&id), &error);
            return self.answer_at_once(incoming.ticket, text);
        }
        let known = self.link.tool(&params.name);
        // While the list is out of date, a tool that only read may have changed.
        if let Some(tool) = &known
            && !tool.is_mutating(&self.shared.settings)
            && !self.link.is_stale()
        {
            let headers = self
                .link
                .param_headers(tool, &params, incoming.http.as_deref());
            self.in_order().await;
            return self
                .forward(request, incoming, Watch::Nothing, is_modern, headers)
                .await;
        }
        let call = GuardedCall {
            id: id.clone(),
            own: request.others,
            params: request.params.map_or("{}", RawValue::get).to_owned(),
            name: params.name.clone().into_owned(),
            client_name: self.client_name(&params),
            meta,
            is_modern,
            text: incoming.text,
            ticket: incoming.ticket,
            channel: incoming.channel,
            http: incoming.http,
        };
        let stop = Arc::new(Stop::default());
        let mut turn = Turn::default();
        {
            let mut calls = locked(&self.calls);
            if calls.under_way.len() >= CALLS_MAX {
                drop(calls);
                return self.refuse_busy(&call);
            }
            let entry = (id, Arc::clone(&stop));
            calls.under_way.insert(incoming.ticket, entry);
            turn.handing = calls.being_handed();
            // What comes by HTTP comes on connections of its own, in no order.
            if call.http.is_none() {
                turn.before = calls.latest.replace(turn.sent.clone());
            }
        }
        let session = Arc::clone(self);
        self.tasks.spawn(async move {
            let ticket = call.ticket;
            let _passing = Passing::of(&turn);
            turn.after_handing().await;
            session.guard(call, stop, turn).await;
            locked(&session.calls).under_way.remove(&ticket);
        });
    }

    /// Takes a guarded call out of what can be stopped, to answer it: `false` if it was stopped
    /// before. From then on a cancel crosses the answer.
    pub(crate) fn begins_answer(&self, ticket: Ticket, delivery: Option<&Delivery>) -> bool {
        let mut calls = locked(&self.calls);
        let Some((id, _)) = calls.under_way.remove(&ticket) else {
            return false;
        };
        if let Some(delivery) = delivery {
            if calls.answered.len() >= ANSWERED_MAX {
                calls.answered.pop_front();
            }
            calls.answered.push_back((id, delivery.clone()));
        }
        true
    }

    /// An answer begins to be written. Until this is dropped it is not known what became of it,
    /// and a call that comes meanwhile waits: its client may have read the answer already.
    pub(crate) fn begins_handing(&self) -> DropGuard {
        let token = CancellationToken::new();
        let mut calls = locked(&self.calls);
        calls.handing.retain(|other| !other.is_cancelled());
        calls.handing.push(token.clone());
        token.drop_guard()
    }

    /// Hands an answer over without waiting until it is written.
    pub(crate) fn answer_at_once(&self, ticket: Ticket, text: Bytes) {
        use futures_util::FutureExt as _;
        let _ = self.client.answer(ticket, text).now_or_never();
    }
}

impl Conversation for Session {
    async fn receive(self: &Arc<Self>, incoming: Incoming) {
        let limits = FramingLimits {
            message_bytes_max: self.shared.settings.message_bytes_max,
            batch_max: 256,
            members_max: 256,
        };
        let text = incoming.text.clone();
        match read(&text, limits) {
            Ok(Read::Single(message)) => self.message(message, incoming).await,
            Ok(Read::Batch(messages)) => {
                let parts: Vec<&RawValue> = serde_json::from_slice(&text).unwrap_or_default();
                for (message, part) in messages.into_iter().zip(parts) {
                    let number = self.batched.fetch_add(1, Ordering::Relaxed);
                    let incoming = Incoming {
                        text: Bytes::copy_from_slice(part.get().as_bytes()),
                        ticket: Ticket(BATCH_TICKETS | number),
                        channel: incoming.channel,
                        http: incoming.http.clone(),
                    };
                    match message {
                        Ok(message) => self.message(message, incoming).await,
                        Err(unreadable) => {
                            let text = error_text(unreadable.id.as_ref(), &unreadable.error);
                            self.answer_at_once(incoming.ticket, text);
                        }
                    }
                }
            }
            Err(unreadable) => {
                let text = error_text(unreadable.id.as_ref(), &unreadable.error);
                self.answer_at_once(incoming.ticket, text);
            }
        }
    }

    fn disconnected(self: &Arc<Self>, ticket: Ticket) {
        let stop = locked(&self.calls).under_way.remove(&ticket);
        if let Some((_, stop)) = stop {
            return self.stop(ticket, &stop);
        }
        let link = Arc::clone(&self.link);
        tokio::spawn(async move { link.cancel_ticket(ticket).await });
    }

    async fn end(self: &Arc<Self>, drain_for: Duration) {
        self.link.alone();
        let under_way: Vec<Arc<Stop>> = locked(&self.calls)
            .under_way
            .values()
            .map(|(_, stop)| Arc::clone(stop))
            .collect();
        let now = self.shared.engine.now();
        for stop in under_way {
            // The connection has ended before the answer was written. It may still be read.
            stop.stop(now);
        }
        self.tasks.close();
        if tokio::time::timeout(drain_for, async {
            self.tasks.wait().await;
            self.link.idle().await;
        })
        .await
        .is_err()
        {
            tracing::warn!(
                "calls were still under way when the client had gone; their outcome is unknown"
            );
        }
        self.link.close().await;
        // What was cut off is recorded as such.
        let _ = tokio::time::timeout(Duration::from_secs(2), self.tasks.wait()).await;
    }
}
