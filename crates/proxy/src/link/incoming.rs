//! What the upstream says.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use counterfoil_mcp::framing::{
    FramingLimits, Id, Incoming, Message, Notification, Response, read,
};
use counterfoil_store::BoxFuture;
use serde_json::value::RawValue;

use super::{Link, Waiter, Watch, locked, member, replaced, table::plain};
use crate::{
    say,
    settings::Restart,
    wire::{Failure, Kind, Sink, Ticket},
};

/// The `_meta` key of what belongs to a `subscriptions/listen`: that request's id.
pub(super) const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

impl Link {
    async fn take(&self, message: Message<'_>, text: Bytes, related: Option<&Id>) {
        match message {
            Message::Response(response) => self.response(&response, text),
            Message::Notification(notification) => {
                self.notification(&notification, text, related).await;
            }
            Message::Request(request) => {
                if self.is_alone.load(Ordering::Acquire) {
                    let error = say::client_gone(&request.id);
                    self.post(error, Kind::Response, None).await;
                } else {
                    self.client.tell(self.about(related), text).await;
                }
            }
        }
    }

    fn about(&self, related: Option<&Id>) -> Option<Ticket> {
        locked(&self.table).waiting.get(related?)?.about
    }

    /// Who subscribed under this id, and the client's own where it was replaced; `None`: nobody
    /// (any more).
    fn subscriber(&self, named: &str) -> Option<(Option<Ticket>, Option<Id>)> {
        let table = locked(&self.table);
        let id = Id::from_json(named)?;
        let waiting = table.waiting.get(&id);
        let waiting = waiting.or_else(|| table.waiting.get(&plain(&id)?))?;
        match &waiting.waiter {
            Waiter::Client { original, .. } => Some((waiting.about, original.clone())),
            Waiter::Here(_) => None,
        }
    }

    fn response(&self, response: &Response<'_>, text: Bytes) {
        let Some(id) = &response.id else {
            tracing::warn!("the server answered without an id");
            return;
        };
        let (mut id, mut taken) = (id.clone(), self.taken(id));
        let mut is_spelled_anew = false;
        if taken.is_none()
            && let Some(plain) = plain(&id)
        {
            taken = self.taken(&plain);
            (id, is_spelled_anew) = (plain, true);
        }
        let Some(waiting) = taken else {
            tracing::debug!("the server answered what is not waited for (any more)");
            return;
        };
        match waiting.waiter {
            Waiter::Here(answer) => {
                // Whoever waited may have given it up.
                let _ = answer.send(Ok(text));
            }
            Waiter::Client {
                ticket,
                original,
                watch,
                ..
            } => {
                let mut text = self.watched(watch, response, text);
                if watch == Watch::Initialize {
                    self.handshake_answered(response.outcome.is_ok());
                }
                let original = original.or_else(|| is_spelled_anew.then_some(id));
                if let Some(original) = original {
                    if watch == Watch::Standing
                        && let Some(named) = member(&text, &["result", "_meta", SUBSCRIPTION])
                    {
                        text = replaced(&text, named, original.as_str());
                    }
                    if let Some(id) = member(&text, &["id"]) {
                        text = replaced(&text, id, original.as_str());
                    }
                }
                self.answer(ticket, text);
            }
        }
    }

    fn watched(&self, watch: Watch, response: &Response<'_>, text: Bytes) -> Bytes {
        match (watch, response.outcome) {
            (Watch::Nothing | Watch::Standing, _)
            | (Watch::Initialize | Watch::Tools { .. }, Err(_)) => text,
            (Watch::Initialize, Ok(_)) => {
                if let Some(up) = self.current() {
                    self.agreed(&up, &text);
                }
                text
            }
            (Watch::Tools { first }, Ok(result)) => {
                let mut catalog = locked(&self.catalog);
                let _page = catalog.take_page(result.get(), first);
                let own = &self.shared.own_tools;
                let listed = catalog.rewrite_list(result.get(), &self.shared.settings, own);
                replaced(&text, result.get(), &listed)
            }
        }
    }

    async fn notification(
        &self,
        notification: &Notification<'_>,
        text: Bytes,
        related: Option<&Id>,
    ) {
        if notification.method == "notifications/tools/list_changed" {
            locked(&self.catalog).list_changed();
        }
        let token = (notification.method == "notifications/progress")
            .then(|| member(&text, &["params", "progressToken"]))
            .flatten();
        let Some(token) = token else {
            let (about, text) = match member(&text, &["params", "_meta", SUBSCRIPTION]) {
                None => (self.about(related), text),
                Some(named) => match self.subscriber(named) {
                    // Of a subscription that has ended: nobody else asked for it.
                    None => return,
                    Some((about, None)) => (about, text),
                    Some((about, Some(original))) => {
                        let text = replaced(&text, named, original.as_str());
                        (about, text)
                    }
                },
            };
            return self.client.tell(about, text).await;
        };
        let known = {
            let table = locked(&self.table);
            let known = table.tokens.get(token);
            known.map(|known| (known.about, known.original.clone()))
        };
        match known {
            // Of a request that is over or was cancelled: nothing more is said about it.
            None | Some((None, _)) => {}
            Some((about, None)) => self.client.tell(about, text).await,
            Some((about, Some(original))) => {
                let text = replaced(&text, token, &original);
                self.client.tell(about, text).await;
            }
        }
    }

    pub(super) fn failed_one(&self, id: &Id, why: Failure) {
        let Some(waiting) = self.given_up(id) else {
            return;
        };
        match waiting.waiter {
            Waiter::Here(answer) => {
                let _ = answer.send(Err(why));
            }
            Waiter::Client {
                ticket,
                original,
                is_modern,
                again,
                ..
            } => {
                let is_expired = self.current().is_some_and(|up| up.is_expired());
                if let (Some(again), true, Some(me)) = (again, is_expired, self.me.upgrade()) {
                    tokio::spawn(async move { me.forward_once(*again, false).await });
                    return;
                }
                let id = original.as_ref().unwrap_or(id);
                self.refuse(ticket, id, is_modern, &why);
            }
        }
    }

    pub(super) fn in_flight(&self) -> Vec<Id> {
        locked(&self.table).waiting.keys().cloned().collect()
    }

    pub(super) fn lose(&self, all: Vec<Id>, why: &str) {
        for id in all {
            self.failed_one(&id, Failure::Lost(why.to_owned()));
        }
    }
}

impl Sink for Link {
    fn message<'a>(&'a self, text: Bytes, related: Option<&'a Id>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let limits = FramingLimits {
                message_bytes_max: self.shared.settings.message_bytes_max,
                batch_max: 1024,
                members_max: 256,
            };
            match read(&text, limits) {
                Ok(Incoming::Single(message)) => self.take(message, text.clone(), related).await,
                Ok(Incoming::Batch(messages)) => {
                    let parts: Vec<&RawValue> = serde_json::from_slice(&text).unwrap_or_default();
                    for (message, part) in messages.into_iter().zip(parts) {
                        if let Ok(message) = message {
                            let text = Bytes::copy_from_slice(part.get().as_bytes());
                            self.take(message, text, related).await;
                        }
                    }
                }
                Err(unreadable) => {
                    tracing::warn!(why = %unreadable.error.message, "the server said what is no message");
                }
            }
        })
    }

    fn failed(&self, id: &Id, why: Failure) {
        self.failed_one(id, why);
    }

    fn closed(&self, why: &str) {
        // Before another one can be started: what is sent to that is not lost.
        let lost = self.in_flight();
        self.replace_current(None);
        locked(&self.catalog).list_changed();
        self.lose(lost, why);
        if self.shared.settings.restart == Restart::Never {
            self.ended.send_replace(Some(why.to_owned()));
        } else if !self.is_alone.load(Ordering::Acquire) {
            tracing::warn!(
                why,
                "the server has ended; it is started again when it is needed"
            );
        }
    }
}
