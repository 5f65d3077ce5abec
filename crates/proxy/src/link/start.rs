//! How a link comes up, and up again.

use std::{
    sync::{Arc, PoisonError, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::{Link, OWN_FOR, locked, member, replaced};
use crate::{
    raw,
    settings::Restart,
    transport,
    wire::{Failure, Kind, Sink, Transport},
};

/// A server that ended is started again this often within [`RESTARTS_WITHIN`].
const RESTARTS_MAX: usize = 3;
/// See [`RESTARTS_MAX`].
const RESTARTS_WITHIN: Duration = Duration::from_secs(60);

/// The client's handshake, to be repeated when a server is started again.
#[derive(Clone, Default)]
pub(super) struct Handshake {
    initialize: Option<Bytes>,
    initialized: Option<Bytes>,
    /// It was accepted. One that was not is not repeated: the client itself has to.
    is_accepted: bool,
    /// Nobody waits for its answer any more.
    over: CancellationToken,
}

impl Link {
    /// The handshake as the client began it. Completes when it is answered, or will not be.
    pub(crate) fn opened(&self, initialize: Bytes) -> CancellationToken {
        let over = CancellationToken::new();
        *locked(&self.handshake) = Handshake {
            initialize: Some(initialize),
            initialized: None,
            is_accepted: false,
            over: over.clone(),
        };
        over
    }

    pub(super) fn handshake_answered(&self, is_accepted: bool) {
        locked(&self.handshake).is_accepted = is_accepted;
        self.handshake_over();
    }

    pub(super) fn handshake_over(&self) {
        locked(&self.handshake).over.cancel();
    }

    /// The handshake as the client ended it.
    pub(crate) fn initialized(&self, notification: Bytes) {
        locked(&self.handshake).initialized = Some(notification);
    }

    /// Completes when the upstream has ended and is not started again, with the reason.
    pub(crate) async fn ended(&self) -> String {
        let mut ended = self.ended.subscribe();
        loop {
            if let Some(why) = ended.borrow_and_update().clone() {
                return why;
            }
            if ended.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    pub(super) fn current(&self) -> Option<Arc<dyn Transport>> {
        let up = self.up.read().unwrap_or_else(PoisonError::into_inner);
        up.clone()
    }

    pub(super) fn replace_current(
        &self,
        up: Option<Arc<dyn Transport>>,
    ) -> Option<Arc<dyn Transport>> {
        let mut current = self.up.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut current, up)
    }

    /// It is up, on this.
    #[cfg(test)]
    pub(crate) fn stands_on(&self, up: Arc<dyn Transport>) {
        self.was_up.store(true, Ordering::Release);
        self.replace_current(Some(up));
    }

    /// The way to the upstream, started (again) if need be. Nothing is said on it before the
    /// client speaks.
    pub(crate) async fn connect(&self) -> Result<Arc<dyn Transport>, Failure> {
        let usable =
            |up: &Arc<dyn Transport>| self.is_ready.load(Ordering::Acquire) && !up.is_expired();
        if let Some(up) = self.current().filter(usable) {
            return Ok(up);
        }
        let mut starts = self.starts.lock().await;
        let ended = || Failure::NotSent("the proxy has ended".to_owned());
        if self.is_closed.load(Ordering::Acquire) {
            return Err(ended());
        }
        if let Some(up) = self.current() {
            if !usable(&up) {
                // Nobody else says anything before the handshake.
                self.is_ready.store(false, Ordering::Release);
                up.renew();
                self.repeat_handshake(&up).await?;
            }
            return Ok(up);
        }
        if self.was_up.load(Ordering::Acquire) {
            if self.shared.settings.restart == Restart::Never {
                return Err(Failure::NotSent("the server has ended".to_owned()));
            }
            let is_old = |start: &Instant| start.elapsed() > RESTARTS_WITHIN;
            while starts.front().is_some_and(is_old) {
                starts.pop_front();
            }
            if starts.len() >= RESTARTS_MAX {
                return Err(Failure::NotSent(format!(
                    "the server ended {RESTARTS_MAX} times within a minute"
                )));
            }
            starts.push_back(Instant::now());
            tracing::warn!("the server is started again");
        }
        let sink: Weak<dyn Sink> = self.me.clone();
        let up = transport::start(&self.shared.settings, sink)?;
        let again = self.was_up.swap(true, Ordering::AcqRel);
        self.is_ready.store(!again, Ordering::Release);
        self.replace_current(Some(Arc::clone(&up)));
        if self.is_closed.load(Ordering::Acquire) {
            self.replace_current(None);
            up.close().await;
            return Err(ended());
        }
        locked(&self.catalog).list_changed();
        if again {
            self.repeat_handshake(&up).await?;
        }
        Ok(up)
    }

    /// A server that was started again gets the client's own handshake, if there was one. From
    /// then on it is ready.
    async fn repeat_handshake(&self, up: &Arc<dyn Transport>) -> Result<(), Failure> {
        // Whatever goes wrong here, the message that wanted it was not sent.
        let not_sent = |why: Failure| Failure::NotSent(why.to_string());
        let handshake = locked(&self.handshake).clone();
        if let Some(initialize) = handshake.initialize.filter(|_| handshake.is_accepted)
            && let Some(old) = member(&initialize, &["id"])
        {
            let id = self.fresh_id();
            let text = replaced(&initialize, old, id.as_str());
            let kind = Kind::Request {
                id,
                method: "initialize".to_owned(),
                name: None,
            };
            let asked = self.ask_over(up, None, None, self.outbound(text, kind), None);
            let answer = tokio::time::timeout(OWN_FOR, Box::pin(asked))
                .await
                .map_err(|_| Failure::NotSent("the handshake was not answered".to_owned()))?
                .map_err(not_sent)?;
            if member(&answer, &["result"]).is_none() {
                return Err(Failure::NotSent("the handshake was refused".to_owned()));
            }
            self.agreed(up, &answer);
            if let Some(initialized) = handshake.initialized {
                let kind = Kind::Notification {
                    method: "notifications/initialized".to_owned(),
                };
                let sent = up.send(self.outbound(initialized, kind)).await;
                sent.map_err(not_sent)?;
            }
            locked(&self.catalog).list_changed();
        }
        self.is_ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Notes what the handshake agreed on.
    pub(super) fn agreed(&self, up: &Arc<dyn Transport>, answer: &Bytes) {
        let version = member(answer, &["result", "protocolVersion"]).and_then(raw::string);
        if let Some(version) = version {
            up.negotiated(&version);
            *locked(&self.version) = Some(version.into_owned());
        }
    }

    /// Ends the connection.
    pub(crate) async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        if let Some(up) = self.replace_current(None) {
            up.close().await;
        }
        self.lose(self.in_flight(), "the proxy has ended");
    }
}
