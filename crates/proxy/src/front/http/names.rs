//! Names that nobody can guess: of sessions, and of connections.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use axum::extract::ConnectInfo;
use counterfoil_engine::Entropy;
use http::{Version, request::Parts};
use sha2::{Digest as _, Sha256};

use crate::keyless::Channel;

/// What says that a request came through somebody else's connection.
const FORWARDED: [&str; 4] = ["forwarded", "via", "x-forwarded-for", "x-real-ip"];

/// Makes names from a secret of this process: random to everybody else, and none comes twice.
pub(super) struct Names {
    secret: [u8; 32],
    began: Instant,
    next: AtomicU64,
}

impl Names {
    /// `None` if there is no randomness to be had.
    pub(super) fn new(entropy: &dyn Entropy) -> Option<Self> {
        let mut secret = [0; 32];
        entropy.fill(&mut secret).then(|| Self {
            secret,
            began: Instant::now(),
            next: AtomicU64::new(0),
        })
    }

    /// A new session's name: 32 hex digits.
    pub(super) fn session(&self) -> String {
        hex(&self.digest(b"session", &self.next().to_be_bytes()))
    }

    /// The channel of a request: its session, or without one its TCP connection, if a later request
    /// on that proves that the answer to an earlier one arrived.
    ///
    /// A session is one client, which ends the connection of what it does not wait for any more;
    /// that is noticed. A connection is enough on HTTP/1.1, where clients send the next request after the answer to the last one.
    /// It is not on HTTP/2, where a request can be given up and sent again on the same connection,
    /// nor behind an intermediary, which received the answer whether or not its client still
    /// listened. There, and where the server does not tell connections apart, each request has a
    /// channel of its own, which proves nothing.
    pub(super) fn channel(&self, request: &Parts, session: Option<&str>) -> Channel {
        let own = matches!(request.version, Version::HTTP_10 | Version::HTTP_11)
            && !FORWARDED
                .iter()
                .any(|name| request.headers.contains_key(*name));
        if let (true, Some(session)) = (own, session) {
            return Channel(self.digest(b"conversation", session.as_bytes()));
        }
        let peer = request.extensions.get::<ConnectInfo<SocketAddr>>();
        let accepted = request.extensions.get::<ConnectInfo<Instant>>();
        if let (true, Some(ConnectInfo(peer)), Some(ConnectInfo(accepted))) = (own, peer, accepted)
            && let Some(since) = accepted.checked_duration_since(self.began)
        {
            let connection = format!("{peer} {}", since.as_nanos());
            return Channel(self.digest(b"connection", connection.as_bytes()));
        }
        self.nobody()
    }

    /// A channel that no other message comes on.
    pub(super) fn nobody(&self) -> Channel {
        Channel(self.digest(b"nobody", &self.next().to_be_bytes()))
    }

    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn digest(&self, purpose: &[u8], what: &[u8]) -> [u8; 16] {
        let digest = Sha256::new()
            .chain_update(self.secret)
            .chain_update(purpose)
            .chain_update([0])
            .chain_update(what)
            .finalize();
        let mut half = [0; 16];
        half.copy_from_slice(&digest[..16]);
        half
    }
}

/// Bytes as hex digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
