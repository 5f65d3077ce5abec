//! Calls without a key, and what is known of the delivery of each answer (contract §10, I5).
//!
//! A call without a key gets one made from its own digest and a count, so that its reservation in
//! the store is at the same time the durable note that it started: nothing else has to be written
//! before it is dispatched, and after a crash the next identical call finds it. What became of the
//! *answer* is kept in a table beside the receipts, written soon after; what was lost of it in a
//! crash counts as unproven.
//!
//! ```text
//! let (pairing, delivery) = deliveries.pair(&call, now).await?;    // without a key
//! let delivery = deliveries.begin(digest, operation, key, channel, now);  // with one
//! match pairing {
//!     Run(key)      => look up and run under it, with no wait; in the handler, which is called
//!                      once the reservation is durable: delivery.started().
//!                      Not Ready, or the handler not called: a rival took the key. Drop the
//!                      delivery, call `pair` again.
//!     Attach { .. } => look up and wait under that key; Ready: the earlier call was released,
//!                      and this one may run in its place.
//!     Ask(id)       => refuse with `possible_duplicate`.
//! }
//! // Once the answer is flushed: delivery.handed(now). If it was not the operation's answer but a
//! // notice that there is none yet (in progress, unknown): delivery.told(now). The client
//! // cancelled or went away before: delivery.undelivered(now). A cancel came after:
//! // delivery.doubted(). Nothing was run or handed out (an invalid request): drop it.
//! // For each message of a client, before it is acted on: deliveries.heard(channel, now).
//! ```
//!
//! Until `started` (or the drop) of the delivery of a `Run`, identical calls of this process wait
//! in `pair`: hold it no longer than the reservation takes, and never two of them at once.

mod delivery;
mod judge;
mod memory;
mod pairing;
mod rounds;
mod scene;
mod standing;
mod table;
#[cfg(test)]
mod tests;
mod write_behind;

use std::{
    fmt::Write as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use counterfoil_core::{Fingerprint, Key, OperationId, PrincipalId, Timestamp, WorkspaceId};
use counterfoil_engine::Engine;
use counterfoil_store::{Error, transact};

pub(crate) use delivery::Delivery;

use crate::settings::{Keyless, Settings};
use judge::{Handing, Windows};
use memory::{Entry, Memory};
use table::{First, Holder, Known, Place};
use write_behind::Wake;

/// Identical calls of this process are paired one after the other; others seldom meet.
const TURNS: usize = 256;
/// How long a call waits for an identical one to reserve its key.
const TURN_PATIENCE: Duration = Duration::from_secs(10);

/// What tells identical calls: SHA-256 over workspace, principal, upstream instance, the client's
/// name, the tool and the canonical arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallDigest(pub(crate) [u8; 32]);

/// One connection of a client: a later message on it proves that what was flushed to it before
/// was received. Random; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Channel(pub(crate) [u8; 16]);

/// What a mutating call without a key gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pairing {
    /// It runs under this key of its own.
    Run(Key),
    /// It is paired with the call under this key and target: it gets that one's answer.
    Attach {
        /// The earlier call's key.
        key: Key,
        /// The operation part of its target.
        operation: String,
    },
    /// It may be a duplicate of this operation, and nothing proves that it is or is not.
    Ask(OperationId),
}

/// A mutating call without a key.
#[derive(Clone, Debug)]
pub(crate) struct KeylessCall {
    /// The tenant.
    pub(crate) workspace: WorkspaceId,
    /// Who calls.
    pub(crate) principal: PrincipalId,
    /// The upstream instance, as in its target.
    pub(crate) upstream: String,
    /// `MCP <tool>`.
    pub(crate) operation: String,
    /// What tells it from others.
    pub(crate) digest: CallDigest,
    /// As its receipt will have it.
    pub(crate) fingerprint: Fingerprint,
    /// The connection it came on.
    pub(crate) channel: Channel,
    /// What its client gives up is known before what it calls next: they come on one pipe. Over
    /// HTTP the end of one connection and a call on another may be seen in either order.
    pub(crate) is_ordered: bool,
    /// The tool says of itself what it does (it has annotations, or a policy).
    pub(crate) annotated: bool,
    /// What is configured. `Mint` runs whatever is known; `Require` is judged as `Ask`.
    pub(crate) keyless: Keyless,
}

/// What is known of the delivery of answers: this process's memory and the table behind it.
/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Deliveries {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    windows: Windows,
    memory: Mutex<Memory>,
    /// Some answer waits for a later message on its channel.
    is_waiting: AtomicBool,
    /// By the first byte of a digest.
    turns: Vec<Arc<tokio::sync::Mutex<()>>>,
    /// Rows are written by one at a time.
    writing: tokio::sync::Mutex<()>,
    wake: Arc<Wake>,
    /// Tells this process's handings out from others'.
    process: [u8; 8],
    holders: AtomicU64,
}

impl Deliveries {
    /// Brings the table up and begins to write behind the calls. Needs a tokio runtime.
    ///
    /// # Errors
    /// What the store says; [`Error::Unavailable`] too if there is no randomness to be had.
    pub(crate) async fn open(engine: &Engine, settings: &Settings) -> Result<Self, Error> {
        let deliveries = Self::open_unwritten(engine, Windows::of(settings)).await?;
        let inner = Arc::downgrade(&deliveries.inner);
        let wake = Arc::clone(&deliveries.inner.wake);
        tokio::spawn(write_behind::run(inner, wake));
        Ok(deliveries)
    }

    /// The same, writing only when it is told to.
    async fn open_unwritten(engine: &Engine, windows: Windows) -> Result<Self, Error> {
        let store = engine.store();
        store.migrate(table::COMPONENT, table::MIGRATIONS).await?;
        let mut process = [0; 8];
        if !engine.random(&mut process) {
            return Err(Error::Unavailable(
                "the operating system gives no random bytes".to_owned(),
            ));
        }
        Ok(Self {
            inner: Arc::new(Inner {
                engine: engine.clone(),
                windows,
                memory: Mutex::default(),
                is_waiting: AtomicBool::new(false),
                turns: (0..TURNS).map(|_| Arc::default()).collect(),
                writing: tokio::sync::Mutex::default(),
                wake: Arc::default(),
                process,
                holders: AtomicU64::new(1),
            }),
        })
    }

    /// A call with a key of its caller's (or a minted one, or the answer to a question) begins.
    /// Nothing is written before something is said of it.
    pub(crate) fn begin(
        &self,
        digest: CallDigest,
        operation: &str,
        key: &Key,
        channel: Channel,
        now: Timestamp,
    ) -> Delivery {
        let known = Known {
            place: Place {
                digest,
                operation: operation.to_owned(),
                key: key.clone(),
            },
            holder: self.inner.holder(),
            paired: false,
            channel,
            handing: Handing::Open,
            started_at: now,
        };
        Delivery::registered(self, Entry::new(known, First::Next))
    }

    /// A message came on `channel`: what was flushed to it before, and in time, has arrived. Costs
    /// next to nothing when nothing waits for it.
    pub(crate) fn heard(&self, channel: Channel, now: Timestamp) {
        if self.inner.is_waiting.load(Ordering::Acquire)
            && self.inner.remember(|memory| memory.heard(channel, now))
        {
            self.inner.wake.soon();
        }
    }

    /// No further message comes on `channel`: what was flushed to it stays unproven.
    pub(crate) fn closed(&self, channel: Channel) {
        if self.inner.is_waiting.load(Ordering::Acquire) {
            self.inner.remember(|memory| memory.closed(channel));
        }
    }

    /// Writes everything that is known and not written yet.
    ///
    /// # Errors
    /// What the store says; what was not written is kept and tried again.
    pub(crate) async fn flush(&self) -> Result<(), Error> {
        self.inner.flush().await
    }

    /// Removes some rows that nobody asks about any more, a bounded number; how many. Call it
    /// again while it finds any.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn prune(&self, now: Timestamp) -> Result<u64, Error> {
        let windows = &self.inner.windows;
        let ago = |window: Duration| {
            let millis = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
            Timestamp::from_millis(now.as_millis().saturating_sub(millis))
        };
        let asked_since = ago(windows.ask_for.saturating_add(SLACK));
        let kept_since = ago(windows
            .tombstone_for
            .max(windows.ask_for)
            .saturating_add(KEPT));
        transact(self.inner.engine.store().as_ref(), None, move |tx| {
            Box::pin(table::prune(tx, asked_since, kept_since))
        })
        .await
    }
}

/// A row counts by when it was touched, a call by whatever is known of it: by that much later.
const SLACK: Duration = Duration::from_secs(3600);
/// Sweeps take their time to remove a receipt that is past its windows.
const KEPT: Duration = Duration::from_secs(2 * 24 * 3600);

impl Inner {
    /// Does something with the memory, under its lock.
    fn remember<T>(&self, body: impl FnOnce(&mut Memory) -> T) -> T {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let said = body(&mut memory);
        self.is_waiting
            .store(memory.is_waiting(), Ordering::Release);
        said
    }

    /// A name for one handing out, never used again.
    fn holder(&self) -> Holder {
        let count = self.holders.fetch_add(1, Ordering::Relaxed);
        let mut name = [0; 16];
        name[..8].copy_from_slice(&self.process);
        name[8..].copy_from_slice(&count.to_be_bytes());
        Holder(name)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.wake.at_once();
    }
}

/// What the keys begin with that are made here.
const MADE_HERE: &str = "keyless-";

/// Whether this is a key that was made for a call without one.
pub(crate) fn is_made_here(key: &Key) -> bool {
    let rest = key.as_str().strip_prefix(MADE_HERE);
    let parts = rest.and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(digest, serial)| {
        let hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        digest.len() == 64 && digest.chars().all(hex) && serial.parse::<u32>().is_ok()
    })
}

/// What the keys begin with that are made for calls of this digest.
fn prefix(digest: CallDigest) -> String {
    let mut text = String::with_capacity(MADE_HERE.len() + 65);
    text.push_str(MADE_HERE);
    for byte in digest.0 {
        let _ = write!(text, "{byte:02x}");
    }
    text.push('-');
    text
}

/// The key number `serial` of a call.
fn key(digest: CallDigest, serial: u32) -> Result<Key, Error> {
    Key::new(format!("{}{serial}", prefix(digest)))
        .map_err(|error| Error::Corrupt(format!("a key of a call without one: {error}")))
}
