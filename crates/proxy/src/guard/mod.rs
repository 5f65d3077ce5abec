//! A call of a mutating tool: its key, what is known of it, its one run, its answer.

mod dispatch;
#[cfg(test)]
mod handing_tests;
mod paired;
mod reconcile;
mod running;
mod waiting;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use counterfoil_core::{Identity, Key, Target};
use counterfoil_engine::{Answer, Call, Lookup, Open, Operation, Ready, Reason, Refusal};
use counterfoil_mcp::framing::{Id, RpcError, codes, error_text, result_text};

use crate::{
    Keyless,
    call::{self, CallParams, Elsewhere, Guarded, Place, TakenKey},
    catalog::{KEY_ARGUMENT, Tool},
    keyless::{CallDigest, Channel, Delivery},
    link::{Forwarded, Watch},
    own_tools::Asker,
    raw,
    say::{Dialect, Refused, Voice},
    session::Session,
    settings::ProviderKey,
    wire::{Handed, HttpFacts, Ticket},
};

pub(crate) use running::Running;
pub(crate) use waiting::{Passing, Stop, Turn};

/// A call that is guarded, with all that is its own.
pub(crate) struct GuardedCall {
    pub(crate) id: Id,
    /// Members beside the parameters.
    pub(crate) own: Vec<String>,
    pub(crate) params: String,
    pub(crate) name: String,
    pub(crate) client_name: String,
    /// What 2026-07-28 wants in `_meta`, as JSON text.
    pub(crate) meta: Option<String>,
    pub(crate) is_modern: bool,
    pub(crate) text: Bytes,
    pub(crate) ticket: Ticket,
    pub(crate) channel: Channel,
    pub(crate) http: Option<Arc<HttpFacts>>,
}

/// What is sent to the client, and what that delivers.
struct Said {
    text: Bytes,
    delivery: Option<Delivery>,
    /// It is the operation's answer, and not only that there is none yet.
    is_answer: bool,
}

impl Said {
    const fn of_nothing(text: Bytes) -> Self {
        Self {
            text,
            delivery: None,
            is_answer: false,
        }
    }
}

/// A call that is understood: what it asks, of which tool, how it is kept.
struct Asked {
    call: GuardedCall,
    tool: Arc<Tool>,
    operation: Arc<Operation>,
    canonical: Vec<u8>,
    digest: CallDigest,
    inputs: Option<[u8; 32]>,
    /// The key was made from one that could not be used.
    replaced: bool,
    /// The caller's own key goes to a tool that has a parameter for it.
    forwarded_key: Option<Key>,
    /// The caller has given the key that the upstream honours itself.
    has_provider_key: bool,
    stop: Arc<Stop>,
    turn: Turn,
}

/// A key, and under which target it names the call.
struct Named {
    key: Key,
    operation: String,
    place: Option<Place>,
}

impl Session {
    /// Carries a guarded call through, and answers it if the client still waits.
    pub(crate) async fn guard(self: &Arc<Self>, call: GuardedCall, stop: Arc<Stop>, turn: Turn) {
        let (ticket, by_http) = (call.ticket, call.http.is_some());
        let Some(said) = self.guarded(call, &stop, turn).await else {
            return;
        };
        if !self.begins_answer(ticket, said.delivery.as_ref()) {
            return;
        }
        let _handing = said.delivery.as_ref().map(|_| self.begins_handing());
        let handed = self.client.answer(ticket, said.text).await;
        let Some(delivery) = said.delivery else {
            return;
        };
        // A client on a pipe has closed it and is gone, whoever reads what is still written. One
        // that ended its session by HTTP may have got its answer all the same.
        if stop.is_stopped() && !by_http {
            return;
        }
        let now = self.shared.engine.now();
        match handed {
            Handed::Over if said.is_answer => delivery.handed(now),
            Handed::Over => delivery.told(now),
            Handed::Gone => delivery.undelivered(now),
        }
    }

    /// `None`: it was passed on as it is.
    async fn guarded(
        self: &Arc<Self>,
        call: GuardedCall,
        stop: &Arc<Stop>,
        turn: Turn,
    ) -> Option<Said> {
        // A server that hangs must not keep them from saying so.
        if self.link.tool(&call.name).is_none()
            && let Some(text) = self.own_tool(&call).await
        {
            return Some(Said::of_nothing(text));
        }
        let mut listed = true;
        if self.link.is_stale()
            && let Err(why) = self.link.learn_tools(call.meta.as_deref()).await
        {
            tracing::warn!(%why, "the server's tools are not known; every call counts as mutating");
            listed = false;
        }
        let known = self.link.tool(&call.name);
        let settings = &self.shared.settings;
        let is_configured = settings.tool(&call.name).read_only.is_some();
        let tool = match known {
            // What an older list said of it may not hold any more; what is configured does.
            Some(tool) if !tool.is_mutating(settings) && (listed || is_configured) => {
                self.pass(call, Some(&tool), &turn).await;
                return None;
            }
            // A tool that the server does not list reserves nothing: it says itself that there is
            // none. If all of the list could be read.
            None if listed && self.link.knows_all_tools() => {
                self.pass(call, None, &turn).await;
                return None;
            }
            Some(tool) => tool,
            None => Arc::new(Tool::unknown(&call.name)),
        };
        let id = call.id.clone();
        let said = self.understood(call, tool, stop, turn).await;
        Some(said.unwrap_or_else(|error| Said::of_nothing(error_text(Some(&id), &error))))
    }

    /// The answer of one of the proxy's own tools, if it is one.
    async fn own_tool(&self, call: &GuardedCall) -> Option<Bytes> {
        let shared = &self.shared;
        let own = shared.own.as_ref()?;
        let tool = own.find(&call.name)?;
        let asker = Asker {
            engine: &shared.engine,
            workspace: &shared.workspace,
            principal: &self.principal,
            upstream: &shared.upstream,
            is_modern: call.is_modern,
        };
        let params = CallParams::read(&call.params).ok()?;
        let result = own.call(tool, params.arguments(), asker, shared.as_ref());
        Some(result_text(&call.id, &result.await))
    }

    /// Passes a call on that is not guarded.
    async fn pass(&self, call: GuardedCall, tool: Option<&Tool>, turn: &Turn) {
        if let Some(before) = &turn.before {
            Turn::after(before).await;
        }
        let headers = match (tool, CallParams::read(&call.params)) {
            (Some(tool), Ok(params)) => {
                self.link.param_headers(tool, &params, call.http.as_deref())
            }
            (None, _) | (_, Err(_)) => Vec::new(),
        };
        // From here on it is stopped as what is passed on.
        if !self.begins_answer(call.ticket, None) {
            return;
        }
        let forwarded = Forwarded {
            id: call.id,
            method: "tools/call".to_owned(),
            text: call.text,
            ticket: call.ticket,
            http: call.http,
            is_modern: call.is_modern,
            watch: Watch::Nothing,
            headers,
            is_reading: tool.is_some(),
        };
        self.link.forward(forwarded).await;
    }

    fn voice<'a>(
        &'a self,
        call: &'a GuardedCall,
        key_argument: &'a str,
        dialect: Dialect,
        is_key_replaced: bool,
    ) -> Voice<'a> {
        Voice {
            prefix: &self.shared.settings.meta_prefix,
            is_modern: call.is_modern,
            dialect,
            is_key_replaced,
            tool: &call.name,
            key_argument,
            own_tools: self.shared.settings.own_tools.as_deref(),
            is_found_out: false,
        }
    }

    fn voice_of<'a>(&'a self, asked: &'a Asked, dialect: Dialect) -> Voice<'a> {
        let argument = call::key_argument(&asked.tool);
        self.voice(&asked.call, argument, dialect, asked.replaced)
    }

    /// There are too many calls.
    pub(crate) fn refuse_busy(&self, call: &GuardedCall) {
        let voice = self.voice(call, KEY_ARGUMENT, Dialect::None, false);
        let said = voice.answer(&busy(), None);
        self.answer_at_once(call.ticket, said.message(&call.id));
    }

    async fn understood(
        self: &Arc<Self>,
        call: GuardedCall,
        tool: Arc<Tool>,
        stop: &Arc<Stop>,
        turn: Turn,
    ) -> Result<Said, RpcError> {
        let settings = &self.shared.settings;
        let elsewhere = Elsewhere {
            envelope: &call.own,
            outside: None,
        };
        let params = CallParams::read(&call.params)?;
        let policy = settings.tool(&call.name);
        // A key that the upstream honours, given by the caller itself: it is the key of this call.
        let given = match &policy.provider_key {
            Some(ProviderKey::Argument(name)) => params.argument(name).and_then(raw::string),
            Some(ProviderKey::Header(_)) | None => None,
        };
        let by_caller = given.and_then(|text| Key::new(text).ok());
        let has_provider_key = by_caller.is_some();
        let taken = params
            .take_key(&tool, &settings.meta_prefix, elsewhere)?
            .or_else(|| {
                Some(TakenKey {
                    key: by_caller?,
                    place: Place::Argument,
                    replaced: false,
                })
            });
        let canonical = params.canonical(&tool)?;
        let inputs = params.inputs()?;
        let request_state = params.request_state().map(str::to_owned);
        let operation = self
            .shared
            .operation(&call.name)
            .map_err(|error| RpcError::new(codes::INTERNAL, error.to_string()))?;
        let digest = call::call_digest(
            self.shared.workspace.as_str(),
            self.principal.as_str(),
            &self.shared.upstream,
            &call.client_name,
            &call.name,
            &canonical,
        );
        let keyless = policy.keyless.unwrap_or(settings.keyless);
        let asked = Asked {
            replaced: taken.as_ref().is_some_and(|taken| taken.replaced),
            forwarded_key: taken.as_ref().map(|taken| taken.key.clone()),
            call,
            tool,
            operation,
            canonical,
            digest,
            inputs,
            has_provider_key,
            stop: Arc::clone(stop),
            turn,
        };
        if let Some(taken) = taken {
            let named = Named {
                operation: call::operation(Some(taken.place), &asked.call.name),
                key: taken.key,
                place: Some(taken.place),
            };
            return Ok(self.keyed(&Arc::new(asked), named).await);
        }
        // It goes on with the operation that asked.
        if asked.inputs.is_some() {
            let pairing = self.keyless_call(&asked, keyless);
            let key = self
                .shared
                .deliveries
                .open_question(&pairing, request_state.as_deref(), self.shared.engine.now())
                .await;
            let key = match key {
                Ok(key) => key,
                // Under another key the question would be answered a second time.
                Err(error) => {
                    let voice = self.voice_of(&asked, Dialect::None);
                    let said = voice.answer(&Reason::from(error).into(), None);
                    return Ok(Said::of_nothing(said.message(&asked.call.id)));
                }
            };
            if let Some(key) = key {
                let named = Named {
                    operation: call::operation(None, &asked.call.name),
                    key,
                    place: None,
                };
                return Ok(self.keyed(&Arc::new(asked), named).await);
            }
        }
        if let Some(refusal) = self.invalid(&asked, Dialect::None) {
            return Ok(refusal);
        }
        match keyless {
            Keyless::Require => {
                let voice = self.voice_of(&asked, Dialect::Argument);
                let said = voice.refuse(&Refused::KeyRequired);
                Ok(Said::of_nothing(said.message(&asked.call.id)))
            }
            Keyless::Attach | Keyless::Ask | Keyless::Mint => {
                Ok(self.paired(&Arc::new(asked), keyless).await)
            }
        }
    }

    fn identity(&self, named: &Named) -> Identity {
        Identity {
            workspace: self.shared.workspace.clone(),
            principal: self.principal.clone(),
            target: Target {
                operation: named.operation.clone(),
                parameters: Vec::new(),
                upstream: self.shared.upstream.clone(),
            },
            key: named.key.clone(),
        }
    }

    fn engine_call(&self, asked: &Asked, named: &Named) -> Call {
        let place = match named.operation.as_str() {
            "*" => Some(Place::Meta),
            _ => None,
        };
        Call {
            identity: self.identity(named),
            fingerprint: call::fingerprint(place, &asked.call.name, &asked.canonical),
            operation: Arc::clone(&asked.operation),
            authority: Arc::new(Open),
            wait: None,
            inputs: asked.inputs,
        }
    }

    /// What is wrong with the arguments, before a key is used up.
    fn invalid(&self, asked: &Asked, dialect: Dialect) -> Option<Said> {
        let given = CallParams::read(&asked.call.params).ok()?;
        let guarded = Guarded {
            tool: &asked.tool,
            key: asked.forwarded_key.as_ref(),
            provider: None,
        };
        let policy = self.shared.settings.tool(&asked.call.name);
        let provider = match &policy.provider_key {
            Some(ProviderKey::Argument(_)) if asked.has_provider_key => None,
            Some(ProviderKey::Argument(name)) => Some(name.as_str()),
            Some(ProviderKey::Header(_)) | None => None,
        };
        let issues = guarded.issues(given.arguments(), provider);
        if issues.is_empty() {
            return None;
        }
        let voice = self.voice_of(asked, dialect);
        let said = voice.refuse(&Refused::InvalidArguments(&issues));
        Some(Said::of_nothing(said.message(&asked.call.id)))
    }

    /// A call with a key, from the caller or made here.
    async fn keyed(self: &Arc<Self>, asked: &Arc<Asked>, named: Named) -> Said {
        let dialect = match named.place {
            Some(Place::Meta) => Dialect::Meta,
            Some(Place::Argument | Place::Beside) => Dialect::Argument,
            None => Dialect::None,
        };
        let begin = || {
            let now = self.shared.engine.now();
            let delivery = self.shared.deliveries.begin(
                asked.digest,
                &named.operation,
                &named.key,
                asked.call.channel,
                now,
            );
            asked.stop.concerns(&delivery);
            delivery
        };
        let lookup = self.shared.engine.look_up(self.engine_call(asked, &named));
        let (answer, delivery) = match lookup.await {
            Lookup::Answered(answer) if is_of_another(&answer) => (answer, None),
            Lookup::Answered(answer) => (answer, Some(begin())),
            Lookup::Ready(ready) => {
                if let Some(refusal) = self.invalid(asked, dialect) {
                    return refusal;
                }
                let delivery = begin();
                let (answer, _ran) = self.run(asked, ready, &delivery).await;
                (answer, Some(delivery))
            }
        };
        let (answer, is_found_out) = self.looked_into(asked, &named, answer).await;
        let voice = Voice {
            is_found_out,
            ..self.voice_of(asked, dialect)
        };
        let said = voice.answer(&answer, None);
        Said {
            is_answer: carries_answer(&answer),
            text: said.message(&asked.call.id),
            delivery,
        }
    }

    /// Runs it, once its reservation is durable; whether it did run, or a rival was first.
    async fn run(
        self: &Arc<Self>,
        asked: &Arc<Asked>,
        ready: Ready,
        delivery: &Delivery,
    ) -> (Answer, bool) {
        let ran = Arc::new(AtomicBool::new(false));
        let handler = {
            let (session, asked) = (Arc::clone(self), Arc::clone(asked));
            let (ran, delivery) = (Arc::clone(&ran), delivery.clone());
            move |attempt| async move {
                delivery.started();
                ran.store(true, Ordering::Release);
                session.dispatch(asked, attempt).await
            }
        };
        let answer = ready.run(handler).await;
        (answer, ran.load(Ordering::Acquire))
    }
}

/// It speaks of an operation that is not this call's.
const fn is_of_another(answer: &Answer) -> bool {
    matches!(
        answer,
        Answer::Refused(Refusal {
            reason: Reason::Conflict,
            ..
        })
    )
}

/// Whoever gets this has what the operation answered.
const fn carries_answer(answer: &Answer) -> bool {
    match answer {
        Answer::Ran { .. }
        | Answer::Replayed { .. }
        | Answer::Asked { .. }
        | Answer::Failed { .. }
        | Answer::NotRecorded { .. } => true,
        Answer::Refused(_) => false,
    }
}

fn busy() -> Answer {
    let retry_after = Duration::from_secs(1);
    Reason::Busy { retry_after }.into()
}

#[cfg(test)]
mod tests;
