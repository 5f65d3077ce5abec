use std::{any::Any, fmt, time::Duration};

use counterfoil_core::{
    Decision, Event, Fingerprint, Identity, Kept, OperationId, Policy, PrincipalId, Receipt, Reply,
    State, Timestamp, Token, WorkspaceId,
};

/// (operation, attempt): every write after admission compares it. Lease expiry alone fences nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// Which operation.
    pub operation_id: OperationId,
    /// Which attempt.
    pub attempt: u32,
}

/// A request to run.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Whose call it is.
    pub identity: Identity,
    /// What it asks.
    pub fingerprint: Fingerprint,
    /// The digest of its inputs, if it answers a question.
    pub inputs: Option<[u8; 32]>,
    /// The operation's version.
    pub version: u32,
    /// Mode, retention, lease and limits of the row.
    pub policy: Policy,
    /// The id it gets if it is a new operation.
    pub operation_id: OperationId,
    /// Made up by the caller for this admission, the same when the admission is repeated because
    /// its answer was lost.
    pub token: Token,
    /// The clock.
    pub now: Timestamp,
    /// How long it may wait for its turn and for locks; then [`crate::Error::Busy`].
    pub patience: Duration,
}

/// A stored answer: the reply, or what replaced its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredReply {
    /// As it is replayed. The body is ciphertext if `sealed`.
    pub reply: Reply,
    /// The id of the key that sealed the body.
    pub sealed: Option<u32>,
}

/// A receipt as found, with its stored answer if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The row.
    pub receipt: Receipt,
    /// The stored answer: of the finished operation, of the open question, or the handle of a
    /// dispatched one.
    pub reply: Option<StoredReply>,
}

/// What `admit` says.
#[derive(Debug)]
pub enum Admitted {
    /// The reservation is durable: run, and record with this fence.
    Run(Granted),
    /// Nothing was reserved.
    Decided(Decision, Box<Found>),
    /// Nothing was reserved: an open transaction of another caller holds the identity, and what it
    /// makes of it cannot be seen before it ends.
    Held,
}

/// A durable reservation.
#[derive(Debug)]
pub struct Granted {
    /// The fence of this attempt.
    pub fence: Fence,
    /// The round, the first one 0.
    pub round: u16,
    /// Until when it may stay silent.
    pub lease_until: Timestamp,
    /// When it ends at the latest.
    pub hard_deadline: Timestamp,
    /// The capacity booked for its completion, so that a completion is never refused as busy.
    /// Keep it until the completion is recorded.
    pub slot: Slot,
}

/// Capacity booked in a store; given back when dropped.
pub struct Slot(
    #[allow(dead_code, reason = "held for its drop")] Option<Box<dyn Any + Send + Sync>>,
);

impl Slot {
    /// Books by holding `guard`.
    #[must_use]
    pub fn new(guard: impl Any + Send + Sync) -> Self {
        Self(Some(Box::new(guard)))
    }

    /// For stores without bounds.
    #[must_use]
    pub const fn unbounded() -> Self {
        Self(None)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slot")
    }
}

/// Evidence about an attempt, with the answer it came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What happened. Its attempt is the fence's.
    pub event: Event,
    /// What is stored with it: an answer or a question.
    pub reply: Option<StoredReply>,
    /// What becomes of the result if this finishes the operation without a stored reply:
    /// [`Kept::TooLarge`] or [`Kept::AnswerLost`]; otherwise [`Kept::Stored`].
    pub kept: Kept,
    /// The clock.
    pub at: Timestamp,
    /// Why, in a few fixed words, for the event log.
    pub reason: &'static str,
    /// Where the evidence lies, for the event log.
    pub evidence: Option<String>,
    /// How long an open question may stay unanswered (only [`Event::Asked`]).
    pub question_for: Duration,
}

/// Which operations to list, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Of this workspace.
    pub workspace: WorkspaceId,
    /// Of this principal only.
    pub principal: Option<PrincipalId>,
    /// In one of these states; empty: in any but [`State::Free`].
    pub states: Vec<State>,
    /// After this place.
    pub cursor: Option<Cursor>,
    /// At most this many, 1 to 500.
    pub limit: u32,
}

/// A place in a list: opaque, from [`Page::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(pub i64);

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The receipts.
    pub receipts: Vec<Receipt>,
    /// Where the next part begins; `None` at the end.
    pub next: Option<Cursor>,
}

/// What one bounded step of a sweep may delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepPlan {
    /// Judge the windows at this time: what two sweeps at least an hour apart agreed on. Not the
    /// present.
    pub horizon: Timestamp,
    /// Look at no more than this many receipts.
    pub limit: u32,
    /// Begin after this place; 0 at the start of a sweep.
    pub after: i64,
}

/// What a sweep step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Stored results deleted (their receipts stay as tombstones).
    pub results: u64,
    /// Receipts deleted with their events.
    pub receipts: u64,
    /// Where the next step goes on; `None` when the sweep is through.
    pub next: Option<i64>,
}

/// What a store says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Callers waiting for the writer.
    pub queue_depth: u64,
    /// Reservations whose completion is not recorded yet.
    pub slots_booked: u64,
    /// Unresolved receipts in all.
    pub unresolved: u64,
}
