//! The session of a handshake, as the revisions up to 2025-11-25 have it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use http::HeaderValue;
use tokio_util::sync::CancellationToken;

/// What is known of the session when a message is sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The session's id, if the server gives one. A secret.
    pub(super) id: Option<HeaderValue>,
    /// The revision that was agreed on.
    pub(super) version: Option<String>,
    /// Which of the sessions on this transport it is.
    pub(super) epoch: u64,
}

#[derive(Default)]
struct State {
    known: Known,
    is_expired: bool,
    /// Ends the stream that is listened to beside the requests.
    listening: Option<CancellationToken>,
}

impl State {
    fn end_listening(&mut self) {
        if let Some(end) = self.listening.take() {
            end.cancel();
        }
    }
}

/// The session. What is told about an earlier one changes nothing.
#[derive(Default)]
pub(super) struct Session {
    state: Mutex<State>,
}

impl Session {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn known(&self) -> Known {
        self.state().known.clone()
    }

    /// The server answered the handshake that was sent in `epoch`, with an id or without.
    pub(super) fn issued(&self, epoch: u64, id: Option<&HeaderValue>) {
        let mut state = self.state();
        if state.known.epoch != epoch {
            return;
        }
        // Another handshake is another session.
        state.end_listening();
        state.is_expired = false;
        state.known.epoch += 1;
        state.known.id = id.cloned().map(|mut id| {
            id.set_sensitive(true);
            id
        });
    }

    pub(super) fn negotiated(&self, version: &str) {
        self.state().known.version = Some(version.to_owned());
    }

    /// The server does not know the session of `epoch` any more.
    pub(super) fn expire(&self, epoch: u64) {
        let mut state = self.state();
        if state.known.epoch == epoch && state.known.id.is_some() {
            state.is_expired = true;
            state.end_listening();
        }
    }

    pub(super) fn is_expired(&self) -> bool {
        self.state().is_expired
    }

    /// Forgets it.
    pub(super) fn renew(&self) {
        let mut state = self.state();
        state.end_listening();
        state.is_expired = false;
        state.known = Known {
            epoch: state.known.epoch + 1,
            ..Known::default()
        };
    }

    /// Forgets it for good; what it was if the server has to be told.
    pub(super) fn close(&self) -> Option<Known> {
        let mut state = self.state();
        let known = std::mem::take(&mut state.known);
        (known.id.is_some() && !state.is_expired).then_some(known)
    }

    /// Begins to listen in the session of `epoch`; `None` if it is over, or listened to already.
    pub(super) fn listen(
        &self,
        epoch: u64,
        closed: &CancellationToken,
    ) -> Option<CancellationToken> {
        let mut state = self.state();
        if state.known.epoch != epoch || state.is_expired || state.listening.is_some() {
            return None;
        }
        let end = closed.child_token();
        state.listening = Some(end.clone());
        Some(end)
    }
}
